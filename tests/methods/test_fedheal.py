"""FedHEAL against the authors' rule in plain numbers; absent sites; and elements that a site moves back and forth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from conftest import Sent, server_context
from torch import nn

from fedshift.methods import fedheal

Model = dict[str, list[float]]


class ByHand:
    """The authors' ``federated_model.py`` for sites that all take part, in plain numbers, for trainable tensors."""

    def __init__(self, sites: int, *, tau: float, beta: float) -> None:
        self.tau, self.beta, self.round = tau, beta, 0
        self.history: list[dict[tuple[str, int], float]] = [{} for _ in range(sites)]
        self.weight, self.delta = [1 / sites] * sites, [0.0] * sites

    def combine(self, old: Model, models: Sequence[Model]) -> Model:
        masks: list[dict[tuple[str, int], float]] = []
        distances = []
        for site, model in enumerate(models):
            mask, length = {}, 0.0
            for key in old:
                squares = 0.0
                for i, w in enumerate(old[key]):
                    diff = w - model[key][i]
                    share = self.history[site].get((key, i), 0.0)
                    consistency = share if diff >= 0 else 1 - share
                    mask[key, i] = 1.0 if self.round == 0 or consistency > self.tau else 0.0
                    squares += (diff * mask[key, i]) ** 2
                    up = 1.0 if diff >= 0 else 0.0
                    self.history[site][key, i] = (share * self.round + up) / (self.round + 1)
                length += squares**0.5
            masks.append(mask)
            distances.append(length)
        for site, distance in enumerate(distances):
            self.delta[site] = (1 - self.beta) * self.delta[site] + self.beta * distance / sum(distances)
            self.weight[site] += self.delta[site]
        shares = [weight / sum(self.weight) for weight in self.weight]
        new: Model = {}
        for key in old:
            new[key] = []
            for i, w in enumerate(old[key]):
                below = sum(p * mask[key, i] for p, mask in zip(shares, masks, strict=True))
                if below > 0:
                    for p, mask, model in zip(shares, masks, models, strict=True):
                        w = w - (old[key][i] - model[key][i]) * mask[key, i] * p * mask[key, i] / below
                new[key].append(w)
        self.round += 1
        return new


def started(**options: float) -> fedheal.Server:
    server = fedheal.Server(fedheal.Config(**options))
    server.start(nn.Identity(), server_context(round=0))
    return server


@pytest.mark.parametrize(("tau", "beta"), [(0.3, 0.4), (0.6, 1.0), (0.95, 0.1)])
def test_six_rounds_are_the_authors_rule_and_go_on_from_a_saved_state(tau: float, beta: float) -> None:
    rng = np.random.default_rng(0)
    weights = {"a": rng.normal(size=6), "b": rng.normal(size=(2, 2))}
    by_hand, server = ByHand(3, tau=tau, beta=beta), started(tau=tau, beta=beta)
    plain: Model = {key: value.flatten().tolist() for key, value in weights.items()}
    for round_ in range(1, 7):
        models = [{k: v + rng.normal(0.3 * site - 0.2, 0.2, v.shape) for k, v in weights.items()} for site in range(3)]
        plain = by_hand.combine(plain, [{k: v.flatten().tolist() for k, v in model.items()} for model in models])
        new = fedheal.Server(server.config)
        new.state = {name: array.copy() for name, array in server.state.items()}
        server = new
        sent = [Sent(site, model) for site, model in zip("ABC", models, strict=True)]
        weights = server.combine(weights, sent, server_context("a", "b", round=round_, rounds=6))
        for key, value in weights.items():
            np.testing.assert_allclose(value.flatten(), plain[key], rtol=1e-10, err_msg=f"round {round_}: {key}")
    assert server.state["falls.a"].dtype == np.int16


def test_an_element_that_a_site_moves_back_and_forth_is_dropped() -> None:
    """Both sites pull x their way; only B keeps its direction, so only B moves it."""
    server, weights = started(tau=0.6, beta=0), {"w": np.zeros(1)}
    moved = []
    for round_ in range(1, 9):
        swing = 1.0 if round_ % 2 else -1.0
        sent = [Sent("A", {"w": weights["w"] + 5 * swing}), Sent("B", {"w": weights["w"] + 0.1})]
        new = server.combine(weights, sent, server_context("w", round=round_, rounds=8))
        moved.append(float(new["w"][0] - weights["w"][0]))
        weights = new
    np.testing.assert_allclose(moved[3:], 0.1, rtol=1e-9)


def test_an_element_that_every_site_drops_stays() -> None:
    server, weights = started(tau=0.9, beta=0), {"w": np.zeros(1)}
    for change in (1.0, -1.0):
        weights = server.combine(weights, [Sent("A", {"w": weights["w"] + change})], server_context("w", rounds=2))
    assert weights["w"] == 1.0


def test_far_sites_gain_weight_and_absent_ones_keep_theirs() -> None:
    server, weights = started(tau=0, beta=0.5), {"w": np.zeros(2)}
    for _ in range(5):
        sent = [Sent("A", {"w": np.array([3.0, 0])}), Sent("B", {"w": np.array([0, 1.0])})]
        server.combine(weights, sent, server_context("w", rounds=5))
    p = server.state["p"]
    assert p[0] > 2 * p[1] and server.state["rounds"].tolist() == [5, 5, 0]
    server.combine(weights, [Sent("A", {"w": np.zeros(2)}), Sent("C", {"w": np.ones(2)})], server_context("w"))
    assert server.state["p"][1] == p[1] and server.state["p"][2] == pytest.approx(1 / 2 + 0.5)
    assert not any(name.startswith("falls") for name in server.state), "nothing is dropped, so nothing is counted"


def test_buffers_are_averaged_with_the_weights() -> None:
    old = {"w": np.float32([0]), "bn.running_var": np.float32([1])}
    sent = [
        Sent("A", {"w": np.float32([3]), "bn.running_var": np.float32([4])}),
        Sent("B", {"w": np.float32([1]), "bn.running_var": np.float32([2])}),
    ]
    out = started(beta=1).combine(old, sent, server_context("w"))
    p = np.array([1 / 2 + 0.75, 1 / 2 + 0.25]) / 2
    assert out["bn.running_var"] == pytest.approx(p @ [4, 2]) and out["w"] == pytest.approx(p @ [3, 1])
    sent = [Sent(site.site, site.weights) for site in sent]
    still = started().combine(old, [Sent("A", {k: v.copy() for k, v in old.items()})], server_context("w"))
    assert still["w"] == 0, "a round in which no site moved"


def test_a_drawn_site_counts_as_much_whatever_the_number_of_others() -> None:
    old, moved = {"w": np.zeros(2)}, []
    for n in (4, 20, 100):
        sites = tuple(f"s{i:03d}" for i in range(n))
        server = fedheal.Server(fedheal.Config())
        server.start(nn.Identity(), server_context(sites=sites, round=0))
        sent = [Sent(site, {"w": np.array([3.0, 0] if site == "s000" else [0, 1.0])}) for site in sites[:4]]
        moved.append(server.combine(old, sent, server_context("w", sites=sites))["w"])
    share = (1 / 4 + 0.4 * 3 / 6) / 1.4
    np.testing.assert_allclose(moved, [[3 * share, 1 - share]] * 3, rtol=1e-12)


@pytest.mark.parametrize("tau", [0.1, 0.3, 0.6, 0.7])
def test_an_element_that_rises_is_kept_as_one_that_falls(tau: float) -> None:
    for earlier in range(1, 101):
        same_way = np.arange(earlier + 1)
        rises = fedheal.consistent_mask(earlier - same_way, earlier, np.ones(earlier + 1), tau=tau)
        falls = fedheal.consistent_mask(same_way, earlier, -np.ones(earlier + 1), tau=tau)
        assert (rises == falls).all() and rises.tolist() == sorted(rises.tolist()), earlier
        assert rises.sum() == sum(100 * count > round(100 * tau) * earlier for count in same_way.tolist()), earlier
