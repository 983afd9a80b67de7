"""FedNova: divide each site's update by the number of its steps before averaging.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS 2020.
For a site that took τ_i steps of SGD with momentum ρ::

    a_i = τ_i                                                  ρ = 0
    a_i = (τ_i − ρ (1 − ρ^τ_i) / (1 − ρ)) / (1 − ρ)            ρ > 0
    a_i = (1 − (1 − η μ)^τ_i) / (η μ)                          with fedprox, ρ = 0, η the learning rate
    d_i = (w − w_i) / a_i,    p_i = n_i / n
    w   ← w − (Σ_i p_i a_i) Σ_i p_i d_i

A site's influence is its share of the data p_i, independent of how many steps it took. With equal a_i this is FedAvg.

a_i is the sum of the weights with which the steps' gradients are in w − w_i (the paper's ‖a_i‖₁ for each local solver).

Choice: Σ_i p_i a_i is the number of steps that the server takes (the paper's τ_eff) with fedprox too, which for equal
steps is FedProx with FedAvg; the authors' code takes Σ_i p_i τ_i there.

Restrictions: the formulas assume SGD whose momentum starts at zero in each round, so adam and momentum kept between
rounds are refused, and so is momentum together with fedprox, as well as fedprox's released norm, which is not a
quadratic. So is fedrep, which trains each part of the network in some of the steps only. Weight decay counts as part of
the site's loss. Batch-norm statistics are averaged with p_i.

When: sites differ much in their amount of data, and so in steps per round. With equal steps (``schedule.local_steps``)
it is ``fedavg``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from fedshift.methods import base, fedprox
from fedshift.methods.shared.aggregation import effective_steps, move, proximal_steps, sample_fractions
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Weights
from fedshift.schema.strict import Strict


class Config(Strict):
    """No options."""


class Client(base.Client[Config]):
    """Plain local training with SGD."""

    needs = (
        base.Rule("SGD"),
        base.Rule("momentum that begins at zero in each round"),
        base.Rule("SGD with plain momentum"),
    )
    clashes = (
        base.Rule("trains parts of the network in turn", "divides each site's change by the number of all its steps"),
    )

    def check(self, job: JobSpec, net: nn.Module) -> None:
        optimizer = job.task.optimizer
        if job.task.schedule.minutes is not None and job.federation.robust is not None:
            raise ConfigError(
                "options-clash",
                "method fednova: divides by numbers of steps, for which the server has only the sites' word with "
                "schedule.minutes, and federation.robust does not bound them: leave one of the two out",
            )
        prox = proximal(job.methods)
        if prox is None:
            return
        if optimizer.momentum > 0 or prox.variant != "paper":
            raise ConfigError(
                "methods-clash",
                "method fednova: is defined with fedprox for plain SGD and the paper's squared distance: use --set "
                "optimizer.momentum=0 fedprox.variant=paper",
            )
        if optimizer.lr * prox.mu >= 1:
            raise ConfigError(
                "options-clash",
                f"method fednova: optimizer.lr {optimizer.lr:g} times fedprox.mu {prox.mu:g} must be below 1, or the "
                "proximal term oscillates: lower one of them",
            )


def proximal(methods: Mapping[str, Mapping[str, Any]]) -> fedprox.Config | None:
    """FedProx's options, if the job has it."""
    return fedprox.Config.parse(methods["fedprox"], where="method fedprox") if "fedprox" in methods else None


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
        prox, optimizer = proximal(ctx.methods), ctx.optimizer
        if prox is None:
            normalisers = [effective_steps(update.n_steps, optimizer.momentum) for update in updates]
        else:
            normalisers = [proximal_steps(update.n_steps, optimizer.lr * prox.mu) for update in updates]
        moves = coefficients(sample_fractions(updates), normalisers)
        return move(weights, updates, moves, trainable=ctx.trainable)
