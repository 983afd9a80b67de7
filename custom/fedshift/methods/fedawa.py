"""FedAWA: learn the weights of the sites at the server, from how far each change is from the mean change.

Shi et al., "FedAWA: Adaptive Optimization of Aggregation Weights in Federated Learning Using Client Vectors", CVPR
2025. The client vectors are the sites' changes Δ_k = w_k − w, and the global vector is their mean with the weights λ,
which are sought::

    λ = softmax(T),    Δ = Σ_k λ_k Δ_k
    L(T) = Σ_k λ_k ‖Δ_k − Δ‖ + d(Σ_k λ_k w_k, w),    d(a, b) = 1 − cos(a, b)
    T ← steps of Adam on L,    w ← Σ_k λ_k w_k

A site whose change is near the others' gains weight, and one that goes elsewhere loses it: the opposite of FedCE. T
goes on from round to round, from T_k = log n_k, with which λ is FedAvg's. With ``lr`` of 0 it stays that.

Variants: ``variant: released`` follows public code of the method. Its T begins at n_k/n, so that λ is nearly uniform;
its second term is Σ_k λ_k d(w_k, w); and a round is averaged with λ as it was before the last step.

Deviations: of that code, the option to measure d by squared differences, and the factor on the new model, which is 1
there by default. The paper's FedAWA-L, with weights of its own for each layer, is not offered. ‖·‖ is √(… + ε), with
ε = 10⁻¹² of the changes' mean squared length, so that it has a slope where a site is alone.

Choices: one step of Adam with β = (0.5, 0.999) and a learning rate of 0.001, begun anew in each round, as in the code:
T_k then moves by 0.001 a round, whatever the changes are, and λ_k by a thousandth of itself; a larger ``lr`` or more
``steps`` do more. Changes are of parameters; batch-norm statistics are averaged with λ. A site that is absent keeps its
T_k, and one that comes later begins as in the first round.

Read: four copies of the authors' code, or rewritings of it, that agree (``server_funct.py``; FL-MedSegBench's among
them), and two readers' notes with the paper's objective. The authors' repository (ChanglongShi/FedAWA) and the paper's
text were not at hand: from where the paper's T begins is chosen here.

When: some sites' changes are unlike all others', and should count less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from fedshift.methods import base
from fedshift.methods.shared import search
from fedshift.methods.shared.aggregation import average, inner_products, places, site_fractions
from fedshift.schema.messages import Weights
from fedshift.schema.strict import Strict

SEARCH = {"lr": search.log(0.001, 1), "steps": None}

BETAS = (0.5, 0.999)
EPS = 1e-12
"""Of the changes' mean squared length."""
TINY = torch.finfo(torch.float64).tiny


class Config(Strict):
    """Options of FedAWA.

    ``lr``: of Adam on T; 0 is ``fedavg``. ``steps``: of Adam in each round. ``start``: where λ begins: ``samples`` is
    n_k/n, ``uniform`` 1/K. ``variant``: ``released`` is public code of the method.
    """

    variant: Literal["paper", "released"] = "paper"
    lr: float = Field(default=0.001, ge=0)
    steps: int = Field(default=1, ge=1)
    start: Literal["samples", "uniform"] = "samples"


def objective(shares: Tensor, products: Tensor, *, released: bool) -> Tensor:
    """L from λ (K,) and the inner products of w and the changes, (K + 1, K + 1), as a scalar."""
    model, along, changes = products[0, 0], products[0, 1:], products[1:, 1:]
    squares, weighed = changes.diagonal(), (changes * shares).sum(1)  # without BLAS: the same bits everywhere
    mean, towards = (shares * weighed).sum(), (shares * along).sum()
    apart = (squares - 2 * weighed + mean).clamp_min(0)
    spread = (shares * (apart + EPS * squares.mean() + TINY).sqrt()).sum()
    if released:
        return spread + (shares * _cosine_distance(model, model + along, model + 2 * along + squares)).sum()
    return spread + _cosine_distance(model, model + towards, model + 2 * towards + mean)


def _cosine_distance(model: Tensor, along: Tensor, squared: Tensor) -> Tensor:
    """1 − cos(a, w) from ‖w‖², <a, w> and ‖a‖²."""
    return 1 - along / (model * squared).clamp_min(TINY).sqrt()


def learned(
    logits: np.ndarray, products: np.ndarray, *, lr: float, steps: int, released: bool
) -> tuple[np.ndarray, np.ndarray]:
    """T after a round's steps, and λ for its models: (K,), (K + 1, K + 1) -> (K,), (K,)."""
    values, inner_products = torch.from_numpy(logits.copy()).requires_grad_(), torch.from_numpy(products)
    optimizer = torch.optim.Adam([values], lr=lr, betas=BETAS)
    shares = values.softmax(0)
    for _ in range(steps):
        shares = values.softmax(0)
        (values.grad,) = torch.autograd.grad(objective(shares, inner_products, released=released), values)
        optimizer.step()
    if not released:
        shares = values.softmax(0)
    return values.detach().numpy(), shares.detach().numpy()


class Server(base.Server[Config]):
    """Learns the weights, then averages with them.

    State, with one number for each site: ``logits`` are T, ``known`` is 1 from a site's first round.
    """

    owns = frozenset({"combine"})
    tells_sites_apart = True

    def start(self, net: nn.Module, ctx: base.ServerContext) -> None:
        self.state = {"logits": np.zeros(len(ctx.sites)), "known": np.zeros(len(ctx.sites), np.int64)}

    def combine(self, weights: Weights, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> Weights:
        """Return Σ_k λ_k w_k."""
        config, present = self.config, places(updates, ctx)
        released = config.variant == "released"
        first = self._first(updates, released=released)
        before = np.where(self.state["known"][present] > 0, self.state["logits"][present], first)
        products = inner_products(weights, updates, trainable=ctx.trainable, with_model=True)
        after, shares = learned(before, products, lr=config.lr, steps=config.steps, released=released)
        self.state = {name: value.copy() for name, value in self.state.items()}
        self.state["logits"][present], self.state["known"][present] = after, 1
        return average(weights, updates, shares.tolist())

    def _first(self, updates: Sequence[base.SiteUpdate], *, released: bool) -> np.ndarray:
        """Where T begins: for the paper without dividing by n, so that sites that come later fit in."""
        if released:
            return np.array(site_fractions(updates, self.config.start))
        samples = [update.n_samples if self.config.start == "samples" else 1 for update in updates]
        logarithms: np.ndarray = np.log(np.array(samples, np.float64))
        return logarithms
