"""Ditto: the global model is FedAvg's bit for bit, without λ the personal one is that of a site alone, and one step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_context, small_image_job
from errors import raises
from torch import nn

from fedshift.federation.in_process import run_in_process
from fedshift.methods import base, ditto
from fedshift.methods.shared.auxiliary import under

from .made import last_weights, run, site_state

ADAM = ("optimizer.name=adam", "optimizer.lr=0.003", "optimizer.keep=true", "optimizer.weight_decay=0.01")
MOMENTUM = ("optimizer.momentum=0.5", "optimizer.keep=true")


def personal(folder: Path, site: str, round_: int) -> dict[str, torch.Tensor]:
    """A site's personal model."""
    return under(ditto.PERSONAL, site_state(folder, site, round_)["methods"]["ditto"])


@pytest.mark.slow
@pytest.mark.parametrize("options", [ADAM, MOMENTUM, ("optimizer.clip_norm=0.5",)], ids=["adam", "momentum", "clip"])
def test_without_lambda_the_personal_model_is_that_of_a_site_alone(
    options: tuple[str, ...], three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    alone = run("single", three_image_sites, tmp_path / "a", *options)
    beside = run("ditto", three_image_sites, tmp_path / "b", "ditto.lam=0", *options)
    for site in "ABC":
        own = site_state(tmp_path / "a", site, 2)["personal"]
        found = personal(tmp_path / "b", site, 2)
        assert own.keys() == found.keys() and all(torch.equal(found[key], value) for key, value in own.items())
    assert alone.final is not None and beside.final is not None
    assert beside.final.last.sites == alone.final.last.sites and set(beside.final.personal) == set("ABC")


@pytest.mark.parametrize("options", [ADAM, MOMENTUM, ("optimizer.clip_norm=0.5",)], ids=["adam", "momentum", "clip"])
@pytest.mark.parametrize("names", ["ditto", "ditto+fedwon"])
def test_one_site_without_lambda_has_the_global_model(
    names: str, options: tuple[str, ...], three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    """Also without norms: FedWon clips the gradients of both, and a norm's unused scale decays in neither."""
    job = small_image_job(names, "ditto.lam=0", "federation.min_sites=1", *options, sites=("A",))
    run_in_process(job, {"A": three_image_sites["A"]}, tmp_path)
    shared, own = last_weights(tmp_path), personal(tmp_path, "A", job.task.schedule.rounds)
    assert shared.keys() == own.keys() and all(torch.equal(own[key], value) for key, value in shared.items())


def test_a_step_is_the_papers() -> None:
    """v ← v − η (∇f(v) + λ (v − w)), and w takes no part in it."""
    net = nn.Linear(2, 3).double()
    w, v = net.weight.detach().clone(), torch.randn(3, 2, dtype=torch.float64)
    client, ctx = ditto.Client(ditto.Config(lam=0.7)), make_context("ditto", net)
    ctx.run.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ctx.state["own.weight"], ctx.state["own.bias"] = v, net.bias.detach().clone()
    client.receive({}, ctx)
    assert torch.equal(net.weight, v), "the personal model is what is scored"
    client.begin(None, ctx)  # type: ignore[arg-type]
    assert torch.equal(net.weight, w)
    x, y = torch.randn(4, 2, dtype=torch.float64), torch.tensor([0, 1, 2, 1])
    client.loss(base.Batch(x, y), net(x), torch.zeros(()), ctx)
    client.gradients(ctx)
    client.end(None, ctx)  # type: ignore[arg-type]
    logits = (x @ v.T + net.bias).detach().numpy()
    error = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True) - np.eye(3)[y]) / 4
    expected = v.numpy() - 0.1 * (error.T @ x.numpy() + 0.7 * (v - w).numpy())
    np.testing.assert_allclose(ctx.state["own.weight"], expected, rtol=1e-10)
    assert torch.equal(net.weight, w) and net.weight.grad is None


def test_a_personal_model_that_diverged_is_not_kept() -> None:
    net = nn.Linear(2, 3)
    client, ctx = ditto.Client(ditto.Config()), make_context("ditto", net)
    ctx.run.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ctx.state["own.weight"], ctx.state["own.bias"] = torch.zeros(3, 2), torch.zeros(3)
    client.begin(None, ctx)  # type: ignore[arg-type]
    client.loss(
        base.Batch(torch.full((4, 2), 1e38), torch.tensor([0, 1, 2, 1])), torch.zeros(4, 3), torch.zeros(()), ctx
    )
    for _ in range(9):
        client.gradients(ctx)
    with raises("not-finite", naming=("site A", "round 1", "ditto.lam")):
        client.end(None, ctx)  # type: ignore[arg-type]
    assert not any(value.any() for value in ctx.state.values()), "the last round's is still there"


@pytest.mark.slow
def test_the_larger_lambda_the_nearer_to_the_global_model(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    far = []
    for lam in (0, 1, 10):
        folder = tmp_path / str(lam)
        run("ditto", three_image_sites, folder, f"ditto.lam={lam}")
        shared = last_weights(folder)
        own = personal(folder, "A", 2)
        far.append(sum(float((own[key] - shared[key]).square().sum()) for key in own if key.endswith("weight")))
    assert far[2] < far[1] < far[0]
