"""FedHarmo: HarmoFL as a whole: amplitude normalisation of the images and weight perturbation in every local step.

Jiang et al., "HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous Medical Images",
AAAI 2022 (FedFA's tables call it FedHarmo). Images are normalised as by ``harmofl``; every local step is::

    δ = α g / (‖g‖ + 1e-12),   g = ∇f(w)
    w ← optimiser step from w with the gradient ∇f(w + δ)

which is FedSAM's step with ρ = α.

Choices: α = 0.05 as in the authors' code. Their networks normalise with batch statistics at test time as well (no
running ones); here batch norm is the task's network's own. Deviations and ``variant`` are those of ``harmofl``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from pydantic import Field
from torch import Tensor

from fedshift.methods import base, harmofl
from fedshift.methods.fedsam import perturbed_step


class Config(harmofl.Config):
    """Options of FedHarmo."""

    alpha: float = Field(default=0.05, ge=0)


class Client(harmofl.Client):
    """Normalises images and takes the local step."""

    name = "fedharmo"
    owns = frozenset({"step"})

    def step(self, closure: Callable[[], Tensor], ctx: base.Context) -> Tensor:
        """Two passes, one step."""
        return perturbed_step(closure, ctx.run, rho=cast(Config, self.config).alpha)


class Server(harmofl.Server):
    """Averages the spectra once."""

    name = "fedharmo"
