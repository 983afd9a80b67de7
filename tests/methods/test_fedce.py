"""FedCE against NVFlare's rule in plain numbers; the model without a site; errors; contributions of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Samples, Sent, make_context, make_image_site, server_context, small_image_job
from errors import raises
from torch import Tensor, nn

from fedshift.federation.in_process import run_in_process
from fedshift.federation.server.robust import clip, present, usual_limits
from fedshift.federation.server.run_record import Selection
from fedshift.federation.server.spool import SpooledUpdate
from fedshift.federation.server.update_check import Change
from fedshift.methods import fedce
from fedshift.schema.job import FederationSpec, RobustSpec
from fedshift.schema.messages import Update


class ByHand:
    """NVFlare's ``fedce_assembler.py`` in NumPy over flat changes, its weights divided by their sum at the end."""

    def __init__(self, sites: int, join: str) -> None:
        self.join, self.weights = join, np.full(sites, 1 / sites)
        self.cosines: list[list[float]] = []
        self.errors: list[list[float]] = []

    def close(self, changes: np.ndarray, errors: list[float]) -> np.ndarray:
        together = self.weights @ changes
        row = []
        for weight, own in zip(self.weights, changes, strict=True):
            rest = together - weight * own
            row.append(float(own @ rest / np.linalg.norm(own) / np.linalg.norm(rest)))
        self.cosines.append(row)
        self.errors.append(errors)
        apart, wrong = 1 - np.mean(self.cosines, axis=0), np.mean(self.errors, axis=0)
        apart, wrong = np.clip(apart / apart.sum(), 1e-3, None), np.clip(wrong / wrong.sum(), 1e-3, None)
        both = apart * wrong if self.join == "product" else apart + wrong
        both = np.clip(both / both.sum(), 1e-3, None)
        self.weights = both / both.sum()
        return self.weights


def sent(site: str, weights: dict[str, np.ndarray], error: float) -> Sent:
    return Sent(site, weights, arrays={"fedce": {"error": np.asarray(error)}})


def started(**options: str) -> fedce.Server:
    server = fedce.Server(fedce.Config.parse(options, where=""))
    server.start(nn.Identity(), server_context(round=0))
    return server


@pytest.mark.parametrize("join", ["sum", "product"])
def test_four_rounds_are_the_benchmarks_rule(join: str) -> None:
    rng = np.random.default_rng(0)
    server, by_hand, weights = (
        started(join=join),
        ByHand(3, join),
        {"w": rng.normal(size=8), "bn.running_var": np.ones(1)},
    )
    for round_ in range(1, 5):
        changes = rng.normal([[0.5], [0.5], [-0.3]], 1, (3, 8))
        errors = [1.0] * 3 if round_ == 1 else rng.uniform(0, 1, 3).tolist()
        variances = rng.uniform(0.5, 2, 3)
        updates = [
            sent(site, {"w": weights["w"] + change, "bn.running_var": np.array([variance])}, error)
            for site, change, error, variance in zip("ABC", changes, errors, variances, strict=True)
        ]
        ctx = server_context("w", round=round_)
        old, expected = weights, by_hand.close(changes, errors)
        weights = server.combine(weights, updates, ctx)
        found = server.contributions(ctx)
        assert list(found) == ["A", "B", "C"] and sum(found.values()) == pytest.approx(1)
        np.testing.assert_allclose(list(found.values()), expected, rtol=1e-10)
        np.testing.assert_allclose(weights["w"], old["w"] + expected @ changes, rtol=1e-10)
        np.testing.assert_allclose(weights["bn.running_var"], expected @ variances, rtol=1e-10)
        np.testing.assert_allclose(server.broadcast(ctx)["weights"], expected, rtol=1e-10)


def test_a_site_that_is_absent_has_no_part_and_keeps_its_sums() -> None:
    server, old = started(), {"w": np.zeros(2)}
    moves = {"A": np.array([1.0, 0.0]), "B": np.array([1.0, 0.1]), "C": np.array([-1.0, 1.0])}
    server.combine(old, [sent(site, {"w": move}, 1.0) for site, move in moves.items()], server_context("w"))
    before = server.state["estimate"][2]
    server.combine(old, [sent(site, {"w": moves[site]}, 0.5) for site in "AB"], server_context("w", round=2))
    assert set(server.contributions(server_context())) == {"A", "B"}
    assert server.state["weights"][2] == 0 and server.state["estimate"][2] == before
    assert server.state["rounds"].tolist() == [2, 2, 1]
    server.combine(old, [sent("C", {"w": moves["C"]}, 0.5)], server_context("w", round=3))
    assert server.contributions(server_context()) == {"C": 1.0}


def test_a_site_apart_and_a_site_that_the_others_fail_on_count_more() -> None:
    server, old = started(), {"w": np.zeros(2)}
    apart = [
        sent("A", {"w": np.array([1.0, 0])}, 1),
        sent("B", {"w": np.array([1.0, 0])}, 1),
        sent("C", {"w": np.array([-1.0, 0])}, 1),
    ]
    server.combine(old, apart, server_context("w"))
    assert server.contributions(server_context())["C"] > 0.4
    server, alike = (
        started(),
        [sent(site, {"w": np.array([1.0, 0])}, error) for site, error in zip("ABC", (0.1, 0.1, 0.9), strict=True)],
    )
    server.combine(old, alike, server_context("w"))
    shares = server.contributions(server_context())
    assert shares["C"] > 2 * shares["A"] and shares["A"] == pytest.approx(shares["B"])


class Fixed(nn.Module):
    """Gives logits that are the images, scaled by its weight, with a batch norm's statistics beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.bn = nn.BatchNorm1d(1)
        self.measured: dict[str, Tensor] = {}
        """What it was at its last pass."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, K, …)."""
        self.measured = {key: value.clone() for key, value in self.state_dict().items()}
        return x * self.scale


def test_errors_of_classes_and_of_pixels() -> None:
    y = torch.tensor([0, 1, 2, 2])
    x = nn.functional.one_hot(torch.tensor([0, 1, 1, 2]), 3).float()
    ctx = make_context("fedce", Fixed())
    assert fedce.prediction_error(ctx.run, Samples(x * 0, validation=Samples(x, y))) == pytest.approx(0.25)
    assert fedce.prediction_error(ctx.run, Samples(x, y)) == pytest.approx(0.25), "without validation samples"
    masks = torch.tensor([[[0, 0], [1, 1]], [[0, 1], [1, 1]]])  # class 2 is not in the masks
    guess = torch.tensor([[[0, 0], [0, 1]], [[1, 1], [1, 2]]])
    images = nn.functional.one_hot(guess, 3).movedim(-1, 1).float()
    dense = make_context("fedce", Fixed(), dense=True)
    assert fedce.prediction_error(dense.run, Samples(images, masks)) == pytest.approx(1 - 2 * 3 / (5 + 4))
    empty = Samples(images, masks * 0)
    assert fedce.prediction_error(dense.run, empty) == 1.0


def test_a_site_measures_the_aggregate_without_itself_and_leaves_the_network_as_it_was() -> None:
    """With three sites' models a, b, c and weights p, what A measures is the mean of b and c by p."""
    rng = torch.Generator().manual_seed(0)
    models = [
        {"scale": torch.randn(1, generator=rng), "bn.running_var": torch.rand(1, generator=rng)} for _ in range(3)
    ]
    p = (0.5, 0.2, 0.3)
    net = Fixed()
    names = ("scale", "bn.running_var")
    aggregate = {key: torch.stack([w * m[key] for w, m in zip(p, models, strict=True)]).sum(0) for key in names}
    rest = fedce.without({**net.state_dict(), **aggregate}, {**net.state_dict(), **models[0]}, p[0])
    for key in names:
        torch.testing.assert_close(rest[key], (0.2 * models[1][key] + 0.3 * models[2][key]) / 0.5)
    assert "bn.num_batches_tracked" not in rest

    ctx = make_context("fedce", net, round=2)
    client = fedce.Client(fedce.Config())
    ctx.state = {f"own.{key}": value for key, value in {**net.state_dict(), "scale": torch.tensor([3.0])}.items()}
    del ctx.state["own.bn.num_batches_tracked"]
    client.receive(
        {"weights": np.array([0.6, 0.4, 0.0]), "used": np.ones((3, 2))}, ctx
    )  # 1 = 0.6 · 3 + 0.4 · (−2): the sign turns
    before = {key: value.clone() for key, value in net.state_dict().items()}
    data = Samples(torch.eye(3), torch.arange(3))
    client.begin(data, ctx)
    torch.testing.assert_close(dict(net.state_dict()), before, rtol=0, atol=0)
    assert float(client.end(data, ctx)["error"]) == pytest.approx(1.0), "−2 times the right logits is always wrong"
    torch.testing.assert_close(ctx.state["own.scale"], torch.ones(1))
    client.receive({"weights": np.array([0.0, 1.0, 0.0]), "used": np.ones((3, 2))}, ctx)
    client.begin(data, ctx)
    assert float(client.end(data, ctx)["error"]) == 0.0, "a site without a part measures the aggregate itself"
    first = fedce.Client(fedce.Config())
    first.receive({"weights": np.zeros(3)}, make_context("fedce", net))
    first.begin(data, make_context("fedce", net))
    assert float(first.end(data, make_context("fedce", net))["error"]) == 1.0


@pytest.mark.parametrize("rule", ["usual limits", "norm_clipping"])
def test_a_site_whose_change_was_scaled_down_takes_out_what_is_left_of_it(rule: str, tmp_path: Path) -> None:
    """A moves 12 times as far as B and C, also its running mean; what it measures is the mean of B and C by p."""
    rng = np.random.default_rng(0)
    net = Fixed()
    w = {key: value.numpy().copy() for key, value in net.state_dict().items()}
    trained, updates = {}, []
    for site, far in (("A", 12.0), ("B", 1.0), ("C", 1.1)):
        trained[site] = {**w, "scale": w["scale"] + np.float32(far), "bn.running_mean": np.float32([far])}
        update = Update(
            site,
            1,
            n_samples=10,
            n_steps=5,
            weights=trained[site],
            arrays={"fedce": {"error": np.asarray(rng.random())}},
        )
        updates.append(SpooledUpdate(update, tmp_path / site, Change(far, far)))
    trainable = frozenset(key for key, _ in net.named_parameters())
    if rule == "norm_clipping":
        spec = RobustSpec(rule="norm_clipping", clip=2)
        seen = present(updates, spec, weights=w, trainable=trainable, specs={})
    else:
        federation = FederationSpec(min_sites=1, clip_norm_ratio=5, clip_opposed_ratio=None, clip_sample_ratio=5)
        limits = usual_limits(updates, {"weights": 1.1, "buffers": 1.1}, federation, weights=w, trainable=trainable)
        assert limits is not None
        seen = clip(updates, limits, weights=w, trainable=trainable, specs={})
    server, ctx = started(), server_context(*trainable)
    assert seen[0].scaled.keys() == {"weights", "buffers"}
    aggregate = server.combine(w, seen, ctx)
    _, p_b, p_c = server.state["weights"]

    client, at_site = fedce.Client(fedce.Config()), make_context("fedce", net)
    net.load_state_dict({key: torch.tensor(value) for key, value in trained["A"].items()})
    at_site.run.received = w
    client.receive(server.broadcast(ctx), at_site)
    client.begin(Samples(torch.eye(3), torch.arange(3)), at_site)
    client.end(Samples(torch.eye(3), torch.arange(3)), at_site)
    net.load_state_dict({key: torch.tensor(value) for key, value in aggregate.items()})
    later = make_context("fedce", net, round=2)
    later.state = at_site.state
    client.begin(Samples(torch.eye(3), torch.arange(3)), later)
    for key in ("scale", "bn.running_mean"):
        expected = (p_b * trained["B"][key] + p_c * trained["C"][key]) / (p_b + p_c)
        np.testing.assert_allclose(net.measured[key].numpy(), expected, rtol=1e-5)


def test_layers_of_a_sites_own_stay_as_they_are_when_its_part_is_taken_out() -> None:
    net = Fixed()
    ctx = make_context("fedce", net, round=2)
    ctx.run.received["bn.running_mean"] = np.float32([9.0])
    ctx.state = {f"{kind}.{key}": torch.full((1,), 5.0) for kind in ("own", "received") for key in net.state_dict()}
    client = fedce.Client(fedce.Config())
    client.receive({"weights": np.array([0.5, 0.5, 0.0]), "used": np.full((3, 2), 0.5)}, ctx)
    client.begin(Samples(torch.eye(3), torch.arange(3)), ctx)
    assert net.measured["bn.running_mean"] == 0 and net.measured["scale"] == -3


def test_a_variance_that_rounding_made_negative_is_zero() -> None:
    rest = fedce.without({"bn.running_var": torch.tensor([1e-9])}, {"bn.running_var": torch.tensor([1.0])}, 0.5)
    assert rest["bn.running_var"] == 0


@pytest.mark.slow
def test_a_run_has_contributions_of_every_site(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    run = run_in_process(small_image_job("fedce", "schedule.rounds=3"), three_image_sites, tmp_path)
    half = dict(run.model.halves)["fedce"]
    found = half.contributions(server_context())
    assert set(found) == {"A", "B", "C"} and sum(found.values()) == pytest.approx(1)
    assert len({round(share, 6) for share in found.values()}) == 3
    assert half.state["errors"].max() < 3, "errors of later rounds were measured"


@pytest.mark.slow
def test_sites_fine_tune_a_best_model_that_is_not_the_last(
    three_image_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model comes from its file, which has no weights of sites."""

    def first(selection: Selection, round_: int) -> bool:
        is_first, selection.best = not selection.best, selection.best or round_
        return is_first

    monkeypatch.setattr(Selection, "consider", first)
    job = small_image_job("fedce+pfedavg", "network.options.width=2", "schedule.rounds=2")
    run = run_in_process(job, three_image_sites, tmp_path)
    assert run.best_round == 1 and run.results.final is not None
    assert set(run.results.final.personal) == set("ABC")


def test_one_site_alone_is_refused(tmp_path: Path) -> None:
    make_image_site(tmp_path, "A")
    with raises("method-needs", naming=("fedce", "A")):
        small_image_job("fedce", sites=("A",))
