"""AFL: weight the sites' models so that the worst-off site counts most.

Mohri, Sivek & Suresh, "Agnostic Federated Learning", ICML 2019, as Algorithm 1 of Back de Luca et al., "Mitigating Data
Heterogeneity in Federated Learning with Data Augmentation" (2022) has it with local steps::

    λ_i = n_i / n  at first
    each round:  w ← Σ_i λ_i w_i,   then   λ ← proj_Δ(λ + η f(w)),   Δ = {λ : Σ λ = 1, λ ≥ 0}

f_i(w) is the mean loss of the aggregate over site i's training samples. A site can tell it only when it has received
the aggregate, in the next round; λ then moves before that round's models are averaged. So the order is the
algorithm's, and the losses of the initial model (round 1) are not used, as in the authors' code.

Deviations: all sites take part in every round (the paper draws some), and drawn sites are refused. The projection is
exact; the authors' function can leave a sum other than 1. Losses are of un-augmented samples in evaluation mode (the
code: of augmented ones), normalised as at test.

Choices: η = 0.1 as in the code, the paper is silent. Absent sites keep their λ: what the others have together is shared
out among them, and the round's models are averaged with the present λ projected on the simplex of the present sites.
A site that missed the statistics round starts with the mean sample count. Batch-norm statistics are averaged with the
convex weights nearest to λ, which are λ itself unless it is negative (Gen-AFL).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field
from torch import nn

from fedshift.methods import base
from fedshift.methods.shared.aggregation import move, refuse_sampled_sites
from fedshift.methods.shared.passes import mean_loss
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Arrays, Weights
from fedshift.schema.strict import Strict

LOSS = base.ArraySpec(
    (), "float64", low=-1e6, high=1e6, reveals="mean loss of a model over the site's training samples", kind="loss"
)


class Config(Strict):
    """Options of AFL."""

    eta: float = Field(default=0.1, ge=0)

    @property
    def lowest(self) -> float:
        """The least weight a site may get."""
        return 0.0


def project(values: np.ndarray, *, lowest: float = 0.0, total: float = 1.0) -> np.ndarray:
    """The nearest point with the sum ``total`` and no element below ``lowest``, (N,) -> (N,) float64."""
    above = values.astype(np.float64) - lowest
    room = max(total - lowest * len(above), 0.0)  # rounding can make it a little negative
    descending = np.sort(above)[::-1]
    thresholds = (np.cumsum(descending) - room) / np.arange(1, len(above) + 1)
    last = np.flatnonzero(descending >= thresholds)[-1]
    projected: np.ndarray = np.maximum(above - thresholds[last], 0) + lowest
    return projected


def first_weights(n_samples: Sequence[int | None], *, lowest: float) -> np.ndarray:
    """The λ to begin with: n_i / n in Δ; who has not told n_i counts as an average site."""
    known = [n for n in n_samples if n is not None]
    counts = np.array([np.mean(known) if n is None else n for n in n_samples], np.float64)
    return project(counts / counts.sum(), lowest=lowest)


def next_weights(weights: np.ndarray, losses: np.ndarray, *, eta: float, lowest: float) -> np.ndarray:
    """One ascent step of the sites that told a loss, which keeps their sum: (N,), (N,) -> (N,)."""
    return project(weights + eta * losses, lowest=lowest, total=float(weights.sum()))


class Client(base.Client[Config]):
    """Tells how well the received model does."""

    def check(self, job: JobSpec, net: nn.Module) -> None:
        """Every round needs every site's loss."""
        refuse_sampled_sites(job, "afl", "λ moves by the losses of all sites")

    def up(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        """One number."""
        return {"loss": LOSS}

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        """A pass over the training samples."""
        self._loss = mean_loss(ctx.run, data)

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        """The received model's loss."""
        return {"loss": np.asarray(self._loss)}


class Server(base.Server[Config]):
    """Moves λ, then averages with it."""

    owns = frozenset({"combine"})
    tells_sites_apart = True
    method: ClassVar[str] = "afl"

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        """Losses of the aggregate of the round before."""
        lowest = self.config.lowest
        if ctx.round == 0:
            told = {update.site: update.n_samples for update in updates}
            self.state["lambda"] = first_weights([told.get(site) for site in ctx.sites], lowest=lowest)
        elif ctx.round > 1:
            present, weights = places(updates, ctx), self.state["lambda"].copy()
            losses = np.array([float(update.arrays[self.method]["loss"]) for update in updates])
            weights[present] = next_weights(weights[present], losses, eta=self.config.eta, lowest=lowest)
            self.state["lambda"] = weights

    def combine(self, weights: Weights, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> Weights:
        """The sites' models, weighted by λ."""
        shares = project(self.state["lambda"][places(updates, ctx)], lowest=self.config.lowest)
        return move(weights, updates, shares.tolist(), trainable=ctx.trainable, buffers=project(shares).tolist())


def places(updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> list[int]:
    """Where the updates' sites stand in the job's list."""
    return [ctx.sites.index(update.site) for update in updates]
