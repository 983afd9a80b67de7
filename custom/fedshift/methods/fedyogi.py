"""FedYogi: Yogi at the server on the sites' mean change.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2. As FedAdam, with another second moment::

    v ← v − (1 − β2) Δ² sign(v − Δ²)

In a round v moves by no more than (1 − β2) Δ². When the changes become small, v keeps its size, and steps stay short,
for much longer than with FedAdam, whose v falls by the part 1 − β2 of itself in every round.

Options, deviations, choices and what was read are FedAdam's.

When: FedAdam's model swings from round to round.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from fedshift.methods.shared import adaptive, search

SEARCH = {**adaptive.SEARCH, "beta2": search.choice(0.9, 0.99, 0.999)}


class Config(adaptive.Config):
    """Options of FedYogi."""

    beta2: float = Field(default=0.99, ge=0, lt=1)


class Server(adaptive.Server[Config]):
    """FedAvg with Yogi at the server."""

    def second_moment(self, v: np.ndarray, squared: np.ndarray) -> Any:
        """A step towards Δ² that is as long as (1 − β2) Δ²."""
        return v - (1 - self.config.beta2) * squared * np.sign(v - squared)
