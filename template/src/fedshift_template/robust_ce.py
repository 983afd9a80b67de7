"""Robust cross-entropy: weighs voxels, or pictures, that seem to be labelled wrongly less than cross-entropy does.

The generalised cross-entropy of Zhang and Sabuncu (NeurIPS 2018), for the probability p of the right class::

    (1 - p^q) / q          q → 0 is the cross-entropy, q = 1 the mean absolute error
"""

from __future__ import annotations

from torch import Tensor

OF_PROBABILITIES = True
"""It depends on the softmax's probabilities alone and not on where a voxel lies."""
LEAST = 1e-7


def loss(logits: Tensor, target: Tensor, *, q: float = 0.7) -> Tensor:
    """A scalar, of logits and shares of classes, both (B, K, *spatial) or (B, K)."""
    if not 0 < q <= 1:
        raise ValueError(f"q must be above 0 and at most 1, not {q}")
    p = logits.softmax(1).clamp(min=LEAST)  # the gradient of p^q is infinite at 0
    return (target * (1 - p**q) / q).sum(1).mean()


def loss_of_regions(logits: Tensor, target: Tensor, *, q: float = 0.7) -> Tensor:
    """The same for regions that overlap, each against its complement; both (B, R, *spatial)."""
    if not 0 < q <= 1:
        raise ValueError(f"q must be above 0 and at most 1, not {q}")
    p = logits.sigmoid()
    inside, outside = ((1 - part.clamp(min=LEAST) ** q) / q for part in (p, 1 - p))
    return (target * inside + (1 - target) * outside).mean()
