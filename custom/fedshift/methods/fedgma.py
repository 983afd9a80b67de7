"""FedGMA: shorten the mean change where the sites do not agree on its sign.

Tenison et al., "Gradient Masked Averaging for Federated Learning", TMLR 2023. With Δ_k = w_k − w, elementwise::

    A = |1/K Σ_k sign(Δ_k)|                            from 0, as many up as down, to 1, all the same way
    M = 1 where A ≥ τ,    A elsewhere
    w ← w + η M ⊙ Σ_k c_k Δ_k

The idea: a direction that only some sites profit from is particular to their images, and one that all take is what the
sites have in common.

Signs count once for every site, whatever c_k. τ = 0 with η = 1 is FedAvg.

Variants: ``variant: released`` is the mask of public code for domain generalisation (the benchmark of Bai et al., ICLR
2024, as FedOMG's repository has it), which contradicts the paper: it means M ← M + (1 − M) A and computes
M ← M + (0 − M) A, so that an element where all sites agree does not move at all, nor one with A < τ. τ is its step
size, too::

    M = 1 − A where A ≥ τ,    0 elsewhere;    w ← w + τ M ⊙ Σ_k c_k Δ_k

With it an odd number of sites can move only elements on which they disagree: it is here to reproduce figures.

Deviations: batch-norm statistics are averaged, not masked. The paper also puts the mask on the step of a server's
optimiser (FedAvgM, FedAdam), which owns ``combine`` here as FedGMA does; only the rule over FedAvg is here.

Choices: τ = 0.4, the default of one of the implementations below (0.1 of another); the paper tunes it. With three sites
every τ in (1/3, 1] is the same: where it is two against one, A is 1/3.

Read: three independent implementations of the paper's formula, which agree with it and each other (DecLearn/declearn;
LINs-lab/FedTHE, ``pcode/aggregation/gma_fedavg.py``; one for reinforcement learning), and the benchmark's code
(skydvn/FedOMG, ``FL_DG_Benchmark_OMG/src/server.py``). Neither the authors' code nor the paper's text was found. Code
under the method's name elsewhere (siddarth-c/FedGMA) is of an earlier paper of theirs with another mask.

When: sites that pull in opposite directions; the more sites, the finer A is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from fedshift.methods import base
from fedshift.methods.shared import search
from fedshift.methods.shared.aggregation import MeanStep
from fedshift.schema.errors import ConfigError
from fedshift.schema.strict import Strict

SEARCH = {"tau": search.choice(0.1, 0.2, 0.4, 0.6, 0.8, 1.0), "server_lr": search.log(0.3, 3)}


class Config(Strict):
    """Options of FedGMA.

    ``tau``: τ; 0 is ``fedavg``. ``server_lr``: η. ``weights``: ``samples`` is n_k/n, ``uniform`` 1/K. ``variant``:
    ``released`` is the mask of public code, with τ as step size too, which contradicts the paper.
    """

    variant: Literal["paper", "released"] = "paper"
    tau: float = Field(default=0.4, ge=0, le=1)
    server_lr: float = Field(default=1.0, gt=0)
    weights: Literal["samples", "uniform"] = "samples"

    def model_post_init(self, _context: object) -> None:
        if self.variant == "released" and self.tau == 0:
            raise ConfigError(
                "options-clash",
                "method fedgma: variant released steps by tau, so with tau 0 no round changes the model: use "
                "--set fedgma.tau=0.4",
            )


def mask(agreement: np.ndarray, *, tau: float, released: bool) -> np.ndarray:
    """M from A, of the same shape."""
    agreed = agreement >= tau
    return np.where(agreed, 1 - agreement, 0.0) if released else np.where(agreed, 1.0, agreement)


class Client(base.Client[Config]):
    """Plain local training."""

    idle = (base.Rule("server_lr", "variant released steps by tau", {"variant": "released"}),)


class Server(MeanStep[Config]):
    """The sites' mean change, masked by the agreement of their signs."""

    tells_sites_apart = True

    def new_value(self, key: str, old: np.ndarray, mean: np.ndarray, updates: Sequence[base.SiteUpdate]) -> np.ndarray:
        """Return w + η M ⊙ Σ_k c_k Δ_k."""
        released = self.config.variant == "released"
        signs = np.zeros(old.shape)
        for update in updates:
            signs += np.sign(update.weights[key] - old)
        moves = mask(np.abs(signs) / len(updates), tau=self.config.tau, released=released)
        return np.asarray(old + (self.config.tau if released else self.config.server_lr) * moves * (mean - old))
