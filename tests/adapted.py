"""Jobs that train adapters, on small networks, and the files that they are trained beside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedshift.schema.job import JobSpec
from fedshift.schema.task import NetworkSpec
from fedshift.tasks import adapters, networks, pretrained
from fedshift.tasks.kinds import build_task

VIT = ("network.name=monai.ViT", "network.options={hidden_size: 24, mlp_dim: 32, num_heads: 2, num_layers: 2}")
ON_ATTENTION = "network.adapters={on: attention, rank: 4}"
SMALL: dict[str, dict[str, Any]] = {
    "monai.SwinUNETR": {"feature_size": 12, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 4, 8]},
    "monai.ViT": {"hidden_size": 24, "mlp_dim": 32, "num_heads": 2, "num_layers": 2, "patch_size": 8},
    "monai.DenseNet121": {"init_features": 8, "growth_rate": 4, "block_config": [1, 1]},
    "monai.BasicUNet": {"features": [4, 4, 8, 8, 8, 4]},
    "nnunet.PlainConvUNet": {"n_stages": 3, "features_per_stage": [4, 8, 8]},
}
"""Options of networks."""


def pair(name: str, *, side: int = 32, dims: int = 2, **adapted: Any) -> tuple[nn.Module, nn.Module, NetworkSpec]:
    """A network, the same with adapters, and what describes them."""
    arguments = {"in_channels": 1, "n_classes": 3, "seed": 0, "spatial_dims": dims, "patch": (side,) * dims}
    spec = NetworkSpec.parse(
        {
            "name": name,
            "options": SMALL.get(name, {}),
            "weights": {"file": "base.pt", "sha256": "0" * 64},
            "adapters": {"rank": 2, **adapted},
        },
        where="test",
    )
    plain, net = (networks.build(name, spec.options, **arguments) for _ in range(2))  # type: ignore[arg-type]
    return plain, adapters.adapt(net, spec, seed=0), spec


def moved(net: nn.Module, *, by: float = 0.05) -> nn.Module:
    """The network with adapters that do something: their outer factors are 0 at first."""
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(by * torch.randn(weight.shape, generator=draws))
    return net


def with_base(
    make: Callable[..., JobSpec], folder: Path, methods: str, *options: str, adapted: str = ON_ATTENTION
) -> tuple[JobSpec, JobSpec]:
    """The job with adapters, and that without; ``folder`` gets the file ``base.pt`` that both start from."""
    net = build_task(make(methods, *options)).network()
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(net.state_dict(), folder / "base.pt")
    start = f"network.weights={json.dumps(pretrained.identify(folder / 'base.pt').model_dump())}"
    return make(methods, *options, start, adapted), make(methods, *options, start)
