"""FedLWS: shrink each layer of the mean model, the more the further the sites' changes of it are apart.

Shi et al., "FedLWS: Federated Learning with Adaptive Layer-wise Weight Shrinking", ICLR 2025. With Δ_k = w_k − w, for
the parameters of every layer::

    w̄ = Σ_k c_k w_k,    ḡ = 1/K Σ_k Δ_k
    τ = β · 1/K Σ_k ‖Δ_k − ḡ‖,    from min_tau to max_tau
    γ = ‖w‖ / (‖w‖ + τ ‖w̄ − w‖)
    w ← γ w̄

It is weight decay at the server whose strength follows the disagreement of the sites. Where τ is 0, γ is 1 and the
layer is FedAvg's: with ``max_tau`` of 0 all are.

Deviations from the code: a layer there is all that comes after one bias up to the next, in order of definition, which
joins a convolution without bias, the norm behind it, and the running statistics of the norm before; here it is the
parameters of one module. The code shrinks running statistics and batch counters too; here they stay averages. A layer
that is all zero has γ = 1, and could otherwise never be anything else.

Choices: β = 0.03, min_tau = 0.01 and max_tau = 0.2, the code's defaults. A reader's notes have the formula without
bounds on τ: ``--set fedlws.min_tau=0 fedlws.max_tau=1e9``.

Read: a copy of the authors' code (leequangminh227/FedLWS, ``server_funct.py`` and ``args.py``), FL-MedSegBench's
(arXiv:2603.11659), which says that it is theirs, and readers' notes. The paper's text was not at hand.

When: sites pull layers in different directions, and the mean model overfits or grows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from fedshift.methods import base
from fedshift.methods.shared import search
from fedshift.methods.shared.aggregation import average, inner_products, site_fractions
from fedshift.schema.errors import ConfigError
from fedshift.schema.messages import Weights
from fedshift.schema.strict import Strict

SEARCH = {"beta": search.log(0.003, 0.3), "min_tau": None, "max_tau": None}


class Config(Strict):
    """Options of FedLWS.

    ``beta``: β. ``min_tau``, ``max_tau``: bounds of τ; with both 0 it is ``fedavg``. ``weights``: ``samples`` is n_k/n,
    ``uniform`` 1/K.
    """

    beta: float = Field(default=0.03, gt=0)
    min_tau: float = Field(default=0.01, ge=0)
    max_tau: float = Field(default=0.2, ge=0)
    weights: Literal["samples", "uniform"] = "samples"

    def model_post_init(self, _context: object) -> None:
        if self.min_tau > self.max_tau:
            raise ConfigError(
                "options-clash",
                f"method fedlws: fedlws.min_tau {self.min_tau:g} is above fedlws.max_tau {self.max_tau:g}: lower the "
                "first or raise the second",
            )


def shrinking(products: np.ndarray, shares: np.ndarray, *, beta: float, min_tau: float, max_tau: float) -> float:
    """γ of a layer from the inner products of w and the changes, (K + 1, K + 1), and c (K,)."""
    changes, length = products[1:, 1:], float(np.sqrt(products[0, 0]))
    if length == 0:
        return 1.0
    squared = np.diag(changes) - 2 * changes.mean(1) + changes.mean()
    tau = float(np.clip(beta * np.sqrt(np.maximum(squared, 0)).mean(), min_tau, max_tau))
    moved = float(np.einsum("i,ij,j->", shares, changes, shares))  # without BLAS: the same bits everywhere
    return length / (length + tau * float(np.sqrt(max(moved, 0.0))))


def layers(keys: frozenset[str]) -> Iterator[frozenset[str]]:
    """The keys of each module that holds parameters."""
    by_module: defaultdict[str, set[str]] = defaultdict(set)
    for key in sorted(keys):
        by_module[key.rpartition(".")[0]].add(key)
    yield from map(frozenset, by_module.values())


class Client(base.Client[Config]):
    """Plain local training."""

    idle = (
        base.Rule(
            "beta",
            "min_tau and max_tau are the same, so τ is that",
            lambda case: case.config.min_tau == case.config.max_tau,
        ),
    )


class Server(base.Server[Config]):
    """Averages, then shrinks each layer."""

    owns = frozenset({"combine"})
    tells_sites_apart = True

    def combine(self, weights: Weights, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> Weights:
        """Return γ w̄ for the parameters of every layer; buffers are averaged."""
        config, shares = self.config, site_fractions(updates, self.config.weights)
        result = average(weights, updates, shares)
        for keys in layers(ctx.trainable & set(updates[0].weights)):
            products = inner_products(weights, updates, trainable=keys, with_model=True)
            gamma = shrinking(
                products, np.array(shares), beta=config.beta, min_tau=config.min_tau, max_tau=config.max_tau
            )
            for key in keys:
                result[key] = np.asarray(gamma * result[key].astype(np.float64), weights[key].dtype)
        return result
