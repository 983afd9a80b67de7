"""Where methods can see a network's features: what every network offers besides ``forward``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


@dataclass(frozen=True)
class Stage:
    """A place in a network where features can be seen and changed without touching its code.

    ``module``'s output (or first input) has ``channels`` channels in dimension 1.
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
    """What a network offers to methods besides ``forward``."""

    in_channels: int
    """Channels of the images it takes."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Encoder stages in order; the last one is the bottleneck."""
        ...


class ClassifyingNetwork(Protocol):
    """What a classification network offers besides: ``forward(x) = head(features(x))``.

    A method sees the embedding u (B, d), d = ``head.in_features``, by a forward pre-hook on ``head``.
    """

    head: nn.Linear
