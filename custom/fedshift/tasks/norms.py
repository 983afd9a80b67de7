"""Which modules of a network are normalisation layers."""

from __future__ import annotations

from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

Norms = Literal["batch", "all"]
"""``batch``: batch norm and modules with the buffers running_mean and running_var; ``all``: all other norms too."""


def is_norm(module: nn.Module, norms: Norms) -> bool:
    """Whether a module is a normalisation layer, by its type or by its running statistics."""
    buffers = {name for name, _ in module.named_buffers(recurse=False)}
    if isinstance(module, _BatchNorm) or {"running_mean", "running_var"} <= buffers:
        return True
    return norms == "all" and isinstance(module, nn.GroupNorm | nn.LayerNorm | nn.RMSNorm | _InstanceNorm)
