"""FedOMG: the weights minimise the convex objective, as the authors' SGD on logits does; no site is moved against."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import Sent, server_context
from scipy.optimize import minimize

from fedshift.methods import fedomg
from fedshift.methods.shared.aggregation import BLOCK, inner_products


def objective(products: np.ndarray, shares: np.ndarray, gamma: np.ndarray, kappa: float) -> float:
    """<g_γ, g> + κ ‖g‖ ‖g_γ‖ with ε under the roots."""
    mean = (shares @ products @ shares + fedomg.EPS) ** 0.5
    return float(gamma @ products @ shares + kappa * mean * (gamma @ products @ gamma + fedomg.EPS) ** 0.5)


def scaled(changes: np.ndarray) -> np.ndarray:
    products = changes @ changes.T
    return products / np.diag(products).mean()


@pytest.mark.parametrize("kappa", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(4))
def test_no_other_weights_are_better(seed: int, kappa: float) -> None:
    rng = np.random.default_rng(seed)
    products, shares = scaled(rng.normal(0.3, 1, (5, 7))), rng.dirichlet(np.ones(5))
    gamma = fedomg.matched(products, shares, kappa=kappa)
    assert gamma.min() >= 0 and gamma.sum() == pytest.approx(1)
    best = objective(products, shares, gamma, kappa)
    others = [*rng.dirichlet(np.ones(5) * 0.3, 3000), *np.eye(5), *rng.dirichlet(50 * gamma + 1e-3, 1000)]
    assert min(objective(products, shares, other, kappa) for other in others) >= best - 1e-9


@pytest.mark.parametrize("kappa", [0.5, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_many_sites_whose_changes_span_few_dimensions_get_the_minimum(seed: int, kappa: float) -> None:
    rng, sites = np.random.default_rng(seed), 20
    changes = (0.3 * rng.normal(size=5) + rng.normal(size=(sites, 5))) * np.exp(rng.normal(size=(sites, 1)))
    products, shares = scaled(changes), np.full(sites, 1 / sites)
    best = minimize(
        lambda gamma: objective(products, shares, gamma, kappa),
        shares,
        bounds=[(0, 1)] * sites,
        constraints={"type": "eq", "fun": lambda gamma: gamma.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 2000},
    ).fun
    found = objective(products, shares, fedomg.matched(products, shares, kappa=kappa), kappa)
    assert found == pytest.approx(best, rel=1e-6)


def authors(changes: np.ndarray, kappa: float, steps: int) -> np.ndarray:
    """The direction of the released code: SGD with momentum on the logits of γ, the best of all steps."""
    products = torch.from_numpy(changes @ changes.T)
    products = products / torch.diag(products).mean()
    mean = products.mean(1)
    radius = kappa * (mean.mean() + fedomg.EPS).sqrt()
    logits = torch.zeros(len(changes), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=2.5, momentum=0.5)
    best, found = np.inf, logits.detach().clone()
    for _ in range(steps):
        optimizer.zero_grad()
        gamma = logits.softmax(0)
        value = gamma @ mean + radius * (gamma @ products @ gamma + fedomg.EPS).sqrt()
        if value.item() < best:
            best, found = value.item(), logits.detach().clone()
        value.backward()
        optimizer.step()
    gamma = found.softmax(0)
    pull = radius / (gamma @ products @ gamma + fedomg.EPS).sqrt()
    weights = (1 / len(changes) + gamma * pull) / (1 + kappa**2)
    return weights.detach().numpy() @ changes


@pytest.mark.parametrize("seed", range(3))
def test_a_round_moves_as_the_authors_solver_when_it_is_given_time(seed: int) -> None:
    rng = np.random.default_rng(seed)
    old, changes = rng.normal(size=11), rng.normal(0.4, 1, (4, 11))
    sent = [Sent(str(i), {"w": old + change}, 10 * i + 1) for i, change in enumerate(changes)]
    server = fedomg.Server(fedomg.Config(kappa=0.4, server_lr=0.5 / (1 + 0.4**2)))
    got = server.combine({"w": old}, sent, server_context("w"))["w"]
    np.testing.assert_allclose(got, old + 0.5 * authors(changes, 0.4, 1000), rtol=0, atol=2e-3)


def test_a_site_that_the_mean_moves_against_is_not_moved_against() -> None:
    changes = np.array([[1.0, 0.2], [1.0, 0.1], [-0.9, 0.4]])
    old = {"w": np.zeros(2)}
    sent = [Sent(str(i), {"w": change}) for i, change in enumerate(changes)]
    along = changes @ changes.mean(0)
    got = fedomg.Server(fedomg.Config(kappa=0.9)).combine(old, sent, server_context("w"))["w"]
    assert along.min() < 0 < (changes @ got).min()


def test_sites_that_agree_move_by_one_plus_kappa_and_without_changes_nothing_moves() -> None:
    old = {"w": np.zeros(3)}
    sent = [Sent(str(i), {"w": np.array([1.0, 2.0, 3.0])}) for i in range(3)]
    got = fedomg.Server(fedomg.Config(kappa=0.5)).combine(old, sent, server_context("w"))["w"]
    np.testing.assert_allclose(got, np.array([1.0, 2.0, 3.0]) * 1.5, rtol=1e-9)
    still = [Sent(str(i), {"w": np.zeros(3)}) for i in range(3)]
    np.testing.assert_array_equal(fedomg.Server(fedomg.Config()).combine(old, still, server_context("w"))["w"], 0)


def test_changes_that_cancel_do_not_blow_up() -> None:
    changes = np.array([[1.0, 0.0], [-1.0, 0.0]])
    found = fedomg.coefficients(changes @ changes.T, np.array([0.5, 0.5]), kappa=0.9)
    assert np.abs(found).max() < 2


def test_inner_products_are_over_all_trainable_tensors() -> None:
    rng = np.random.default_rng(0)
    shapes = {"a": (BLOCK + 10,), "b": (3, 5), "bn.running_mean": (4,)}
    old = {key: rng.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}
    sent = [Sent(s, {k: v + rng.normal(size=v.shape).astype(np.float32) for k, v in old.items()}) for s in "ABC"]
    changes = np.stack(
        [np.concatenate([(u.weights[k].astype(float) - old[k]).ravel() for k in ("a", "b")]) for u in sent]
    )
    got = inner_products(old, sent, trainable=frozenset({"a", "b", "kept at the site"}))
    np.testing.assert_allclose(got, changes @ changes.T, rtol=1e-10)
