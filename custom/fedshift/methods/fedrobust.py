"""FedRobust: train on images that an affine adversary has made as hard as it may.

Reisizadeh et al., "Robust Federated Learning: The Case of Affine Distribution Shifts", NeurIPS 2020. Each site has
an adversary x ↦ Γ x + δ that acts on the channels of every pixel, Γ (C, C), δ (C,). For each batch of n images::

    a(Γ, δ) = n f(w; Γ x + δ) − λ_δ ‖δ‖² − λ_Γ ‖Γ − I‖²        f the task's loss, a mean over the batch
    Γ ← Γ + η_Γ ∇_Γ a,    δ ← δ + η_δ ∇_δ a                     one step up
    w ← optimiser step on f(w; Γ x + δ)                         one step down, with the new Γ, δ

Γ = I, δ = 0 at the start; both stay at the site from batch to batch and from round to round. Steps and penalties are
those of the authors' code (0.001, 0.02, 100, 4).

Deviations: the authors' Γ maps the whole flattened image to itself, which for 3 x 256 x 256 pixels has 4e10 entries,
so here it maps channels (in segmentation the neighbouring slices that a network sees together). The authors average
models after every step (``schedule.local_steps=1``); here after a round. Images are those after ``inputs``,
normalised as the network sees them, and are not clipped. The pass for the adversary moves no running statistics
and has the same random draws (dropout, FedFA's) as the pass that trains.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedshift.methods import base
from fedshift.methods.shared.passes import probing
from fedshift.schema.errors import ConfigError
from fedshift.schema.messages import Arrays
from fedshift.schema.strict import Strict


class Config(Strict):
    """Options of FedRobust."""

    step_delta: float = Field(default=0.02, ge=0)
    step_gamma: float = Field(default=0.001, ge=0)
    penalty_delta: float = Field(default=4.0, ge=0)
    penalty_gamma: float = Field(default=100.0, ge=0)

    def model_post_init(self, _context: object) -> None:
        """Refuse a step that overshoots its own penalty further every time."""
        for name in ("delta", "gamma"):
            step, penalty = getattr(self, f"step_{name}"), getattr(self, f"penalty_{name}")
            if step * penalty >= 1:
                raise ConfigError(
                    f"method fedrobust: step_{name} {step:g} times penalty_{name} {penalty:g} must be below 1, or the "
                    f"adversary grows without end: lower step_{name}"
                )


class Affine(NamedTuple):
    """The adversary: ``gamma`` (C, C) and ``delta`` (C,)."""

    gamma: Tensor
    delta: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Γ x + δ for every pixel, (B, C, H, W) -> the same shape."""
        return functional.conv2d(x, self.gamma[:, :, None, None], self.delta)


def ascend(affine: Affine, risk: Tensor, *, n: int, config: Config) -> Affine:
    """One step up on n f − λ_δ ‖δ‖² − λ_Γ ‖Γ − I‖²; ``risk`` is f, made from ``affine``."""
    grad_gamma, grad_delta = torch.autograd.grad(n * risk, (affine.gamma, affine.delta))
    gamma, delta = affine.gamma.detach(), affine.delta.detach()
    eye = torch.eye(len(gamma), dtype=gamma.dtype, device=gamma.device)
    return Affine(
        gamma + config.step_gamma * (grad_gamma - 2 * config.penalty_gamma * (gamma - eye)),
        delta + config.step_delta * (grad_delta - 2 * config.penalty_delta * delta),
    )


class Client(base.Client[Config]):
    """Keeps the site's adversary and trains on what it makes."""

    def batch(self, batch: base.Batch, ctx: base.Context) -> base.Batch:
        """Move the adversary by one step, then put its images in place of the batch's."""
        x = batch.x
        affine = self._affine(x, ctx)
        affine = Affine(affine.gamma.requires_grad_(), affine.delta.requires_grad_())
        with probing(ctx.run, x.device):
            risk = ctx.run.objective(ctx.run.net(affine(x)), batch.y)
        affine = ascend(affine, risk, n=len(x), config=self.config)
        ctx.scratch["affine"] = affine
        return base.Batch(affine(x), batch.y)

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        """Keep Γ and δ for the next round; nothing is sent."""
        affine: Affine = ctx.scratch["affine"]
        ctx.state["gamma"], ctx.state["delta"] = affine.gamma.cpu(), affine.delta.cpu()
        return {}

    def _affine(self, x: Tensor, ctx: base.Context) -> Affine:
        """The adversary as it is now, on the images' device."""
        if "affine" in ctx.scratch:
            affine: Affine = ctx.scratch["affine"]
            return affine
        if "gamma" in ctx.state:
            return Affine(ctx.state["gamma"].to(x, copy=True), ctx.state["delta"].to(x, copy=True))
        channels = x.shape[1]
        return Affine(torch.eye(channels).to(x), torch.zeros(channels).to(x))
