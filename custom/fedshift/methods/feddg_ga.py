"""FedDG-GA: move weights towards the sites for which the common model is worse than their own.

Zhang et al., "Federated Domain Generalization with Generalization Adjustment", CVPR 2023. The generalisation gap of
site i is how much averaging costs it: with f_i the loss on its images, θ the aggregate of a round and θ_i the model
that the site itself trained in that round::

    θ = Σ_i a_i θ_i,    G_i = f_i(θ) − f_i(θ_i)
    a_i ← max(0, a_i + 3/K d_r (G_i − μ) / max_j |G_j − μ|),    then a ← a / Σ a,    μ = mean_i G_i
    d_r = (1 − r/R) d            r = 0, 1, …, R − 1 the round

a_i = 1/K at first. d is ``step``; 0 keeps the weights at 1/K, which is FedAvg with uniform weights. 3/K is not the
paper's, which has three sites: a step is the same share of 1/K for any number of them. Without it, d = 0.2 takes a
site's whole weight in one step where there are more than five.

A site can measure f_i(θ) only after it has received θ, that is in the next round. Its answer of round r + 1 has
f_i(θ) of round r, and the server updates a before it averages that round's models: the order is the paper's.

Variants: ``variant: released`` follows the authors' code (MediaBrain-SJTU/FedDG-GA): gaps are not centred, so that all
weights rise together before they are normalised, d_r is multiplied by 1/K (the code's 1/3, for its three sites), and a
weight is at most 1::

    a_i ← min(1, max(0, a_i + d_r/K · G_i / max_j |G_j|))

Deviations: the code's gap is in accuracy, or with ``--fair loss`` in the loss; here it is always the task's loss, which
segmentation has too. The code counts rounds from −1, so its first step is (1 + 1/R) d.

Choices: f_i is over the site's validation samples, as in the code, or over its training samples if it has no others;
others write that the paper's are training samples. d = 0.2, the code's default. Sites without a gap, because they were
absent or not drawn in this round or the last one, keep their weight, and the others' weights keep their sum; their mean
then takes the place of 1/K. Two centred gaps are 1 and −1 once divided, however near they are to each other, so all
weights stay where fewer than three gaps are known, and ``paper`` is refused where no round has three sites. A round's
models are averaged with the weights of its sites, divided by their sum; batch-norm statistics too.

Read: the authors' code (MediaBrain-SJTU/FedDG-GA, ``utils/weight_adjust.py`` and the training scripts); for the
paper's formulas FL4Health's implementation (Vector Institute, ``strategies/feddg_ga.py``), which notes where the two
differ: centred gaps, no 1/K, clipping below 0 alone, d_r from r = 0. The paper's text was not at hand: that its
denominator has absolute values rests on FL4Health.

When: averaging costs some sites more than others; scores on sites that took no part matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from torch import nn

from fedshift.methods import base
from fedshift.methods.shared.aggregation import average, places
from fedshift.methods.shared.passes import validation_loss
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Arrays, Weights
from fedshift.schema.strict import Strict

LOSSES = ("received", "trained")
"""Whose loss a site sends: the model that it received, and that which it trained."""
PAPER_SITES = 3
"""The paper's number of training sites, for which its step is, and the fewest that centred gaps tell apart."""
NONE = -1
"""Stands for the round of a site that has not answered yet."""


class Config(Strict):
    """Options of FedDG-GA.

    ``step``: d; 0 is ``fedavg`` with uniform weights. A step moves up to 3 d of the mean weight. ``variant``:
    ``released`` is the authors' code, which does not centre the gaps.
    """

    variant: Literal["paper", "released"] = "paper"
    step: float = Field(default=0.2, ge=0, lt=1)


def adjusted(weights: np.ndarray, gaps: np.ndarray, *, step: float, released: bool) -> np.ndarray:
    """New weights of the sites whose gaps are known; their sum stays: (N,), (N,) -> (N,)."""
    excess = gaps if released else gaps - gaps.mean()
    largest = np.abs(excess).max()
    if largest == 0:
        return weights
    moved = np.clip(weights + step * excess / largest, 0, 1 if released else None)
    scaled: np.ndarray = moved * (weights.sum() / moved.sum()) if moved.sum() > 0 else weights
    return scaled


class Client(base.Client[Config]):
    """Sends the received and the trained model's loss over the site's validation samples, or else training samples."""

    in_ranks = frozenset({"begin", "end"})

    def check(self, job: JobSpec, net: nn.Module) -> None:
        sites = min(len(job.task.sites), job.federation.sites_per_round or len(job.task.sites))
        if self.config.variant == "paper" and sites < PAPER_SITES:
            raise ConfigError(
                "method-needs",
                f"method feddg_ga: compares the gaps of three sites at least, and a round has {sites}: use --set "
                "feddg_ga.variant=released or more sites",
            )

    def up(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        return {
            name: base.ArraySpec(
                (),
                "float64",
                low=-1e6,
                high=1e6,
                reveals=f"mean loss of the {name} model over the site's validation samples, or over its training "
                "samples if it has no others",
                kind="loss",
            )
            for name in LOSSES
        }

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        self._received = validation_loss(ctx.run, data)

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        return {"received": np.asarray(self._received), "trained": np.asarray(validation_loss(ctx.run, data))}


class Server(base.Server[Config]):
    """Adjusts the weights, then averages with them.

    State, with one number for each site: ``weights`` are a, ``trained`` its last trained model's loss and ``round`` the
    round of that.
    """

    owns = frozenset({"combine"})
    tells_sites_apart = True

    def start(self, net: nn.Module, ctx: base.ServerContext) -> None:
        n = len(ctx.sites)
        self.state = {"weights": np.full(n, 1 / n), "trained": np.zeros(n), "round": np.full(n, NONE)}

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        """Adjust a by the gaps of the last round; keep the losses of this round's models."""
        if ctx.round == 0:
            return
        state, present = self.state, places(updates, ctx)
        losses = {name: np.array([float(update.arrays["feddg_ga"][name]) for update in updates]) for name in LOSSES}
        known = state["round"][present] == ctx.round - 1
        released, n = self.config.variant == "released", len(ctx.sites)
        if ctx.round > 1 and known.sum() >= (2 if released else PAPER_SITES):
            sites = np.array(present)[known]
            before, gaps = state["weights"][sites], losses["received"][known] - state["trained"][sites]
            step = self.config.step * (1 - (ctx.round - 2) / ctx.rounds)
            step = step / n if released else step * (PAPER_SITES * (before.mean() if len(before) < n else 1 / n))
            state["weights"] = state["weights"].copy()
            state["weights"][sites] = adjusted(before, gaps, step=step, released=released)
        state["trained"], state["round"] = state["trained"].copy(), state["round"].copy()
        state["trained"][present], state["round"][present] = losses["trained"], ctx.round

    def combine(self, weights: Weights, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> Weights:
        """Mean of the round's models weighted by a."""
        present = self.state["weights"][places(updates, ctx)]
        shares = present / present.sum() if present.sum() > 0 else np.full(len(present), 1 / len(present))
        return average(weights, updates, shares.tolist())
