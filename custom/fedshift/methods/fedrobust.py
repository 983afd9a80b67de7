"""FedRobust: train on images changed by an affine adversary that maximises the loss.

Reisizadeh et al., "Robust Federated Learning: The Case of Affine Distribution Shifts", NeurIPS 2020. Each site has
an adversary x ↦ Γ x + s δ that acts on the channels of every pixel, Γ (C, C), δ (C,). For each batch of n images::

    a(Γ, δ) = n f(w; Γ x + s δ) − λ_δ ‖δ‖² − λ_Γ ‖Γ − I‖²      f the task's loss, a mean over the batch
    Γ ← Γ + η_Γ ∇_Γ a,    δ ← δ + η_δ ∇_δ a                     one ascent step
    w ← optimiser step on f(w; Γ x + s δ)                       one descent step, with the new Γ, δ

s is the range of the site's training images, largest minus smallest intensity, measured once, before its first round of
training. The authors' images lie in [0, 1], where s is 1; an absolute shift would do nothing to images in [0, 255].
Γ starts at I and δ at 0. Both stay at the site and persist over batches and rounds. Defaults are the authors' code's.

Deviations from the paper:

- The authors' Γ maps the flattened image to itself, which for 3 x 256 x 256 pixels has 4e10 entries. Here Γ maps
  channels; in segmentation these are the neighbouring slices that the network sees together.
- The authors average models after every step (``schedule.local_steps=1``), here after every round.
- The adversary acts on images after ``inputs``, normalised as the network sees them; the result is not clipped.
- The shift is in units of the images' range.

The adversary's pass does not update running statistics, and it uses the same random draws (dropout, FedFA) as the
training pass.

When: sites, or later users, whose images differ in gain, offset or tint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedshift.methods import base
from fedshift.methods.shared import search
from fedshift.methods.shared.features import over_space
from fedshift.methods.shared.passes import probing
from fedshift.schema.errors import ConfigError
from fedshift.schema.messages import Arrays
from fedshift.schema.strict import Strict

# A step times its penalty must stay below 1, whatever is drawn.
SEARCH = {
    "step_delta": search.log(0.004, 0.1),
    "penalty_delta": search.log(0.8, 9),
    "step_gamma": search.log(0.0003, 0.003),
    "penalty_gamma": search.log(30, 300),
}


class Config(Strict):
    """Options of FedRobust.

    ``step_delta``: step size of δ's ascent. ``step_gamma``: step size of Γ's. ``penalty_delta``: λ_δ.
    ``penalty_gamma``: λ_Γ.
    """

    step_delta: float = Field(default=0.02, ge=0)
    step_gamma: float = Field(default=0.001, ge=0)
    penalty_delta: float = Field(default=4.0, ge=0)
    penalty_gamma: float = Field(default=100.0, ge=0)

    def model_post_init(self, _context: object) -> None:
        for name in ("delta", "gamma"):
            step, penalty = getattr(self, f"step_{name}"), getattr(self, f"penalty_{name}")
            if step * penalty >= 1:
                raise ConfigError(
                    "options-clash",
                    f"method fedrobust: step_{name} {step:g} times penalty_{name} {penalty:g} must be below 1, or the "
                    f"adversary diverges: lower step_{name}",
                )


class Affine(NamedTuple):
    """The adversary: ``gamma`` (C, C), ``delta`` (C,), and ``scale``, the images' range s."""

    gamma: Tensor
    delta: Tensor
    scale: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """Γ x + s δ for every pixel, (B, C, *spatial) -> the same shape."""
        convolve = functional.conv3d if x.dim() == 5 else functional.conv2d
        return convolve(x, over_space(self.gamma, x), self.scale * self.delta)


def ascend(affine: Affine, risk: Tensor, *, n: int, config: Config) -> Affine:
    """One ascent step on n f − λ_δ ‖δ‖² − λ_Γ ‖Γ − I‖²; ``risk`` is f, computed with ``affine``."""
    grad_gamma, grad_delta = torch.autograd.grad(n * risk, (affine.gamma, affine.delta))
    gamma, delta = affine.gamma.detach(), affine.delta.detach()
    eye = torch.eye(len(gamma), dtype=gamma.dtype, device=gamma.device)
    return Affine(
        gamma + config.step_gamma * (grad_gamma - 2 * config.penalty_gamma * (gamma - eye)),
        delta + config.step_delta * (grad_delta - 2 * config.penalty_delta * delta),
        affine.scale,
    )


def intensity_range(data: base.TrainingSamples, run: base.Run) -> float:
    """Largest minus smallest intensity of a site's training images, normalised as at test."""
    low, high = float("inf"), -float("inf")
    for chunk, _ in data.chunks():
        x = run.normalise(chunk.to(run.device), training=False)
        low, high = min(low, float(x.min())), max(high, float(x.max()))
    return high - low


class Client(base.Client[Config]):
    """Keeps the site's adversary and trains on the images that it changes."""

    idle = (
        base.Rule("penalty_delta", "step_delta is 0", {"step_delta": 0}),
        base.Rule("penalty_gamma", "step_gamma is 0", {"step_gamma": 0}),
    )

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        if "range" not in ctx.state:
            ctx.state["range"] = torch.tensor(intensity_range(data, ctx.run), dtype=torch.float64)

    def batch(self, batch: base.Batch, ctx: base.Context) -> base.Batch:
        """Update the adversary with one ascent step, then apply it to the batch."""
        x = batch.x
        affine = self._affine(x, ctx)
        affine = Affine(affine.gamma.requires_grad_(), affine.delta.requires_grad_(), affine.scale)
        with probing(ctx.run, x.device):
            risk = ctx.run.objective(ctx.run.net(affine(x)), batch.y)
        affine = ascend(affine, risk, n=len(x), config=self.config)
        ctx.scratch["affine"] = affine
        return base.Batch(affine(x), batch.y)

    def checkpoint(self, ctx: base.Context) -> dict[str, Tensor]:
        affine: Affine = ctx.scratch["affine"]
        return {"gamma": affine.gamma.detach(), "delta": affine.delta.detach()}

    def restore(self, kept: Mapping[str, Tensor], ctx: base.Context) -> None:
        scale = float(ctx.state["range"])
        ctx.scratch["affine"] = Affine(kept["gamma"].to(ctx.run.device), kept["delta"].to(ctx.run.device), scale)

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        """Keep Γ and δ for the next round; nothing is sent."""
        affine: Affine = ctx.scratch["affine"]
        ctx.state["gamma"], ctx.state["delta"] = affine.gamma.cpu(), affine.delta.cpu()
        return {}

    def _affine(self, x: Tensor, ctx: base.Context) -> Affine:
        """The current adversary, on the images' device."""
        if "affine" in ctx.scratch:
            affine: Affine = ctx.scratch["affine"]
            return affine
        scale = float(ctx.state["range"])
        if "gamma" in ctx.state:
            return Affine(ctx.state["gamma"].to(x, copy=True), ctx.state["delta"].to(x, copy=True), scale)
        channels = x.shape[1]
        return Affine(torch.eye(channels).to(x), torch.zeros(channels).to(x), scale)
