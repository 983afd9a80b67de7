"""Arrays of classification networks by the names that MONAI's FlexibleUNet has for them in its encoder.

torchvision's and timm's ResNets have MONAI's own names, without ``encoder.`` before them. EfficientNets are named after
their blocks in four ways: by torchvision, by timm, by lukemelas' EfficientNet-PyTorch (the weights that MONAI itself
would download, and those of its authors), and in MONAI, which counts blocks through and within their stage. Names alone
are changed here; what fits by shape is decided in `fedshift.tasks.pretrained`.

The function is the same for ResNet-50 and larger. MONAI's ResNet-18 and 34 have shortcuts without weights where the
others have a convolution. EfficientNets of MONAI, lukemelas and timm's ``tf_`` ones pad at one side, others at both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from torch import Tensor, nn

ENCODER = "encoder."
PARTS = ("_expand_conv", "_bn0", "_depthwise_conv", "_bn1", "_se_reduce", "_se_expand", "_project_conv", "_bn2")
TIMM = ("conv_pw", "bn1", "conv_dw", "bn2", "se.conv_reduce", "se.conv_expand", "conv_pwl", "bn3")
TIMM_FIRST = ("", "", "conv_dw", "bn1", "se.conv_reduce", "se.conv_expand", "conv_pw", "bn2")
TORCHVISION = ("0.0", "0.1", "1.0", "1.1", "2.fc1", "2.fc2", "3.0", "3.1")
TORCHVISION_FIRST = ("", "", "0.0", "0.1", "1.fc1", "1.fc2", "2.0", "2.1")
"""Parts of a block in the order of `PARTS`; blocks of the first stage have no expansion."""
TIMM_ENDS = {"conv_stem": "_conv_stem", "bn1": "_bn0", "conv_head": "_conv_head", "bn2": "_bn1"}


def for_encoder(net: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The arrays of a file by the names of a network's encoder, if they are those of a classification network alone.

    Any other file, and any for a network without such an encoder, stays as it is.
    """
    ours = [key.removeprefix(ENCODER) for key in net.state_dict() if key.startswith(ENCODER)]
    if not ours or any(key.startswith(ENCODER) for key in state):
        return dict(state)
    names = _efficientnet(ours) if "_conv_stem.weight" in ours else {key: key for key in ours}
    if not any(key in names for key in state):
        return dict(state)
    return {ENCODER + names[key] if key in names else key: value for key, value in state.items()}


def _efficientnet(ours: Iterable[str]) -> dict[str, str]:
    """Every name that others have for an array, to MONAI's."""
    ours = list(ours)
    blocks = list(dict.fromkeys(match[0] for key in ours if (match := re.match(r"_blocks\.\d+\.\d+\.", key))))
    last = 1 + max(int(block.split(".")[1]) for block in blocks)
    prefixes = {name + ".": new + "." for name, new in TIMM_ENDS.items()}
    prefixes |= {"features.0.0.": "_conv_stem.", "features.0.1.": "_bn0."}
    prefixes |= {f"features.{last + 1}.0.": "_conv_head.", f"features.{last + 1}.1.": "_bn1."}
    counts: dict[int, int] = {}
    for number, block in enumerate(blocks):
        stage = int(block.split(".")[1])
        place = counts[stage] = counts.get(stage, -1) + 1
        timm, vision = (TIMM, TORCHVISION) if stage else (TIMM_FIRST, TORCHVISION_FIRST)
        prefixes[f"_blocks.{number}."] = block
        for part, of_timm, of_vision in zip(PARTS, timm, vision, strict=True):
            if of_timm:
                prefixes[f"blocks.{stage}.{place}.{of_timm}."] = f"{block}{part}."
                prefixes[f"features.{stage + 1}.{place}.block.{of_vision}."] = f"{block}{part}."
    names = {key: key for key in ours}
    for prefix, new in prefixes.items():
        names |= {prefix + key.removeprefix(new): key for key in ours if key.startswith(new)}
    return names
