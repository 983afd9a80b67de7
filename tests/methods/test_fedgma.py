"""FedGMA: the paper's mask and the released one element by element, and what is common to all sites."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Sent, server_context

from fedshift.methods import fedgma


def by_hand(
    old: np.ndarray, models: np.ndarray, counts: list[int], *, tau: float, lr: float, released: bool
) -> list[float]:
    """The formulas in plain numbers, one element after another."""
    out = []
    for i, w in enumerate(old.tolist()):
        changes = [float(model[i]) - w for model in models]
        agreement = abs(sum((c > 0) - (c < 0) for c in changes)) / len(changes)
        mean = sum(n * c for n, c in zip(counts, changes, strict=True)) / sum(counts)
        if released:
            out.append(w + tau * ((1 - agreement) if agreement >= tau else 0.0) * mean)
        else:
            out.append(w + lr * (1.0 if agreement >= tau else agreement) * mean)
    return out


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("tau", [0.2, 0.5, 0.6, 1.0])
def test_a_round_is_the_formulas(variant: str, tau: float) -> None:
    rng = np.random.default_rng(0)
    old, models = rng.normal(size=40), rng.normal(size=(5, 40))
    models[:, :3] = old[:3]  # elements that no site moves
    counts = [50, 10, 20, 5, 15]
    server = fedgma.Server(fedgma.Config.parse({"variant": variant, "tau": tau, "server_lr": 0.7}, where=""))
    sent = [Sent(str(i), {"w": w}, n) for i, (w, n) in enumerate(zip(models, counts, strict=True))]
    got = server.combine({"w": old}, sent, server_context("w"))["w"]
    expected = by_hand(old, models, counts, tau=tau, lr=0.7, released=variant == "released")
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_the_masks_of_full_and_no_agreement() -> None:
    agreement = np.array([0.0, 1 / 3, 0.5, 1.0])
    np.testing.assert_allclose(fedgma.mask(agreement, tau=0.4, released=False), [0, 1 / 3, 1, 1])
    np.testing.assert_allclose(fedgma.mask(agreement, tau=0.4, released=True), [0, 0, 0.5, 0])


def test_it_follows_what_the_sites_have_in_common() -> None:
    """Quadratics with a common optimum in x and optima that differ in sign in y, one site's being far away."""
    optima = np.array([[1.0, 9.0], [1.0, -1.0], [1.0, -1.0], [1.0, 1.0]])
    ends = {}
    for tau in (0.0, 1.0):
        server, weights = fedgma.Server(fedgma.Config(tau=tau)), {"w": np.zeros(2)}
        for _ in range(10):
            sent = [Sent(str(i), {"w": weights["w"] + 0.3 * (best - weights["w"])}) for i, best in enumerate(optima)]
            weights = server.combine(weights, sent, server_context("w"))
        ends[tau] = weights["w"]
    assert ends[0.0][0] == pytest.approx(ends[1.0][0]) and ends[1.0][0] > 0.9
    assert ends[0.0][1] > 1 and abs(ends[1.0][1]) < 0.01, "FedAvg follows the far site, the mask does not"
