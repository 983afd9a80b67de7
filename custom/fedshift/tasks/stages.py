"""Hooks for methods: the stages of a network, whose features a method can read and change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


@dataclass(frozen=True)
class Stage:
    """A module of a network whose features a method can read and change through hooks.

    The module's output (or first input) has ``channels`` channels in dimension 1.
    """

    module: nn.Module
    channels: int
    where: Literal["input", "output"] = "output"

    def hook(self, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
        """Replace the stage's features by ``change(features)`` until the handle is removed."""
        if self.where == "output":
            return self.module.register_forward_hook(lambda _m, _i, output: change(output))
        return self.module.register_forward_pre_hook(lambda _m, inputs: (change(inputs[0]), *inputs[1:]))


class StagedNetwork(Protocol):
    """A network whose encoder stages are known to methods."""

    in_channels: int
    """Number of input channels."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Encoder stages in order; the last one is the bottleneck."""
        ...


class ClassifyingNetwork(Protocol):
    """A classification network with ``forward(x) = head(embed(x))``.

    Methods get the embedding u (B, d), d = ``head.in_features``, by a forward pre-hook on ``head``.
    """

    head: nn.Linear
