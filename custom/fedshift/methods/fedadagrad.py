"""FedAdagrad: Adagrad at the server on the sites' mean change.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2. As FedAdam, with a second moment that only
grows, so that steps become shorter from round to round::

    v ← v + Δ²

Deviations and what was read are FedAdam's. Choices: β1 = 0, plain Adagrad as in the authors' code, and η = 0.1, larger
than FedAdam's because v is a sum over rounds; the authors' tuned values are from 10⁻¹·⁵ to 10.

When: few rounds, in which the learning rate should fall without a schedule.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from fedshift.methods.shared import adaptive

SEARCH = adaptive.SEARCH


class Config(adaptive.Config):
    """Options of FedAdagrad."""

    beta1: float = Field(default=0.0, ge=0, lt=1)
    server_lr: float = Field(default=0.1, gt=0)


class Server(adaptive.Server[Config]):
    """FedAvg with Adagrad at the server."""

    def second_moment(self, v: np.ndarray, squared: np.ndarray) -> Any:
        return v + squared
