"""FedOMG: move along a direction that no site's gradient contradicts, found at the server without data.

Nguyen et al., "Federated Domain Generalization with Data-free On-server Matching Gradient", ICLR 2025, Theorem 1. The
sites' changes Δ_k = w_k − w stand for their gradients. The server looks for a direction near the mean change whose
inner product with the worst-off site's change is as large as possible. Its dual is a small convex problem over one
weight a site, of which only the changes' inner products are needed::

    g = Σ_k c_k Δ_k,    g_γ = Σ_k γ_k Δ_k,    γ in the simplex
    γ* = argmin_γ  <g_γ, g> + κ ‖g‖ ‖g_γ‖
    w ← w + η (g + κ ‖g‖/‖g_γ*‖ g_γ*)

Sites that all move alike move the model by 1 + κ times that.

κ is the radius around g as a share of its length. The authors' code divides the step by 1 + κ², as CAGrad's does, on
which it is built (Liu et al., NeurIPS 2021): ``server_lr`` of 0.8 with κ = 0.5 is that.

Deviations from the code:

- It takes 20 steps of SGD on the logits of γ and keeps the best. The problem is convex, so here it is solved, by
  accelerated projected gradient (Beck and Teboulle, "A Fast Iterative Shrinkage-Thresholding Algorithm for Linear
  Inverse Problems", SIAM J. Imaging Sci. 2009; restarted where momentum leads back, O'Donoghue and Candès, Found.
  Comput. Math. 2015), until the duality gap <γ, s> − min_k s_k, with s the slope at γ, is below 10⁻¹⁰.
- It multiplies each Δ_k by n_k/n before everything else, and then takes plain means: for domain generalisation g is K
  times shorter than FedAvg's change (and η 0.5), for other tasks the step is multiplied by K. Here Δ_k stay as they are
  and c_k sum to 1.
- ‖g‖ and ‖g_γ‖ are √(… + ε), with ε = 10⁻⁴ of the changes' mean squared length, about as there. Without ε the
  coefficients had no bound where changes cancel.

Choices: κ = 0.5, the paper's and the code's for domain generalisation; η = 1, where the paper has 0.05, the code 0.5.
Batch-norm statistics are averaged with c_k.

Read: the authors' code (skydvn/FedOMG, ``FedOMG-DG``, ``FL_DG_Benchmark_OMG`` and ``system``); the paper's abstract and
introduction; and a reader's notes of its equations 11 to 17 and its settings, which the formulas above follow. The
equations themselves were not at hand.

When: the mean change moves against some site.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from fedshift.methods import base
from fedshift.methods.shared import search
from fedshift.methods.shared.aggregation import inner_products, move, project, site_fractions
from fedshift.schema.messages import Weights
from fedshift.schema.strict import Strict

SEARCH = {"kappa": search.uniform(0.1, 0.9), "server_lr": search.log(0.3, 3)}

EPS = 1e-4
"""Of the changes' mean squared length."""
GAP = 1e-10
"""Bound on how far the found value is above the minimum; the problem is scaled to lengths of about 1."""
STEPS = 10_000
"""Most steps to it: a few dozen do, and some hundred where many sites' changes span few dimensions."""
SMALLEST = 1e-12
"""Shortest step size."""
ROUNDING = 1e-14
"""What rounding may add to the objective."""


class Config(Strict):
    """Options of FedOMG.

    ``kappa``: κ; 0 is ``fedavg`` with uniform weights. ``server_lr``: η. ``weights``: ``uniform`` is 1/K, ``samples``
    n_k/n.
    """

    kappa: float = Field(default=0.5, ge=0, lt=1)
    server_lr: float = Field(default=1.0, gt=0)
    weights: Literal["uniform", "samples"] = "uniform"


def matched(products: np.ndarray, shares: np.ndarray, *, kappa: float) -> np.ndarray:
    """γ*, the weights of the sites in the added direction: changes' inner products (K, K), c_k (K,) -> (K,), sum 1."""
    mean, radius = np.einsum("ij,j->i", products, shares), kappa * _length(products, shares)

    def objective(gamma: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient."""
        length = _length(products, gamma)
        slope = mean + radius * np.einsum("ij,j->i", products, gamma) / length
        return _dot(gamma, mean) + radius * length, slope

    gamma = ahead = np.full(len(shares), 1 / len(shares))
    momentum, step = 1.0, 1.0
    for _ in range(STEPS):
        slope = objective(gamma)[1]
        if _dot(gamma, slope) - slope.min() <= GAP:
            break
        value, slope = objective(ahead)
        while True:
            step_end = project(ahead - step * slope)
            by = step_end - ahead
            bound = value + _dot(by, slope) + _dot(by, by) / (2 * step)
            if objective(step_end)[0] <= bound + ROUNDING or step <= SMALLEST:
                break
            step /= 2
        if _dot(by, step_end - gamma) < 0:  # momentum leads back: go on from here without it
            ahead, momentum = gamma, 1.0
            continue
        grown = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = step_end + (momentum - 1) / grown * (step_end - gamma)
        gamma, momentum, step = step_end, grown, 1.2 * step
    return gamma


def coefficients(products: np.ndarray, shares: np.ndarray, *, kappa: float) -> np.ndarray:
    """Coefficient of each site's change for η = 1: (K, K), (K,) -> (K,)."""
    size = np.diag(products).mean()
    if size == 0:
        return shares
    scaled = products / size
    gamma = matched(scaled, shares, kappa=kappa)
    pull = kappa * _length(scaled, shares) / _length(scaled, gamma)
    result: np.ndarray = shares + pull * gamma
    return result


def _dot(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.einsum("i,i->", a, b))  # without BLAS: the same bits everywhere


def _length(products: np.ndarray, weights: np.ndarray) -> float:
    """Length of Σ_k weights_k Δ_k; ``products`` has a mean diagonal of 1."""
    squared = float(np.einsum("i,ij,j->", weights, products, weights))
    return float(np.sqrt(max(squared, 0.0) + EPS))


class Server(base.Server[Config]):
    """Moves along the matched direction."""

    owns = frozenset({"combine"})
    tells_sites_apart = True

    def combine(self, weights: Weights, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> Weights:
        """Return w + η (g + κ ‖g‖/‖g_γ*‖ g_γ*); buffers are averaged with c_k."""
        shares = site_fractions(updates, self.config.weights)
        products = inner_products(weights, updates, trainable=ctx.trainable)
        moves = self.config.server_lr * coefficients(products, np.array(shares), kappa=self.config.kappa)
        return move(weights, updates, moves.tolist(), trainable=ctx.trainable, buffers=shares)
