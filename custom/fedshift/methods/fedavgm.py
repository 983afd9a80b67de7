"""FedAvgM: momentum at the server on the sites' mean update.

Hsu, Qi & Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
2019. The difference between the global model and the FedAvg aggregate avg = Σ_k c_k w_k is used as a gradient for SGD
with momentum::

    v ← β v + (w − avg),    w ← w − η v                  (nesterov: w ← w − η (w − avg + β v))

Choices: β = 0.9 is FedRDN's value for classification; FedRDN for prostate and FedFA's code use 0.01.

Deviation: FedFA's released code also applies momentum to batch-norm statistics, which can make a variance negative.
Here they are averaged as in FedAvg.

When: few rounds, or updates that vary much between rounds; ``beta`` 0 is ``fedavg``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from fedshift.methods import base
from fedshift.methods.shared import search
from fedshift.methods.shared.aggregation import MeanStep
from fedshift.schema.strict import Strict

SEARCH = {"beta": search.choice(0.01, 0.1, 0.5, 0.9, 0.97), "server_lr": search.log(0.3, 3)}


class Config(Strict):
    """Options of FedAvgM.

    ``beta``: β. ``nesterov``: Nesterov's form. ``server_lr``: η. ``weights``: ``samples`` is c_k = n_k/n, ``uniform``
    1/K.
    """

    beta: float = Field(default=0.9, ge=0, lt=1)
    nesterov: bool = False
    server_lr: float = Field(default=1.0, gt=0)
    weights: Literal["samples", "uniform"] = "samples"


class Client(base.Client[Config]):
    """Plain local training."""

    idle = (base.Rule("nesterov", "beta is 0, so there is no momentum", {"beta": 0}),)


class Server(MeanStep[Config]):
    """One SGD step with momentum, in float64 so that β = 0 is FedAvg bit for bit; the state is v by parameter."""

    def new_value(self, key: str, old: np.ndarray, mean: np.ndarray, updates: Sequence[base.SiteUpdate]) -> np.ndarray:
        beta, gradient = self.config.beta, old - mean
        velocity = beta * self.state.get(key, np.zeros_like(old)) + gradient
        direction = gradient + beta * velocity if self.config.nesterov else velocity
        self.state[key] = np.asarray(velocity)
        return np.asarray(old - self.config.server_lr * direction)
