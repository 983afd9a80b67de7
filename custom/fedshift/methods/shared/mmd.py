"""Maximum mean discrepancy between two sets of vectors.

Gretton et al., "A Kernel Two-Sample Test", JMLR 2012. With kernels k_i(a, b) = exp(−|a − b|² / (2^i w)), i = 0 … 4,
where w is the mean squared distance of two different points of x and y together, divided by 4::

    MMD² = Σ_i mean k_i(x, x') + mean k_i(y, y') − 2 mean k_i(x, y)        (biased: a point meets itself, too)
"""

from __future__ import annotations

import torch
from torch import Tensor

BANDWIDTHS = 5


def mmd(x: Tensor, y: Tensor) -> Tensor:
    """MMD² of x (n, d) and y (m, d), a scalar; the bandwidths carry no gradient. Zero if all points are the same."""
    both, n, total = torch.cat([x, y]), len(x), len(x) + len(y)
    # Differences, not a matrix product: the distance of a point to itself is exactly 0.
    squared = torch.cdist(both, both, compute_mode="donot_use_mm_for_euclid_dist").square()
    width = (squared.detach().sum() / (total * total - total) / 4).clamp_min(torch.finfo(squared.dtype).tiny)
    kernel = torch.stack([torch.exp(-squared / (width * 2**i)) for i in range(BANDWIDTHS)]).sum(0)
    return kernel[:n, :n].mean() + kernel[n:, n:].mean() - kernel[:n, n:].mean() - kernel[n:, :n].mean()
