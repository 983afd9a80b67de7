"""What the page on networks lists, from the code."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from fedshift.tasks import losses, monai_networks, networks, nnunet_networks, trial


def stages() -> str:
    """The encoder stages of every network for volumes, as a trial run finds them."""
    lines = ["| network | stages: channels and resolution |", "|---|---|"]
    for name in ("unet", *monai_networks.names(), *nnunet_networks.names()):
        if find_spec("dynamic_network_architectures") is None and name in nnunet_networks.names():
            lines.append(f"| `{name}` | needs the extra `nnunet` |")
            continue
        if find_spec("einops") is None and name in ("monai.SwinUNETR", "monai.UNETR"):
            lines.append(f"| `{name}` | needs the package `einops` |")
            continue
        with torch.device("meta"):
            net = networks.build(name, {}, in_channels=1, n_classes=2, seed=0, spatial_dims=3, patch=(64, 64, 64))
        places = trial.find_stages(net, getattr(net, "trial_size", trial.trial_size(3)))
        sentences = [
            f"{'before' if stage.where == 'input' else 'after'} `{stage.name}`: {stage.channels} at 1/{stage.level[0]}"
            for stage in places
        ]
        lines.append(f"| `{name}` | {'<br>'.join(sentences) or 'none'} |")
    return "\n".join(lines)


def of_monai() -> str:
    """The losses of MONAI that a task can name."""
    return ", ".join(f"`{name}`" for name in losses.available() if name.startswith("monai."))
