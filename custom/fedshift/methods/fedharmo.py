"""FedHarmo: both parts of HarmoFL, amplitude normalisation of images and weight perturbation in every local step.

Jiang et al., "HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous Medical Images",
AAAI 2022 (called FedHarmo in FedFA's tables). Images are normalised as in ``harmofl``; every local step is::

    δ = α g / (‖g‖ + 1e-12),   g = ∇f(w)
    w ← optimiser step from w with the gradient ∇f(w + δ)

This is FedSAM's step with ρ = α.

Choices: α = 0.05 as in the authors' code.

Deviations: the authors' networks use batch statistics at test time as well and keep no running statistics, nor scale
and shift; here batch norm is used as the task's network defines it (the U-Net has ``norm: batch_statistics``). Other
deviations are those of ``harmofl``.

When: to compare with FedFA's "FedHarmo" rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from pydantic import Field
from torch import Tensor

from fedshift.methods import base, harmofl
from fedshift.methods.fedsam import perturbed_step


class Config(harmofl.Config):
    """Options of FedHarmo.

    ``alpha``: length of the perturbation; 0 is ``harmofl``. ``variant``: as for ``harmofl``.
    """

    alpha: float = Field(default=0.05, ge=0)


class Client(harmofl.Client):
    """Normalises images and takes the local step with the gradient at w + δ."""

    in_ranks = frozenset({"inputs", "step"})
    owns = frozenset({"step"})

    def step(self, closure: Callable[[], Tensor], ctx: base.Context) -> Tensor:
        """Two forward and backward passes, one optimiser step."""
        return perturbed_step(closure, ctx.run, rho=cast(Config, self.config).alpha)


class Server(harmofl.Server):
    """Averages the spectra once, like HarmoFL's server."""

    name = "fedharmo"
