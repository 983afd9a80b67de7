"""MM-REx: the authors' step, the limits of lambda_min, and the worst site."""

from __future__ import annotations

import pytest
import torch
from conftest import golden

from fedshift.methods import mmrex

from .domains import ERM, fitted, golden_step, losses, turned


@pytest.mark.parametrize("sites", [3, 1])
def test_a_step_is_the_authors(sites: int) -> None:
    which = "allenvs" if sites == 3 else "env0only"
    loss, _ = golden_step(mmrex.Client(mmrex.Config()), "mmrex_lmin-1", sites)
    assert loss == pytest.approx(float(golden("dg_objectives")[f"mmrex_lmin-1:{which}:weighted_loss"]), rel=1e-9)


def test_it_is_the_largest_weighted_sum_that_is_allowed() -> None:
    f = torch.tensor([0.3, 1.7, 0.9])
    corners = torch.full((3, 3), -0.5) + 2.5 * torch.eye(3)
    assert corners.sum(1).tolist() == [1.0, 1.0, 1.0]
    torch.testing.assert_close(mmrex.worst_extrapolation(f, lambda_min=-0.5), (corners @ f).max())
    torch.testing.assert_close(mmrex.worst_extrapolation(f, lambda_min=1 / 3), f.mean())
    torch.testing.assert_close(mmrex.worst_extrapolation(f, lambda_min=0), f.max())


@pytest.mark.parametrize("lambda_min", [-1.0, 0.0])
def test_the_worst_site_gains(lambda_min: float) -> None:
    x, y = turned(0)
    config = mmrex.Config(lambda_min=lambda_min)
    extrapolated, mean = (losses(fitted(c, x, y), x, y) for c in (mmrex.Client(config), ERM))
    assert extrapolated.max() < mean.max() - 0.03 and extrapolated.mean() > mean.mean()
