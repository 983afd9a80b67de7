"""FedAdam: Adam at the server on the sites' mean change.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2. With avg = Σ_k c_k w_k::

    Δ = avg − w,    m ← β1 m + (1 − β1) Δ,    v ← β2 v + (1 − β2) Δ²,    w ← w + η m / (√v + τ)

m is 0 and v is τ² at first. The algorithm has c_k = 1/K, the paper's experiments n_k/n.

A parameter moves by about η in a round whatever the length of the sites' changes, unless these are small beside τ. So
``server_lr`` and ``optimizer.lr`` are tuned apart, and ``server_lr`` needs it more than any option of FedAvgM.

Deviations: batch-norm statistics are averaged as in FedAvg, because a variance could become negative. Parameters that
stay at the sites have no moments.

Choices: η = 0.01 has to be tuned for every task: the authors' tables of tuned values have η from 10⁻²·⁵ to 1 and τ from
10⁻⁵ to 0.1, with 0.001 as the start that they recommend.

The authors' code is not Algorithm 2 to the letter. It takes Keras' optimisers, so that FedAdam and FedYogi multiply η
by √(1 − β2^t) / (1 − β1^t) in round t, which corrects the moments' bias; v is 0 at first, and β2 is 0.999. This is not
offered as a variant: it is mostly a factor on an η that is tuned.

Read: the authors' code and its tables (google-research/federated, ``optimization/docs/hyperparameters.md`` and
``utils/optimizers/yogi.py``); of Algorithm 2 Flower and FL-bench, which agree with the formulas but for v, 0 at first
there too. The paper's text was not at hand: v = τ² at first, and β2, are what others write of it.

When: parameters whose changes differ much in size, many rounds, and time to tune ``server_lr``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from fedshift.methods.shared import adaptive, search

SEARCH = {**adaptive.SEARCH, "beta2": search.choice(0.9, 0.99, 0.999)}


class Config(adaptive.Config):
    """Options of FedAdam."""

    beta2: float = Field(default=0.99, ge=0, lt=1)


class Server(adaptive.Server[Config]):
    """FedAvg with Adam at the server."""

    def second_moment(self, v: np.ndarray, squared: np.ndarray) -> Any:
        return self.config.beta2 * v + (1 - self.config.beta2) * squared
