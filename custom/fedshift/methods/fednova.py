"""FedNova: divide each site's update by the number of its steps before averaging.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS 2020.
For a site that took τ_i steps of SGD with momentum ρ::

    a_i = τ_i                                                  ρ = 0
    a_i = (τ_i − ρ (1 − ρ^τ_i) / (1 − ρ)) / (1 − ρ)            ρ > 0
    d_i = (w − w_i) / a_i,    p_i = n_i / n
    w   ← w − (Σ_i p_i a_i) Σ_i p_i d_i

A site's influence is its share of the data p_i, independent of how many steps it took. With equal a_i this is FedAvg.

Restrictions: the formula for a_i assumes SGD whose momentum starts at zero in each round, so adam and momentum kept
between rounds are refused. FedProx is refused because the paper's a_i for it belongs to FedProx's own solver (with the
authors' other τ_eff). Weight decay counts as part of the site's loss. Batch-norm statistics are averaged with p_i.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedshift.methods import base
from fedshift.methods.shared.aggregation import effective_steps, move, sample_fractions
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Weights
from fedshift.schema.strict import Strict


class Config(Strict):
    """No options."""


class Client(base.Client[Config]):
    """Plain local training with SGD."""

    def check(self, job: JobSpec, net: nn.Module) -> None:
        """Require SGD with momentum starting at zero, and no FedProx."""
        optimizer = job.task.optimizer
        if optimizer.name != "sgd":
            raise ConfigError(
                f"method fednova: is defined for SGD, not {optimizer.name}: use --set optimizer.name=sgd optimizer.lr=…"
            )
        if optimizer.momentum > 0 and optimizer.keep:
            raise ConfigError(
                "method fednova: assumes that momentum starts at zero in each round: use --set optimizer.keep=false"
            )
        if "fedprox" in job.methods:
            raise ConfigError(
                "method fednova: cannot be combined with fedprox, whose proximal term its step normalisation "
                "does not cover: leave one of them out"
            )


def coefficients(fractions: Sequence[float], normalisers: Sequence[float]) -> list[float]:
    """Coefficient of each site's change w_i − w: (Σ_j p_j a_j) p_i / a_i."""
    effective = sum(p * a for p, a in zip(fractions, normalisers, strict=True))
    return [effective * p / a for p, a in zip(fractions, normalisers, strict=True)]


class Server(base.Server[Config]):
    """Mean of the updates, normalised by the number of steps."""

    owns = frozenset({"combine"})
    tells_sites_apart = True

    def combine(self, weights: Weights, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> Weights:
        """Return w − (Σ_i p_i a_i) Σ_i p_i d_i; buffers are averaged with p_i."""
        normalisers = [effective_steps(update.n_steps, ctx.optimizer.momentum) for update in updates]
        moves = coefficients(sample_fractions(updates), normalisers)
        return move(weights, updates, moves, trainable=ctx.trainable)
