"""GroupDRO: the authors' step, weights that follow the losses and persist, and the worst site."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import golden, make_context, small_image_job, train_batches
from torch.nn import functional

from fedshift.federation.in_process import PooledSite, run_pooled
from fedshift.federation.site.site import SiteOptions
from fedshift.federation.site.state import StateStore
from fedshift.methods import base, groupdro, irm, mmrex, vrex
from fedshift.methods.shared.domains import site_losses
from fedshift.tasks.kinds import build_task

from .domains import ERM, fitted, golden_step, losses, training_of, turned


@pytest.mark.parametrize("sites", [3, 1])
def test_a_step_is_the_authors(sites: int) -> None:
    g, which = golden("dg_objectives"), "allenvs" if sites == 3 else "env0only"
    loss, ctx = golden_step(groupdro.Client(groupdro.Config()), "groupdro_eta0.01", sites)
    assert loss == pytest.approx(float(g[f"groupdro_eta0.01:{which}:weighted_loss"]), rel=1e-9)
    np.testing.assert_allclose(ctx.state["log_q"].exp(), g[f"groupdro_eta0.01:{which}:q"], rtol=1e-9)


def test_losses_are_those_of_each_site_and_soft_targets_count() -> None:
    rng = torch.Generator().manual_seed(0)
    logits, y = torch.randn(6, 3, generator=rng), torch.tensor([0, 1, 2, 2, 1, 0])
    run = make_context("groupdro").run
    each = torch.stack([functional.cross_entropy(logits[i : i + 2], y[i : i + 2]) for i in (0, 2, 4)])
    hard = site_losses(base.Batch(torch.zeros(6), y), logits, run)
    soft = site_losses(base.Batch(torch.zeros(6), functional.one_hot(y, 3).float()), logits, run)
    torch.testing.assert_close(hard, each)
    torch.testing.assert_close(soft, each)
    with pytest.raises(ValueError, match=r"batch of 4 .* 3 sites"):
        site_losses(base.Batch(torch.zeros(4), y[:4]), logits[:4], run)


def test_sites_of_one_domain_share_a_loss_and_a_part_of_the_batch(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    job = small_image_job("groupdro", "domains={near: [A, B]}", "schedule.rounds=1")
    run_pooled(job, three_image_sites, tmp_path)
    state = StateStore(tmp_path / "site_state" / "all sites").before(2)
    assert state is not None and state.methods["groupdro"]["log_q"].shape == (2,), "two domains, not three sites"
    trainer = PooledSite(job, three_image_sites, SiteOptions(tmp_path / "other"))
    x, _ = next(train_batches(training_of(trainer), batch_size=8, order=torch.Generator()))
    site_of = {
        image.numpy().tobytes(): site
        for site, folder in three_image_sites.items()
        for images, _ in build_task(job).open(folder, site).chunks()
        for image in images
    }
    found = [site_of[image.numpy().tobytes()] for image in x]
    assert set(found[:8]) == {"A", "B"} and found[8:] == ["C"] * 8


def test_weights_go_on_in_a_new_object_and_rest_in_a_replay() -> None:
    logits = torch.tensor([[0.0, 0, 3], [0, 0, 0], [3, 0, 0]])
    batch, ctx = base.Batch(torch.zeros(3), torch.zeros(3, dtype=torch.int64)), make_context("groupdro")
    f = site_losses(batch, logits, ctx.run).double()
    for step in (1, 2, 3):
        groupdro.Client(groupdro.Config(eta=0.5)).loss(batch, logits, torch.zeros(()), ctx)
        torch.testing.assert_close(ctx.state["log_q"].exp(), torch.softmax(0.5 * step * f, 0))
    before = ctx.state["log_q"].clone()
    ctx.run.replay = True
    groupdro.Client(groupdro.Config(eta=0.5)).loss(batch, logits, torch.zeros(()), ctx)
    assert torch.equal(ctx.state["log_q"], before)


def test_a_site_that_falls_far_behind_comes_back() -> None:
    log_q = torch.full((3,), -np.log(3), dtype=torch.float64)
    log_q = groupdro.reweigh(log_q, torch.tensor([2000.0, 0, 0]), eta=1)
    assert log_q.exp().tolist() == [1, 0, 0]  # in float64 the other weights are 0 by now
    log_q = groupdro.reweigh(log_q, torch.tensor([0.0, 4000, 0]), eta=1)
    torch.testing.assert_close(log_q.exp(), torch.tensor([0.0, 1, 0], dtype=torch.float64))
    assert torch.isfinite(log_q).all()


@pytest.mark.parametrize(
    "client",
    [
        groupdro.Client(groupdro.Config(eta=0)),
        irm.Client(irm.Config(weight=0)),
        vrex.Client(vrex.Config(weight=0)),
        mmrex.Client(mmrex.Config(lambda_min=1 / 3)),
    ],
    ids=lambda client: type(client).__module__,
)
def test_without_its_strength_a_reference_is_the_mean_over_sites(client: base.Client) -> None:
    x, y = turned(0)
    torch.testing.assert_close(fitted(client, x, y).weight, fitted(ERM, x, y).weight, rtol=1e-4, atol=1e-5)


def test_the_worst_site_gains() -> None:
    x, y = turned(0)
    robust, mean = (losses(fitted(c, x, y), x, y) for c in (groupdro.Client(groupdro.Config(eta=0.1)), ERM))
    assert robust.max() < mean.max() - 0.05 and robust.mean() > mean.mean()
