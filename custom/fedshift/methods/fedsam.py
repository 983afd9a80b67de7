"""FedSAM: take every local step with the gradient at the worst point nearby, so that flat minima are found.

Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization", ICML 2022; Caldarola et al., "Improving
Generalization in Federated Learning by Seeking Flat Minima", ECCV 2022 (FedASAM). Every local step::

    SAM:    ε = ρ g / (‖g‖ + 1e-12),                          g = ∇f(w), one norm over all parameters
    ASAM:   ε = ρ T² g / (‖T g‖ + 1e-12),   T = |w| + η       elementwise (Kwon et al., ICML 2021)
    w ← optimiser step from w with the gradient ∇f(w + ε)

Both passes use the same batch and the same random draws. Running statistics (batch norm, FedFA's) are updated in the
first pass only, as in FedFA's code. w is restored from copies, so no rounding error remains. The step is taken by the
task's own optimiser, whichever it is.

Deviations from the paper: FedASAM's code does not scale parameters whose name is not "weight" (T = 1) and updates
batch-norm statistics in both passes; here T follows the formula for all parameters. The reported loss is that of the
first pass.

When: small sites; a model that must generalise to unseen sites.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from pydantic import Field
from torch import Tensor

from fedshift.methods import base
from fedshift.schema.strict import Strict

TINY = 1e-12


class Config(Strict):
    """Options of FedSAM.

    ``rho``: ρ; 0 is ``fedavg``. ``adaptive``: scale ε element by element with the weights (ASAM). ``eta``: η of the
    adaptive form.
    """

    rho: float = Field(default=0.05, ge=0)
    adaptive: bool = False
    eta: float = Field(default=0.0, ge=0)


def perturbation(
    weights: list[Tensor], gradients: list[Tensor], *, rho: float, adaptive: bool = False, eta: float = 0.0
) -> list[Tensor]:
    """ε for every parameter; ``adaptive`` scales elementwise with |w| + ``eta``."""
    scales = [w.abs() + eta for w in weights] if adaptive else []
    directions = [g * t for g, t in zip(gradients, scales, strict=True)] if adaptive else gradients
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(d) for d in directions]))
    factor = rho / (norm + TINY)
    if adaptive:
        return [factor * d * t for d, t in zip(directions, scales, strict=True)]
    return [factor * d for d in directions]


def perturbed_step(
    closure: Callable[[], Tensor], run: base.Run, *, rho: float, adaptive: bool = False, eta: float = 0.0
) -> Tensor:
    """One optimiser step from w with the gradient at w + ε; returns the loss at w."""
    assert run.optimizer is not None
    loss = closure()
    moved = [p for p in run.net.parameters() if p.grad is not None]
    with torch.no_grad():
        gradients = [p.grad for p in moved if p.grad is not None]
        origin = [p.detach().clone() for p in moved]
        for p, e in zip(moved, perturbation(origin, gradients, rho=rho, adaptive=adaptive, eta=eta), strict=True):
            p.add_(e)
    closure()
    with torch.no_grad():
        for p, w in zip(moved, origin, strict=True):
            p.copy_(w)
    run.optimizer.step()
    return loss


class Client(base.Client[Config]):
    """Takes the local step with the gradient at w + ε."""

    in_ranks = frozenset({"step"})
    owns = frozenset({"step"})
    idle = (base.Rule("eta", "it belongs to adaptive SAM: --set fedsam.adaptive=true as well", {"adaptive": False}),)

    def step(self, closure: Callable[[], Tensor], ctx: base.Context) -> Tensor:
        """Two forward and backward passes, one optimiser step."""
        c = self.config
        return perturbed_step(closure, ctx.run, rho=c.rho, adaptive=c.adaptive, eta=c.eta)
