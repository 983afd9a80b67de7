"""FedHEAL: drop what a site changes back and forth, and give more weight to sites that move far.

Chen, Huang & Ye, "Fair Federated Learning under Domain Skew with Local Consistency and Domain Diversity", CVPR 2024.
With Δ_k = w_k − w in a round, elementwise:

Local consistency. C_k is the share of site k's earlier rounds in which the element moved the same way as now. An
element that keeps its direction is important to the site; the others are dropped::

    M_k = 1 where C_k > τ, else 0          (all 1 in a site's first round)

Domain diversity. Sites whose masked change is long are far from the common model, and gain weight from round to round::

    d_k  = Σ_tensors ‖M_k ⊙ Δ_k‖
    δ_k ← (1 − β) δ_k + β d_k / Σ_j d_j,      p_k ← p_k + δ_k                 p_k = 1/K, δ_k = 0 at first

    w   ← w + Σ_k p_k M_k Δ_k / Σ_k p_k M_k                                   0 where every site drops the element

With τ = β = 0 it is FedAvg with uniform weights.

Deviations: in the authors' code the masks and the division apply to batch-norm statistics and batch counters too; here
statistics are averaged with p_k / Σ p. Σ_j d_j is over the sites of the round, in the code also over the last distances
of absent ones. C_k is over the rounds that a site took part in; the code divides by all rounds so far. In the code
τ = 0 drops what moves some way for the first time.

Choices: τ = 0.3 and β = 0.4, the defaults of the authors' ``main.py``. A site that is absent keeps its signs, its p and
its δ. K is the number of sites in the site's first round, as in the code: shares of d_k are among those too.

Memory: the server keeps, for every site, how often each parameter has moved down: two bytes for each parameter and site
(four in jobs of more than 32,767 rounds). These counts do not leave the server.

Read: the authors' code (yuhangchen0/FedHEAL, ``models/fedavgheal.py``, ``models/utils/federated_model.py`` and
``main.py``) and the paper's abstract and introduction. The paper's equations were not at hand, so whether its distance
is this sum of norms, and whether p is normalised in every round, is the code's word.

When: one site's domain is far from the others', and its score should be nearer to theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field
from torch import nn

from fedshift.methods import base
from fedshift.methods.shared.aggregation import average, places
from fedshift.schema.messages import Weights
from fedshift.schema.strict import Strict


class Config(Strict):
    """Options of FedHEAL.

    ``tau``: τ; 0 drops nothing. ``beta``: β; 0 keeps the weights equal.
    """

    tau: float = Field(default=0.3, ge=0, lt=1)
    beta: float = Field(default=0.4, ge=0, le=1)


def consistent_mask(falls: np.ndarray, earlier: int, change: np.ndarray, *, tau: float) -> np.ndarray:
    """M, of the shape of ``change``, which is Δ; ``falls`` of the site's ``earlier`` rounds an element did not rise."""
    if tau == 0 or earlier == 0:
        return np.ones(change.shape, np.bool_)
    # The counts are divided, as 1 minus a share is rounded otherwise than the share of the others.
    consistent: np.ndarray = np.where(change <= 0, falls, earlier - falls) / earlier > tau
    return consistent


class Server(base.Server[Config]):
    """Masked changes, weighted by how far sites are.

    State: ``falls.<key>`` (N, …) counts of rounds in which elements did not rise, ``rounds`` (N,) each site's number of
    rounds, ``p`` and ``delta`` (N,); p is 0 before a site's first round.
    """

    owns = frozenset({"combine"})
    tells_sites_apart = True

    def start(self, net: nn.Module, ctx: base.ServerContext) -> None:
        n = len(ctx.sites)
        self.state = {"rounds": np.zeros(n, np.int64), "p": np.zeros(n), "delta": np.zeros(n)}

    def combine(self, weights: Weights, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> Weights:
        """Return w + Σ p M Δ / Σ p M; buffers are averaged with p."""
        keys = sorted(ctx.trainable & set(updates[0].weights))
        shares = self._weigh(self._distances(weights, updates, keys, ctx), places(updates, ctx))
        result = average(weights, updates, shares.tolist())
        for key in keys:
            old = weights[key].astype(np.float64)
            above, below = np.zeros_like(old), np.zeros_like(old)
            for update, share in zip(updates, shares.tolist(), strict=True):
                change, mask = self._masked(key, update, old, ctx)
                above += share * change
                below += share * mask
            moved = np.divide(above, below, out=np.zeros_like(old), where=below > 0)
            result[key] = np.asarray(old + moved, weights[key].dtype)
            self._remember(key, updates, weights[key], ctx)
        self.state["rounds"] = self.state["rounds"].copy()
        self.state["rounds"][places(updates, ctx)] += 1
        return result

    def _masked(
        self, key: str, update: base.SiteUpdate, old: np.ndarray, ctx: base.ServerContext
    ) -> tuple[np.ndarray, np.ndarray]:
        """M ⊙ Δ and M of one tensor of one site."""
        site = ctx.sites.index(update.site)
        change = update.weights[key] - old
        falls = self.state.get(f"falls.{key}")
        earlier = 0 if falls is None else int(self.state["rounds"][site])
        mask = consistent_mask(np.zeros(()) if falls is None else falls[site], earlier, change, tau=self.config.tau)
        return change * mask, mask

    def _distances(
        self, weights: Weights, updates: Sequence[base.SiteUpdate], keys: Sequence[str], ctx: base.ServerContext
    ) -> np.ndarray:
        distances = np.zeros(len(updates))
        for key in keys:
            old = weights[key].astype(np.float64)
            for number, update in enumerate(updates):
                flat = self._masked(key, update, old, ctx)[0].reshape(-1)
                distances[number] += np.sqrt(np.einsum("i,i->", flat, flat))  # without BLAS: the same bits everywhere
        return distances

    def _weigh(self, distances: np.ndarray, present: Sequence[int]) -> np.ndarray:
        """p_k / Σ p of the round's sites, after this round's step: (K,) -> (K,)."""
        beta, total = self.config.beta, distances.sum()
        shares = distances / total if total > 0 else np.full(len(distances), 1 / len(distances))
        p, delta = self.state["p"].copy(), self.state["delta"].copy()
        p[present] = np.where(p[present] > 0, p[present], 1 / len(present))
        delta[present] = (1 - beta) * delta[present] + beta * shares
        p[present] += delta[present]
        self.state["p"], self.state["delta"] = p, delta
        weighed: np.ndarray = p[present] / p[present].sum()
        return weighed

    def _remember(self, key: str, updates: Sequence[base.SiteUpdate], old: np.ndarray, ctx: base.ServerContext) -> None:
        """Count the elements that did not rise; of no use, and not kept, if nothing is ever dropped."""
        if self.config.tau == 0:
            return
        dtype = np.int16 if ctx.rounds <= np.iinfo(np.int16).max else np.int32
        falls = self.state.get(f"falls.{key}", np.zeros((len(ctx.sites), *old.shape), dtype)).copy()
        for update in updates:
            falls[ctx.sites.index(update.site)] += update.weights[key] <= old
        self.state[f"falls.{key}"] = falls
