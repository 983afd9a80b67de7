"""Maximum mean discrepancy, by its formula and by what it must be 0 for."""

from __future__ import annotations

import torch

from fedshift.methods.shared.mmd import BANDWIDTHS, mmd


def test_it_is_the_formula_term_by_term() -> None:
    x, y = (torch.randn(n, 3, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in (4, 5))
    both = torch.cat([x, y])
    squared = [[float(((a - b) ** 2).sum()) for b in both] for a in both]
    width = sum(map(sum, squared)) / (9 * 8) / 4

    def kernel(i: int, j: int) -> float:
        return sum(float(torch.exp(torch.tensor(-squared[i][j] / (2**k * width)))) for k in range(BANDWIDTHS))

    first, second = range(4), range(4, 9)
    within = (
        sum(kernel(i, j) for i in first for j in first) / 16 + sum(kernel(i, j) for i in second for j in second) / 25
    )
    across = sum(kernel(i, j) for i in first for j in second) / 20
    assert abs(float(mmd(x, y)) - (within - 2 * across)) < 1e-6


def test_equal_sets_have_none_and_points_that_are_all_the_same_too() -> None:
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    assert abs(float(mmd(x, x))) < 1e-6 and float(mmd(x, x + 5)) > 0.1
    assert float(mmd(torch.ones(3, 2), torch.ones(4, 2))) == 0


def test_it_can_be_minimised() -> None:
    x, y = torch.zeros(4, 2), torch.ones(4, 2, requires_grad=True)
    mmd(x, y + torch.randn(4, 2, generator=torch.Generator().manual_seed(1))).backward()  # type: ignore[no-untyped-call]
    assert y.grad is not None and y.grad.isfinite().all() and y.grad.abs().sum() > 0
