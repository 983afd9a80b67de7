"""FedDG-GA: the adjustment in plain numbers, the order of losses and averages, absent sites, and a shifted site."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Samples, Sent, make_context, server_context, small_image_job
from torch import nn
from torch.nn import functional

from fedshift.federation.in_process import run_in_process
from fedshift.methods import feddg_ga


def by_hand(
    weights: list[float], before: list[float], after: list[float], *, step: float, released: bool
) -> list[float]:
    """Gap = the aggregate's loss − the own model's; the paper's rule, or that of the authors' ``weight_adjust.py``."""
    gaps = [a - b for a, b in zip(after, before, strict=True)]
    if not released:
        mean = sum(gaps) / len(gaps)
        gaps = [gap - mean for gap in gaps]
    largest = max(abs(gap) for gap in gaps)
    moved = []
    for weight, gap in zip(weights, gaps, strict=True):
        new = weight + (step / 3 if released else step) * gap / largest
        moved.append(max(0.0, min(1.0, new) if released else new))
    return [new / sum(moved) for new in moved]


def sent(site: str, w: float, received: float, trained: float, variance: float = 1.0) -> Sent:
    arrays = {"feddg_ga": {"received": np.asarray(received), "trained": np.asarray(trained)}}
    return Sent(site, {"w": np.float64([w]), "bn.running_var": np.float64([variance])}, arrays=arrays)


def started(sites: Sequence[str] = "ABC", **options: object) -> feddg_ga.Server:
    server = feddg_ga.Server(feddg_ga.Config.parse(options, where=""))
    server.start(nn.Identity(), server_context(round=0, sites=tuple(sites)))
    return server


def close(
    server: feddg_ga.Server, updates: Sequence[Sent], round_: int, rounds: int = 4, sites: Sequence[str] = "ABC"
) -> dict[str, np.ndarray]:
    ctx = server_context("w", round=round_, rounds=rounds, sites=tuple(sites))
    server.receive(updates, ctx)
    return server.combine({"w": np.float64([0]), "bn.running_var": np.float64([1])}, updates, ctx)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_three_rounds_are_the_rule_with_a_step_that_falls_linearly(variant: str) -> None:
    rng = np.random.default_rng(1)
    received, trained = rng.uniform(0.5, 2, (4, 3)), rng.uniform(0, 1, (4, 3))
    server, weights = started(variant=variant, step=0.6), [1 / 3] * 3
    for round_ in (1, 2, 3, 4):
        updates = [
            sent(s, w, *both)
            for s, w, *both in zip("ABC", (1, 10, 100), received[round_ - 1], trained[round_ - 1], strict=True)
        ]
        out = close(server, updates, round_)
        if round_ > 1:  # its own models were averaged before their gaps are known
            falls = 0.6 * (1 - (round_ - 2) / 4)
            last, now = trained[round_ - 2].tolist(), received[round_ - 1].tolist()
            weights = by_hand(weights, last, now, step=falls, released=variant == "released")
        np.testing.assert_allclose(server.state["weights"], weights, rtol=1e-12)
        assert out["w"] == pytest.approx(np.dot(weights, (1, 10, 100)))


def test_the_site_that_averaging_costs_most_gains_weight_and_none_falls_below_zero() -> None:
    server = started(step=0.9)
    for round_ in range(1, 5):
        close(server, [sent("A", 0, 2.0, 0.1), sent("B", 0, 0.5, 0.4), sent("C", 0, 0.5, 0.5)], round_)
    a, b, c = server.state["weights"]
    assert a > 0.9 and b == pytest.approx(0, abs=0.1) and c == 0
    assert server.state["weights"].sum() == pytest.approx(1)


def test_equal_gaps_change_nothing() -> None:
    assert feddg_ga.adjusted(np.array([0.2, 0.8]), np.array([0.5, 0.5]), step=0.5, released=False).tolist() == [
        0.2,
        0.8,
    ]
    assert feddg_ga.adjusted(np.array([0.2, 0.8]), np.zeros(2), step=0.5, released=True).tolist() == [0.2, 0.8]


def test_a_site_without_a_gap_keeps_its_weight() -> None:
    server = started("ABCD")
    close(server, [sent("A", 0, 0, 0.1), sent("B", 0, 0, 0.5), sent("C", 0, 0, 0.5)], 1, sites="ABCD")
    updates = [sent("A", 1, 2.0, 0), sent("B", 10, 0.6, 0), sent("C", 100, 0.7, 0), sent("D", 1000, 9.0, 0)]
    out = close(server, updates, 2, sites="ABCD")
    a, b, c, d = server.state["weights"]
    assert d == 1 / 4 and a + b + c == pytest.approx(3 / 4) and a > 1 / 4
    assert out["w"] == pytest.approx(a + 10 * b + 100 * c + 1000 * d)
    out = close(server, [sent("C", 10, 0.5, 0), sent("D", 100, 9.0, 0)], 3, sites="ABCD")
    assert server.state["weights"].tolist() == [a, b, c, d], "two gaps are too few"
    assert out["w"] == pytest.approx(np.average((10, 100), weights=(c, d)))


def adjustment(names: Sequence[str], known: Sequence[str], gaps: Sequence[float], **options: object) -> np.ndarray:
    """Weights after one step, if these sites' gaps are known."""
    server = started(names, **options)
    close(server, [sent(name, 0, 0, 0.0) for name in known], 1, sites=names)
    close(server, [sent(name, 0, gap, 0) for name, gap in zip(known, gaps, strict=True)], 2, sites=names)
    weights: np.ndarray = server.state["weights"]
    return weights


@pytest.mark.parametrize("n", [3, 6, 20])
@pytest.mark.parametrize("drawn", [None, 3])
def test_a_step_moves_the_same_share_of_the_mean_weight_for_any_number_of_sites(n: int, drawn: int | None) -> None:
    rng, names = np.random.default_rng(n), [f"s{i:02d}" for i in range(n)]
    for _ in range(20):
        gaps = rng.normal(size=drawn or n)
        excess = gaps - gaps.mean()
        moved = np.maximum(1 + 0.6 * excess / np.abs(excess).max(), 0) / n
        expected = np.full(n, 1 / n)
        expected[: len(gaps)] = moved * len(gaps) / n / moved.sum()
        found = adjustment(names, names[: len(gaps)], gaps.tolist())
        assert found.min() > 0
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_two_known_gaps_move_weights_only_as_released() -> None:
    for apart in (1.0, 1e-9, 0.0):
        assert (adjustment("ABC", "AB", [0.5, 0.5 + apart]) == 1 / 3).all()
    far, near = (adjustment("ABC", "AB", [0.5, 0.5 + apart], variant="released") for apart in (1.0, 1e-9))
    assert far[1] - far[0] > 0.01 and near[1] - near[0] == pytest.approx(0, abs=1e-9)


def test_a_site_sends_the_losses_before_and_after_training() -> None:
    net = nn.Linear(2, 3)
    rng = torch.Generator().manual_seed(0)
    own = Samples(torch.randn(6, 2, generator=rng), torch.arange(6) % 3)
    data = Samples(torch.randn(4, 2, generator=rng), validation=own)
    client, ctx = feddg_ga.Client(feddg_ga.Config()), make_context("feddg_ga", net)
    before = float(functional.cross_entropy(net(own.x), own.y).detach())
    client.begin(data, ctx)
    with torch.no_grad():
        net.weight += 1
    arrays = client.end(data, ctx)
    assert float(arrays["received"]) == pytest.approx(before, rel=1e-6)
    assert float(arrays["trained"]) == pytest.approx(
        float(functional.cross_entropy(net(own.x), own.y).detach()), rel=1e-6
    )
    assert arrays.keys() == client.up(net).keys()


@pytest.mark.slow
def test_a_run_gives_weight_to_the_shifted_site(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_image_job("feddg_ga", "feddg_ga.step=0.5", "schedule.rounds=4")
    run = run_in_process(job, three_image_sites, tmp_path)
    weights = dict(run.model.halves)["feddg_ga"].state["weights"]
    assert weights.sum() == pytest.approx(1) and weights.min() >= 0 and np.ptp(weights) > 0.05
