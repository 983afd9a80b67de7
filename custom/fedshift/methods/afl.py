"""AFL: weight the sites' models so that the worst-off site counts most.

Mohri, Sivek & Suresh, "Agnostic Federated Learning", ICML 2019, in the version with local steps of Algorithm 1 in Back
de Luca et al., "Mitigating Data Heterogeneity in Federated Learning with Data Augmentation" (2022). The aggregation
weights λ follow the sites' losses by projected gradient ascent::

    λ_i = n_i / n  initially
    each round:  w ← Σ_i λ_i w_i,   then   λ ← proj_Δ(λ + η f(w)),   Δ = {λ : Σ λ = 1, λ ≥ 0}

f_i(w) is the mean loss of the aggregate over site i's training samples. A site can compute it only after it has
received the aggregate, that is in the next round; the server then updates λ before it averages that round's models.
The order of operations is therefore the algorithm's. The losses of the initial model (round 1) are not used, as in the
authors' code.

Deviations from the paper:

- With S the sites of a round, the algorithm averages Σ_S λ_i w_i, which shrinks the model if they are not all sites
  (``federation.sites_per_round``, absences). Here λ_i / Σ_S λ is the weight of site i. Its n_i / N, too, is of S.
- The projection is exact. The authors' function can return weights that do not sum to 1.
- Losses are computed on un-augmented samples in evaluation mode with test-time normalisation; the authors' code uses
  augmented samples.

Choices:

- η = 0.1 as in the code; the paper gives no value. A site that missed the statistics round starts with the mean count.
- A site that is absent or was not drawn keeps its λ; the present sites' total weight is redistributed among them. With
  a negative λ among theirs (Gen-AFL) the models are averaged with their λ projected onto their simplex, as Σ_S λ may
  be near 0.
- Batch-norm statistics are averaged with the convex weights nearest to λ. These equal λ unless it has negative
  elements (Gen-AFL).

When: the worst site's score matters more than the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field
from torch import nn

from fedshift.methods import base
from fedshift.methods.shared.aggregation import move, places, project
from fedshift.methods.shared.passes import mean_loss
from fedshift.schema.messages import Arrays, Weights
from fedshift.schema.strict import Strict

LOSS = base.ArraySpec(
    (), "float64", low=-1e6, high=1e6, reveals="mean loss of a model over the site's training samples", kind="loss"
)


class Config(Strict):
    """Options of AFL.

    ``eta``: η, the step size of λ; 0 keeps λ at n_i/n, which is ``fedavg``.
    """

    eta: float = Field(default=0.1, ge=0)

    @property
    def lowest(self) -> float:
        return 0.0


def first_weights(n_samples: Sequence[int | None], *, lowest: float) -> np.ndarray:
    """Initial λ: n_i / n, projected onto Δ. An unknown n_i (None) is replaced by the mean of the known ones."""
    known = [n for n in n_samples if n is not None]
    counts = np.array([np.mean(known) if n is None else n for n in n_samples], np.float64)
    return project(counts / counts.sum(), lowest=lowest)


def next_weights(weights: np.ndarray, losses: np.ndarray, *, eta: float, lowest: float) -> np.ndarray:
    """One projected ascent step for the sites that sent a loss; the sum of their weights stays: (N,), (N,) -> (N,)."""
    return project(weights + eta * losses, lowest=lowest, total=float(weights.sum()))


def shares(weights: np.ndarray, *, lowest: float, all_sites: bool) -> np.ndarray:
    """The weights of a round's models, which sum to 1, from λ of its sites: (N,) -> (N,)."""
    if all_sites or weights.min() < 0 or weights.sum() <= 0:
        return project(weights, lowest=lowest)
    divided: np.ndarray = weights / weights.sum()
    return divided


class Client(base.Client[Config]):
    """Sends the received model's loss over the site's training samples."""

    in_ranks = frozenset({"begin", "end"})

    def up(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        return {"loss": LOSS}

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        self._loss = mean_loss(ctx.run, data)

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        return {"loss": np.asarray(self._loss)}


class Server(base.Server[Config]):
    """Updates λ from the losses, then averages the models with it."""

    owns = frozenset({"combine"})
    tells_sites_apart = True
    method: ClassVar[str] = "afl"

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        """Round 0: initial λ from sample counts. From round 2: update λ with the losses of the previous aggregate."""
        lowest = self.config.lowest
        if ctx.round == 0:
            counts = {update.site: update.n_samples for update in updates}
            self.state["lambda"] = first_weights([counts.get(site) for site in ctx.sites], lowest=lowest)
        elif ctx.round > 1:
            present, weights = places(updates, ctx), self.state["lambda"].copy()
            losses = np.array([float(update.arrays[self.method]["loss"]) for update in updates])
            weights[present] = next_weights(weights[present], losses, eta=self.config.eta, lowest=lowest)
            self.state["lambda"] = weights

    def combine(self, weights: Weights, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> Weights:
        present, lowest = self.state["lambda"][places(updates, ctx)], self.config.lowest
        moves = shares(present, lowest=lowest, all_sites=len(updates) == len(ctx.sites))
        return move(weights, updates, moves.tolist(), trainable=ctx.trainable, buffers=project(moves).tolist())
