"""VM: average the sites' updates so that both the mean and the variance of their losses fall.

Back de Luca et al., "Mitigating Data Heterogeneity in Federated Learning with Data Augmentation", 2022. The objective
is mean(f) + β var(f), with the updates Δ_i = w − w_i used as gradients::

    w ← w − 1/n Σ_i Δ_i − 2β/n Σ_i (f_i − f̄) (Δ_i − Δ̄)                      (24)
      = w + Σ_i c_i (w_i − w),    c_i = 1/n + 2β/n (f_i − f̄)

The second line holds because Σ (f_i − f̄) = 0. f_i is the mean loss of the received model over site i's training
samples.

Deviations from the paper:

- n, N and the means are those of the sites that take part in a round (``federation.sites_per_round``, absences).
- Algorithm 2 multiplies by both n_i/N and 1/n, which contradicts (24) and would shrink every step n times. Here
  ``weights: samples`` replaces every 1/n by n_i/N, also in the means.
- Losses are computed on un-augmented samples in evaluation mode with test-time normalisation.
- Batch-norm statistics are averaged with the convex weights nearest to c.

Choices: β = 0.5, the paper's value for PACS and OfficeHome. With it c_i stays positive as long as no loss is 1 or more
below the mean loss. The paper uses 10 for Rotated MNIST. The code's β is n times the β of (24).

When: all sites should reach similar losses. ``beta`` 0 is ``fedavg`` with uniform weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from torch import nn

from fedshift.methods import base
from fedshift.methods.afl import LOSS
from fedshift.methods.shared.aggregation import move, project, site_fractions
from fedshift.methods.shared.passes import mean_loss
from fedshift.schema.errors import ConfigError
from fedshift.schema.messages import Arrays, Weights
from fedshift.schema.strict import Strict


class Config(Strict):
    """Options of VM.

    ``beta``: β. ``weights``: ``uniform`` is 1/n, ``samples`` n_i/N in place of every 1/n. ``variant``: ``released`` has
    no 1/n before the second sum (its β is n times the paper's) and computes f_i with the locally trained model.
    """

    variant: Literal["paper", "released"] = "paper"
    beta: float = Field(default=0.5, ge=0)
    weights: Literal["uniform", "samples"] = "uniform"

    def model_post_init(self, _context: object) -> None:
        if self.variant == "released" and self.weights == "samples":
            raise ConfigError(
                "options-clash", "method vm: variant released has no sample weights: use --set vm.weights=uniform"
            )


def coefficients(losses: np.ndarray, shares: np.ndarray, *, beta: float, released: bool) -> np.ndarray:
    """Coefficient of each site's change w_i − w: losses (n,) and shares (n,) that sum to 1 -> (n,)."""
    excess = losses - shares @ losses
    moves: np.ndarray = shares + 2 * beta * (excess if released else shares * excess)
    return moves


class Client(base.Client[Config]):
    """Sends the loss of the received model, or with ``variant: released`` of the trained one."""

    in_ranks = frozenset({"begin", "end"})

    def up(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        return {"loss": LOSS}

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        if self.config.variant == "paper":
            self._loss = mean_loss(ctx.run, data)

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        if self.config.variant == "released":
            self._loss = mean_loss(ctx.run, data)
        return {"loss": np.asarray(self._loss)}


class Server(base.Server[Config]):
    """The update rule (24)."""

    owns = frozenset({"combine"})
    tells_sites_apart = True

    def combine(self, weights: Weights, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> Weights:
        losses = np.array([float(update.arrays["vm"]["loss"]) for update in updates])
        shares = np.array(site_fractions(updates, self.config.weights))
        released = self.config.variant == "released"
        moves = coefficients(losses, shares, beta=self.config.beta, released=released)
        return move(weights, updates, moves.tolist(), trainable=ctx.trainable, buffers=project(moves).tolist())
