"""Losses of segmentation by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedshift.schema.errors import ConfigError
from fedshift.tasks.precision import precise

SMOOTH = 1e-5

Logits = Tensor | Sequence[Tensor]


def main(logits: Logits) -> Tensor:
    """The logits at full size, which methods see."""
    return logits if isinstance(logits, Tensor) else logits[0]


def dice_loss(logits: Tensor, target: Tensor) -> Tensor:
    """1 − mean over classes of the soft Dice over the whole batch (FedFA's loss; background included).

    ``logits`` (B, K, *spatial); ``target`` (B, *spatial) int64 or soft (B, K, *spatial).
    """
    probability = logits.softmax(1)
    if not target.is_floating_point():
        target = functional.one_hot(target, logits.shape[1]).movedim(-1, 1)
    target = target.to(probability.dtype)
    dims = (0, *range(2, logits.dim()))
    overlap = (probability * target).sum(dims)
    dice = (2 * overlap + SMOOTH) / (probability.sum(dims) + target.sum(dims) + SMOOTH)
    return 1 - dice.mean()


def ce_dice_loss(logits: Tensor, target: Tensor) -> Tensor:
    """(cross-entropy + Dice loss) / 2 (FedFA)."""
    return (functional.cross_entropy(logits, target) + dice_loss(logits, target)) / 2


OWN = {"ce_dice": ce_dice_loss, "dice": dice_loss}


def make_loss(
    name: str, options: Mapping[str, Any], *, n_classes: int, annotated: tuple[int, ...] | None = None
) -> Callable[[Logits, Tensor], Tensor]:
    """A loss by name."""
    if name not in OWN:
        raise ConfigError(f"loss must be one of {', '.join(OWN)}, not {name!r}")

    def loss(logits: Logits, target: Tensor) -> Tensor:
        one = precise(main(logits))
        if annotated is not None:
            rest = [number for number in range(n_classes) if number not in annotated]
            one = torch.cat([one[:, rest].logsumexp(1, keepdim=True), one[:, list(annotated)]], 1)
            places = torch.zeros(n_classes, dtype=torch.int64, device=one.device)
            places[list(annotated)] = torch.arange(1, len(annotated) + 1, device=one.device)
            target = places[target]
        return OWN[name](one, target)

    return loss
