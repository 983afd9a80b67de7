"""What FedAdam, FedYogi and FedAdagrad share: the server's step, with one step size for each parameter.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2. The sites' mean change is a gradient for an
adaptive optimiser at the server, and the methods differ in the second moment v only::

    Δ = Σ_k c_k (w_k − w)
    m ← β1 m + (1 − β1) Δ,    v ← the method's,    w ← w + η m / (√v + τ)          m = 0 and v = τ² at first
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import Field

from fedshift.methods.base import SiteUpdate
from fedshift.methods.shared import search
from fedshift.methods.shared.aggregation import MeanStep
from fedshift.schema.strict import Strict

SEARCH = {
    "beta1": search.choice(0.0, 0.5, 0.9, 0.99),
    "tau": search.log(1e-4, 0.1),
    "server_lr": search.log(0.001, 0.3),
}


class Config(Strict):
    """Options of all three.

    ``beta2``: of the second moment. ``tau``: τ, changes that are small beside it are not scaled up. ``server_lr``: η,
    about how far a parameter moves in a round. ``beta1``: of the first moment. ``weights``: ``samples`` is n_k/n,
    ``uniform`` 1/K.
    """

    beta1: float = Field(default=0.9, ge=0, lt=1)
    tau: float = Field(default=1e-3, gt=0, le=1e6)
    server_lr: float = Field(default=0.01, gt=0)
    weights: Literal["samples", "uniform"] = "samples"


ConfigT = TypeVar("ConfigT", bound=Config)


class Server(MeanStep[ConfigT]):
    """An adaptive step on trainable parameters; ``m.<key>`` and ``v.<key>`` of the state are the moments, float64."""

    @abstractmethod
    def second_moment(self, v: np.ndarray, squared: np.ndarray) -> Any:
        """Return the new v from the old one and Δ², elementwise."""

    def new_value(self, key: str, old: np.ndarray, mean: np.ndarray, updates: Sequence[SiteUpdate]) -> np.ndarray:
        """Return w + η m / (√v + τ)."""
        config, change = self.config, mean - old
        m = config.beta1 * self.state.get(f"m.{key}", np.zeros_like(old)) + (1 - config.beta1) * change
        v = self.second_moment(self.state.get(f"v.{key}", np.full_like(old, config.tau**2)), change**2)
        self.state[f"m.{key}"], self.state[f"v.{key}"] = np.asarray(m), np.asarray(v)
        return np.asarray(old + config.server_lr * m / (np.sqrt(v) + config.tau))
