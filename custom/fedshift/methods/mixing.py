"""Draws and soft targets that the methods which mix samples share."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def beta(alpha: float, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Beta(α, α) draws, float32. torch's own take no generator."""
    seed = int(torch.randint(2**62, (), generator=rng))
    return torch.from_numpy(np.asarray(np.random.default_rng(seed).beta(alpha, alpha, shape), np.float32))


def soft(y: Tensor, n_classes: int) -> Tensor:
    """Targets as class shares: (B,) -> (B, K), (B, H, W) -> (B, K, H, W); soft ones stay as they are."""
    if y.is_floating_point():
        return y
    return functional.one_hot(y, n_classes).movedim(-1, 1).float()


def blend(a: Tensor, b: Tensor, share: Tensor) -> Tensor:
    """``share * a + (1 - share) * b`` with one share for each sample, (B,)."""
    share = share.to(a).reshape(-1, *[1] * (a.dim() - 1))
    return share * a + (1 - share) * b
