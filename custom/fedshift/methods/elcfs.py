"""ELCFS (FedDG): train in episodes on images with other sites' amplitudes, and hold features of boundaries apart.

Liu, Chen, Qin, Dou and Heng, "FedDG: Federated Domain Generalization on Medical Image Segmentation via Episodic
Learning in Continuous Frequency Space", CVPR 2021. Sites share low-frequency amplitudes A_j of single images once,
the distribution bank. M is the centre of the spectrum, up to b = ⌊α · shortest side⌋ cycles an axis. In each step an
image x becomes, for every other site n and with one of its spectra j drawn at random::

    A' = (1−λ) A + λ A_j  in M,   A' = A elsewhere,    λ ~ U(0, 1),    t = F⁻¹( A' exp(i arg F(x)) )
    inner step       θ̂ = θ − β ∇L_seg(x; θ)
    objective of θ   L_seg(x; θ) + L_seg(t; θ̂) + γ L_boundary(x, t; θ̂)

L_boundary: for each class, h are the mean features before the last layer over the class's boundary (the mask without
its erosion by 1 pixel) and over the background beside it (its dilation by 5 without the mask), of x and of each t.
With cosine similarity s, for two of the same kind (p) of one image, and q over those of the other kind::

    ℓ(h_m, h_p) = −log( exp(s_mp / τ) / (exp(s_mp / τ) + Σ_q exp(s_mq / τ)) )
    L_boundary  = mean over pairs m < p of the same kind

The defaults of α, β (``inner_lr``), γ (``contrast``) and τ are the paper's.

Read: the authors' code (liuquande/FedDG-ELCFS, ``train_ELCFS.py`` and ``dataloaders``), and of the paper its abstract
and readers' notes of its equations. There the sum over q in ℓ has a factor F, which is 0 for one sort of pairs and 1
for the other, and L_boundary is a mean with 1 − F over pairs. The pairs of that mean are of the same kind, so F is 0
for them, and the sum in ℓ is over the other kind alone.

Deviations from the paper:

- As the equation is read, exp(s_mp / τ) is not in the sum of ℓ (``bounded: false``). ℓ then has no 0 to stop at: with
  τ = 0.05 it falls to −40 as the two kinds part, and γ ℓ outweighs the task's loss. On the prostate Dice was 9 with it
  and 51 with the pair in the sum, as in NT-Xent and in the authors' code
  (``benchmarks/results/elcfs_contrast``).
- As printed, A' is (1−λ)A outside of M and λA_j within; the authors' demonstration interpolates within M, and so does
  this.
- A site sends ``spectra`` amplitudes of training images drawn at random, not of all; nothing outside of M, and half
  of M, because the other half is its mirror image.
- ``lam`` bounds λ: U(0, lam). ``partners`` bounds the other sites of a step, drawn for each image; null is all.
- ``order: first`` takes the inner gradient as a constant. With ``second`` it is differentiated, as the equations say.
- L_boundary is a sum over the classes, as in the code, which has two; images without one of the two regions are left
  out.
- The inner step is taken on the loss as it is when this method is asked for its terms: that of the task. Gradient
  clipping, ``gradients`` of other methods and the optimiser see the whole objective; the reported loss is the
  objective.
- The pass at θ̂ moves no running statistics; with batch norm, x and all t are one batch. t is not clipped.

In 3D the spectrum is that of the patch over three axes, M is a cube, and masks grow and shrink to six neighbours. In
classification there are no boundaries: the rest is as it is.

``variant: released`` follows the authors' code. λ is 1 and M the DC term alone, with one other site a step;
the inner gradient is a constant, clamped to ±100; features of x are those at θ, and L_boundary is NT-Xent over all
features of the batch, bounded too: every ordered pair counts. The code's clipping of t to [0, 255] is left out.

When: a model for sites that it has not seen, where sites may share spectra. Below 100 pixels, ``alpha`` of 0.01 is the
brightness alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from fedshift.methods import base
from fedshift.methods.shared import search
from fedshift.methods.shared.features import mean_over, on_grid_of, over_space, spatial_dims, structures
from fedshift.methods.shared.passes import at_weights, same_precision, uncounted
from fedshift.schema.messages import Arrays
from fedshift.schema.strict import Strict
from fedshift.tasks.kinds import build_task
from fedshift.tasks.last_layers import last_layers
from fedshift.tasks.precision import precise
from fedshift.tasks.stages import StagedNetwork

LARGEST = 1e10
"""Bound on an amplitude: number of pixels times largest intensity."""
BOUNDARY, BACKGROUND = 1, 5
"""Pixels by which masks are eroded and dilated."""
LARGEST_GRADIENT = 100.0

SEARCH = {"alpha": search.log(0.005, 0.1), "lam": None, "spectra": None, "partners": None}


class Config(Strict):
    """Options of ELCFS.

    ``alpha``: half the side of the centre, as a part of the image's shortest side. ``lam``: λ ~ U(0, lam). ``spectra``:
    training images whose low-frequency amplitudes a site sends. ``partners``: other sites in a step; null for all.
    ``inner_lr``: β. ``order``: ``second`` differentiates the inner gradient, ``first`` takes it as a constant.
    ``contrast``: γ. ``bounded``: true has the pair itself in the sum of L_boundary, as the authors' code has; false is
    the equation as it is read, whose loss has no least value. ``temperature``: of L_boundary. ``variant``: ``released``
    replaces the brightness alone, in full, with that of one other site; the inner gradient is a constant, and the
    contrast is NT-Xent over the batch.
    """

    variant: Literal["paper", "released"] = "paper"
    alpha: float = Field(default=0.01, ge=0, lt=0.5)
    lam: float = Field(default=1.0, ge=0, le=1)
    spectra: int = Field(default=16, ge=1)
    partners: int | None = Field(default=None, ge=1)
    inner_lr: float = Field(default=1e-3, ge=0)
    order: Literal["second", "first"] = "second"
    contrast: float = Field(default=0.1, ge=0)
    bounded: bool = True
    temperature: float = Field(default=0.05, gt=0)

    @property
    def reach(self) -> float:
        return 0.0 if self.variant == "released" else self.alpha


# --- spectra --------------------------------------------------------------------------------------------


def low_sides(spatial: tuple[int, ...], *, alpha: float) -> tuple[int, ...]:
    """Sides of the stored half of M, for images of sides ``spatial``."""
    b = math.floor(alpha * min(spatial))
    return (*[2 * b + 1] * (len(spatial) - 1), b + 1)


def low_places(spatial: Sequence[int], *, alpha: float) -> tuple[Any, ...]:
    """Index of M in a spectrum (B, C, …, W // 2 + 1)."""
    b = math.floor(alpha * min(spatial))
    axes = [torch.arange(-b, b + 1) % side for side in spatial[:-1]]
    return (slice(None), slice(None), *torch.meshgrid(*axes, torch.arange(b + 1), indexing="ij"))


def low_amplitude(x: Tensor, *, alpha: float) -> Tensor:
    """|F(x)| in M: (B, C, *spatial) -> (B, C, *`low_sides`)."""
    amplitude: Tensor = torch.fft.rfftn(x, dim=spatial_dims(x))[low_places(x.shape[2:], alpha=alpha)].abs()
    return amplitude


def with_low_amplitude(x: Tensor, other: Tensor, share: Tensor, *, alpha: float) -> Tensor:
    """T of images (B, C, *spatial), with the spectra (B, C, *`low_sides`) and λ (B,)."""
    dims, places = spatial_dims(x), low_places(x.shape[2:], alpha=alpha)
    spectrum = torch.fft.rfftn(x, dim=dims)
    low = spectrum[places]
    share = over_space(share.to(x)[:, None], x)
    spectrum[places] = torch.polar((1 - share) * low.abs() + share * other.to(x), low.angle())
    image: Tensor = torch.fft.irfftn(spectrum, s=x.shape[2:], dim=dims)
    return image


# --- boundaries -----------------------------------------------------------------------------------------


def dilated(mask: Tensor, times: int) -> Tensor:
    """Masks (B, *spatial) of 0 and 1, grown by their neighbours along the axes."""
    pool = functional.max_pool3d if mask.dim() == 4 else functional.max_pool2d
    axes = range(mask.dim() - 1)
    for _ in range(times):
        along = [pool(mask[:, None], [1 + 2 * (i == a) for i in axes], 1, [int(i == a) for i in axes]) for a in axes]
        mask = torch.stack(along).amax(0)[:, 0]
    return mask


def eroded(mask: Tensor, times: int) -> Tensor:
    """Masks (B, *spatial) of 0 and 1, with background outside of the image."""
    space = mask.dim() - 1
    around = functional.pad(1 - mask, [times] * (2 * space), value=1.0)
    inside = (slice(None), *[slice(times, -times)] * space)
    return 1 - dilated(around, times)[inside]


def edges(y: Tensor, run: base.Run) -> Iterator[tuple[Tensor, Tensor]]:
    """Boundary and background beside it, (B, *spatial) each, of every foreground class, or region.

    Where voxels that are to be ignored begin there is no boundary, and they are no background.
    """
    for inside, possible in structures(y, run):
        mask, whole = inside.float(), possible.float()
        yield mask * (1 - eroded(whole, BOUNDARY)), dilated(mask, BACKGROUND) * (1 - whole)


def info_nce(
    boundary: Tensor, background: Tensor, *, temperature: float, bounded: bool = True, released: bool = False
) -> Tensor:
    """L_boundary of one class, from features (V, B, C) each of V versions of B images; a scalar."""
    h = functional.normalize(torch.cat([boundary, background]), dim=-1)
    if released:
        h = h.flatten(0, 1)[:, None]
    h = h.transpose(0, 1)
    similar = h @ h.transpose(1, 2) / temperature
    kind = torch.arange(h.shape[1], device=h.device) >= h.shape[1] // 2
    same = kind[:, None] == kind
    others = similar.masked_fill(same, -torch.inf).logsumexp(-1, keepdim=True)
    losses = functional.softplus(others - similar) if bounded else others - similar
    pairs = same & ~torch.eye(len(kind), dtype=torch.bool, device=h.device) if released else same.triu(1)
    return losses[:, pairs].mean()


def boundary_loss(
    features: Tensor, y: Tensor, run: base.Run, *, temperature: float, bounded: bool = True, released: bool = False
) -> Tensor:
    """The sum of `info_nce` over classes, or regions; features (V·B, C, …) of V versions of the images.

    ``y``: their masks (B, *spatial).
    """
    features = on_grid_of(y, precise(features))
    total = features.new_zeros(())
    versions = features.reshape(-1, *y.shape[:1], *features.shape[1:])
    for boundary, background in edges(y, run):
        has_both = (boundary.flatten(1).sum(1) > 0) & (background.flatten(1).sum(1) > 0)
        if has_both.any():
            z = versions[:, has_both].flatten(0, 1)
            means = (mean_over(z, mask[has_both]) for mask in (boundary, background))
            total = total + info_nce(*means, temperature=temperature, bounded=bounded, released=released)
    return total


class Client(base.Client[Config]):
    """Sends spectra once and trains in episodes."""

    takes_gradients = True
    needs = (base.Rule("two sites", "they exchange spectra"),)
    clashes = (
        base.Rule("reads what a step's last pass computes", "has two passes in a step"),
        base.Rule("normalises images", "exchanges spectra of images as they are"),
        base.Rule("mixes images and their targets", "needs masks with boundaries"),
    )
    idle = (
        base.Rule(
            "alpha lam partners order",
            "variant released takes the whole brightness of one other site, and the inner gradient as a constant",
            {"variant": "released"},
        ),
        base.Rule("bounded", "variant released is bounded", {"variant": "released"}),
        base.Rule(
            "partners",
            "there are no more other sites, all of which take part by default",
            lambda case: (case.config.partners or 0) >= len(case.job.task.sites) - 1,
        ),
        base.Rule("order", "inner_lr is 0", {"inner_lr": 0}),
        base.Rule("bounded temperature", "contrast is 0", {"contrast": 0}),
        base.Rule(
            "contrast bounded temperature",
            "images with one label each have no boundaries",
            lambda case: not build_task(case.job).dense,
        ),
    )

    def up(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        c = self.config
        what = "brightness"
        if c.reach:
            what += f" and structure with periods from {1 / c.reach:.3g} pixels on, without its position,"
        return {
            "spectra": base.ArraySpec(
                ("spectra", cast(StagedNetwork, net).in_channels, "spatial"),
                when="once",
                low=0,
                high=LARGEST,
                reveals=f"{what} of each of up to {c.spectra} single training images, drawn at random",
                kind="images",
                sides=partial(low_sides, alpha=c.reach),
            )
        }

    def statistics(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        chosen = torch.zeros(data.n_train, dtype=torch.bool)
        chosen[torch.randperm(data.n_train, generator=ctx.rng("images"))[: self.config.spectra]] = True
        spectra, start = [], 0
        for x, _ in data.chunks():
            picked = chosen[start : start + len(x)]
            start += len(x)
            if picked.any():  # some transforms refuse a batch of none
                spectra.append(low_amplitude(x[picked], alpha=self.config.reach))
        return {"spectra": torch.cat(spectra).float().numpy()}

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        """All sites' spectra, apart from this one's."""
        self._banks: list[Tensor] = []
        if not arrays:
            return
        owner, sites = arrays["owner"], ctx.run.sites
        own_index = sites.index(ctx.run.site) if ctx.run.site in sites else -1
        self._banks = [torch.from_numpy(arrays["spectra"][owner == n]) for n in np.unique(owner) if n != own_index]

    def attach(self, net: nn.Module, ctx: base.Context) -> list[RemovableHandle]:
        """Keep the features before the last layer of each training pass, if boundaries are to be held apart."""
        if not (self.config.contrast and ctx.run.dense):
            return []

        def keep(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if net.training and "moved" in ctx.scratch:
                ctx.scratch["features"] = inputs[0]

        return [last_layers(net)[0].register_forward_pre_hook(keep)]

    def batch(self, batch: base.Batch, ctx: base.Context) -> base.Batch:
        """Make t of every image, for each of its other sites; the batch stays."""
        if not self._banks:
            return batch
        c, n = self.config, len(batch.x)
        released = c.variant == "released"
        count = min(1 if released else c.partners or len(self._banks), len(self._banks))
        rng = ctx.rng("spectra")
        sites = [torch.randperm(len(self._banks), generator=rng)[:count].tolist() for _ in range(n)]
        moved = []
        for number in range(count):
            banks = [self._banks[order[number]] for order in sites]
            places = (torch.rand(n, generator=rng, dtype=torch.float64) * torch.tensor([len(b) for b in banks])).long()
            spectra = torch.stack([bank[place] for bank, place in zip(banks, places.tolist(), strict=True)])
            share = torch.ones(n) if released else c.lam * torch.rand(n, generator=rng)
            moved.append(with_low_amplitude(batch.x, spectra.to(batch.x), share, alpha=c.reach))
        ctx.scratch["moved"] = torch.cat(moved)
        return batch

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        """Add the loss of t, and that of boundaries, at the weights after the inner step."""
        if not self._banks:
            return loss
        c, run = self.config, ctx.run
        released = c.variant == "released"
        moved = ctx.scratch["moved"]
        contrast = bool(c.contrast) and run.dense
        before = ctx.scratch.pop("features", None)
        first = len(batch.x) if contrast and not released else 0  # images of the pass that are not in its task's loss
        x = torch.cat([batch.x, moved]) if first else moved
        weights = self._stepped(loss, run.net)
        with uncounted(run), at_weights(run.net, weights), same_precision(logits):
            outer = run.net(x)
        outer = outer[first:] if isinstance(outer, Tensor) else [output[first:] for output in outer]
        y = batch.y.repeat(len(moved) // len(batch.y), *[1] * (batch.y.dim() - 1))
        loss = loss + run.objective(outer, y)
        if contrast:
            features = ctx.scratch.pop("features")
            if released:
                features = torch.cat([before, features])
            loss = loss + c.contrast * boundary_loss(
                features,
                batch.y,
                run,
                temperature=c.temperature,
                bounded=c.bounded or released,
                released=released,
            )
        return loss

    def _stepped(self, loss: Tensor, net: nn.Module) -> dict[Tensor, Tensor]:
        """θ̂ by the parameter that it stands for."""
        c, released = self.config, self.config.variant == "released"
        second = bool(c.inner_lr) and c.order == "second" and not released
        parameters = list(net.parameters())
        gradients = torch.autograd.grad(loss, parameters, create_graph=second, retain_graph=True, allow_unused=True)
        stepped: dict[Tensor, Tensor] = {}
        for p, g in zip(parameters, gradients, strict=True):
            if g is not None:
                stepped[p] = p - c.inner_lr * (g.clamp(-LARGEST_GRADIENT, LARGEST_GRADIENT) if released else g)
        return stepped


class Server(base.Server[Config]):
    """Keeps all spectra and sends them to every site."""

    def down(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        spec = Client(self.config).up(net)["spectra"]
        return {
            "spectra": base.ArraySpec(spec.shape, reveals="all sites' `spectra`", keep=False, sides=spec.sides),
            "owner": base.ArraySpec(("spectra",), "int64", reveals="the site that each of these is of", keep=False),
        }

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        if ctx.round == 0:
            sent = [update.arrays["elcfs"]["spectra"] for update in updates]
            owner = [ctx.sites.index(update.site) for update in updates]
            self.state = {
                "spectra": np.concatenate(sent),
                "owner": np.repeat(np.asarray(owner, np.int64), [len(array) for array in sent]),
            }

    def broadcast(self, ctx: base.ServerContext) -> Arrays:
        return self.state
