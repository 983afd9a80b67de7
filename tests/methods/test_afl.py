"""AFL: the exact projection, the order of losses and averages, absent sites, and the worst-off site."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import GOLDEN, Samples, Sent, make_context, make_image_site, server_context, small_image_job
from torch import nn
from torch.nn import functional

from fedshift.federation.in_process import run_in_process
from fedshift.federation.server.coordinator import Coordinator
from fedshift.methods import afl, vm
from fedshift.methods.base import Client
from fedshift.methods.shared.aggregation import project
from fedshift.methods.shared.passes import mean_loss

TABLE = json.loads((GOLDEN / "afl_projection.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", TABLE["projection"], ids=lambda c: str(c["input"]))
def test_the_projection_is_exact(case: dict[str, list[float]]) -> None:
    np.testing.assert_allclose(project(np.array(case["input"])), case["exact_projection"], rtol=1e-10, atol=1e-12)


def test_no_other_point_of_the_set_is_nearer() -> None:
    rng = np.random.default_rng(0)
    for lowest, total in ((0.0, 1.0), (-1.0, 1.0), (-0.3, 0.2), (0.05, 0.6)):
        y = rng.normal(0, 2, 6)
        nearest = project(y, lowest=lowest, total=total)
        assert nearest.sum() == pytest.approx(total) and nearest.min() >= lowest - 1e-12
        others = lowest + (total - 6 * lowest) * rng.dirichlet(np.ones(6) * 0.5, 5000)
        assert ((others - y) ** 2).sum(1).min() >= ((nearest - y) ** 2).sum()


def sent(site: str, w: float, loss: float, n: int = 1, variance: float = 1.0) -> Sent:
    weights = {"w": np.float64([w]), "bn.running_var": np.float64([variance])}
    return Sent(site, weights, n, arrays={"afl": {"loss": np.asarray(loss)}})


def start(counts: Sequence[int], eta: float = 0.1) -> afl.Server:
    server = afl.Server(afl.Config(eta=eta))
    server.receive([Sent(site, {}, n) for site, n in zip("ABC", counts, strict=True) if n], server_context(round=0))
    return server


def close(server: afl.Server, updates: Sequence[Sent], round_: int) -> dict[str, np.ndarray]:
    ctx = server_context("w", round=round_)
    server.receive(updates, ctx)
    return server.combine({"w": np.float64([0]), "bn.running_var": np.float64([1])}, updates, ctx)


def test_the_first_round_averages_by_samples_and_does_not_use_its_losses() -> None:
    server = start([5, 3, 2])
    out = close(server, [sent("A", 1, 9), sent("B", 10, 0), sent("C", 100, 5)], 1)
    assert out["w"] == pytest.approx(0.5 + 3 + 20)
    np.testing.assert_allclose(server.state["lambda"], [0.5, 0.3, 0.2])


def test_lambda_follows_the_losses_before_the_models_are_averaged() -> None:
    server = start([5, 3, 2])
    close(server, [sent("A", 1, 9), sent("B", 10, 0), sent("C", 100, 5)], 1)
    out = close(server, [sent("A", 1, 0.5), sent("B", 10, 0.5), sent("C", 100, 2.0)], 2)
    # λ + 0.1 f = .55, .35, .4, less 0.1 each
    np.testing.assert_allclose(server.state["lambda"], [0.45, 0.25, 0.3])
    assert out["w"] == pytest.approx(0.45 + 2.5 + 30)


def test_absent_sites_keep_lambda_and_the_present_share_what_is_left() -> None:
    server = start([5, 3, 2])
    out = close(server, [sent("A", 1, 1.0), sent("B", 10, 2.0)], 2)
    np.testing.assert_allclose(server.state["lambda"], [0.45, 0.35, 0.2])
    assert out["w"] == pytest.approx((0.45 + 10 * 0.35) / 0.8), "their λ, divided by its sum"


def test_of_many_sites_the_drawn_keep_the_ratio_of_their_lambda() -> None:
    """Were their λ projected onto the simplex, ten of a hundred sites would count nearly alike."""
    drawn = np.array([0.03, 0.01, 0.002])
    np.testing.assert_allclose(afl.shares(drawn, lowest=0.0, all_sites=False), drawn / 0.042)
    np.testing.assert_allclose(afl.shares(np.array([0.0, 0.0]), lowest=0.0, all_sites=False), [0.5, 0.5])
    np.testing.assert_allclose(afl.shares(np.array([3.0, -1.0]), lowest=-1.0, all_sites=False).sum(), 1)


@pytest.mark.parametrize("method", ["afl", "gen_afl", "vm"])
def test_sites_can_be_drawn(method: str, three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    """Only the drawn sites send their loss, and λ of the others stays."""
    job = small_image_job(method, "federation.sites_per_round=2", "schedule.rounds=3")
    lambdas: list[np.ndarray] = []

    def note(coordinator: Coordinator) -> None:
        state = dict(coordinator.model.halves)[method].state
        if "lambda" in state:
            lambdas.append(state["lambda"])

    results = run_in_process(job, three_image_sites, tmp_path, on_progress=note).results
    drawn = [sorted(name for name, site in record.sites.items() if site.steps) for record in results.rounds]
    assert [len(sites) for sites in drawn] == [2, 2, 2] and drawn[1] != drawn[2]
    assert [record.rejected for record in results.rounds] == [[], [], []] and results.final is not None
    if method != "vm":
        assert {tuple(np.flatnonzero(a != b)) for a, b in pairwise(lambdas)} - {()} == {
            tuple("ABC".index(site) for site in sites) for sites in drawn[1:]
        }
        np.testing.assert_allclose([value.sum() for value in lambdas], 1)


def test_a_site_that_missed_the_statistics_round_counts_as_an_average_one() -> None:
    np.testing.assert_allclose(start([6, 0, 2]).state["lambda"], [0.5, 1 / 3, 1 / 6])


def test_the_loss_is_the_mean_over_samples_in_evaluation_mode_and_leaves_no_trace() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5), nn.Linear(2, 3))
    net.train()
    ctx = make_context("afl", net)
    x, y = torch.randn(5, 2), torch.tensor([0, 1, 2, 2, 1])  # chunks of 2, 2 and 1
    ctx.run.normalise = lambda x, *, training: x if training else 3 * x
    before = {key: value.clone() for key, value in net.state_dict().items()}
    loss = mean_loss(ctx.run, Samples(x, y))
    assert net.training and all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    with torch.no_grad():
        expected = functional.cross_entropy(net.eval()(3 * x), y)
    assert loss == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize(
    ("client", "received"),
    [
        (afl.Client(afl.Config()), True),
        (vm.Client(vm.Config()), True),
        (vm.Client(vm.Config(variant="released")), False),
    ],
)
def test_a_site_sends_the_received_models_loss_and_in_vms_code_the_trained_ones(client: Client, received: bool) -> None:
    net = nn.Linear(2, 3)
    ctx = make_context("afl", net)
    data = Samples(torch.randn(4, 2), torch.tensor([0, 1, 2, 2]))
    before = mean_loss(ctx.run, data)
    client.begin(data, ctx)
    with torch.no_grad():
        net.weight *= 3
    after = mean_loss(ctx.run, data)
    loss = client.end(data, ctx)["loss"]
    assert loss.shape == () and loss.dtype == np.float64 and before != after
    assert float(loss) == (before if received else after)


def losses_after(rounds: int, *, seed: int, eta: float) -> np.ndarray:
    """The three sites' losses (w - m)^2 / 2 after local gradient steps and AFL; eta 0 is FedAvg."""
    rng = np.random.default_rng(seed)
    optima, counts = np.array([0.0, 0.3, 3.0]) + rng.normal(0, 0.1, 3), (40, 40, 8)
    server, w = start(counts, eta), 0.0
    for r in range(1, rounds + 1):
        told = 0.5 * (w - optima) ** 2
        updates = [
            sent(site, w - 0.5 * (w - m), f, n) for site, m, f, n in zip("ABC", optima, told, counts, strict=True)
        ]
        w = float(close(server, updates, r)["w"][0])
    losses: np.ndarray = 0.5 * (w - optima) ** 2
    return losses


@pytest.mark.parametrize("seed", range(3))
def test_the_worst_off_site_is_better_off_than_with_fedavg(seed: int) -> None:
    fair, averaged = (losses_after(100, seed=seed, eta=eta) for eta in (0.1, 0.0))
    assert fair.max() < 0.5 * averaged.max()
    assert fair.max() < 1.2 * 0.5 * 1.5**2, "close to the minimum possible: half-way between the extreme optima"


@pytest.mark.parametrize("case", [c for c in TABLE["lambda_update"] if c["lambda_min"] == 0])
def test_a_step_of_lambda_is_exact(case: dict[str, list[float] | float]) -> None:
    new = afl.next_weights(np.array(case["lambda"]), np.array(case["losses"]), eta=case["eta"], lowest=0)
    np.testing.assert_allclose(new, case["exact_new_lambda"], rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_the_worst_sites_images_are_recognised_better(tmp_path: Path) -> None:
    """Site C is small and its contrast is inverted."""
    shifts = {"A": (1.0, 0.0, 96), "B": (0.9, 5.0, 96), "C": (-0.8, 250.0, 48)}
    data = {
        s: make_image_site(tmp_path / "data", s, seed=3, images=n, gain=g, offset=o) for s, (g, o, n) in shifts.items()
    }
    options = ["network.name=mnist_cnn", "network.options.size=16", "data.mean=[0.4]", "data.std=[0.2]"]
    options += ["schedule.rounds=16", "optimizer.lr=0.03"]

    def worst(names: str, *more: str) -> float:
        results = run_in_process(small_image_job(names, *options, *more, seed=3), data, tmp_path / names).results
        assert results.final is not None
        sites = results.final.last.sites.values()
        return min((splits["val"]["accuracy"] + splits["test"]["accuracy"]) / 2 for splits in sites)

    assert worst("afl", "afl.eta=0.2") > worst("fedavg") + 0.15
