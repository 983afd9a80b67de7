"""What methods that change features share: formulas over two or three spatial dimensions, stages, targets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedshift.methods.base import Run
from fedshift.runtime.regions import IGNORED
from fedshift.schema.errors import ConfigError
from fedshift.tasks.precision import precise
from fedshift.tasks.stages import Stage


def spatial_dims(x: Tensor) -> tuple[int, ...]:
    """Numbers of the spatial dimensions: (2, 3) for images, (2, 3, 4) for volumes."""
    return tuple(range(2, x.dim()))


def over_space(values: Tensor, x: Tensor) -> Tensor:
    """Values per sample and channel, (B, C), or for one of them, in a shape that broadcasts over the space of ``x``."""
    return values.reshape(*values.shape, *[1] * (x.dim() - 2))


def beta(alpha: float, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Beta(α, α) draws, float32. torch's own take no generator."""
    seed = int(torch.randint(2**62, (), generator=rng))
    return torch.from_numpy(np.asarray(np.random.default_rng(seed).beta(alpha, alpha, shape), np.float32))


def soft(y: Tensor, n_classes: int) -> Tensor:
    """Targets as class shares: (B,) -> (B, K), (B, *spatial) -> (B, K, *spatial); soft ones stay as they are.

    Voxels to ignore have a share of 0 of each class.
    """
    if y.is_floating_point():
        return y
    ignored = (y == IGNORED) & (y >= n_classes)
    return functional.one_hot(y.masked_fill(ignored, 0), n_classes).movedim(-1, 1).float() * ~ignored[:, None]


def structures(y: Tensor, run: Run) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each foreground class, or region, of targets (B, *spatial): where it is, and where it may be, both bool.

    The latter has the voxels to ignore as well.
    """
    ignored = (y == IGNORED) & (y >= run.n_classes)
    if run.regions is None:
        masks: Iterator[Tensor] = (y == number for number in range(1, run.n_classes))
    else:
        table = torch.from_numpy(run.regions.table).to(y.device)
        masks = (mask & ~ignored for mask in (table[y.masked_fill(ignored, 0)]).unbind(-1))
    return ((mask, mask | ignored) for mask in masks)


def on_grid_of(y: Tensor, features: Tensor) -> Tensor:
    """Features (B, C, …) with as many voxels as the targets (…, *spatial), linearly interpolated."""
    if features.shape[2:] == y.shape[1:]:
        return features
    mode = "trilinear" if y.dim() == 4 else "bilinear"
    return functional.interpolate(features, y.shape[1:], mode=mode, align_corners=False)


def mean_over(features: Tensor, mask: Tensor) -> Tensor:
    """Mean features over masks (B, *spatial) that are not empty: (V·B, C, *spatial) -> (V, B, C)."""
    z = features.unflatten(0, (-1, len(mask))).flatten(3)  # type: ignore[no-untyped-call]
    weights = mask.to(z).flatten(1)
    return torch.einsum("vbcs,bs->vbc", z, weights / weights.sum(1, keepdim=True))


def blend(a: Tensor, b: Tensor, share: Tensor) -> Tensor:
    """``share * a + (1 - share) * b``, in the dtype of ``a``; one share for each sample, (B,), or for all, (1,)."""
    x, y = precise(a), precise(b)
    share = share.to(x).reshape(-1, *[1] * (a.dim() - 1))
    return (share * x + (1 - share) * y).to(a.dtype)


def stages_of(net: nn.Module, layers: Iterable[int] | None, method: str) -> dict[int, Stage]:
    """The network's stages by their number from 1: those named in ``layers``, or all; refuses others."""
    stages: dict[int, Stage] = dict(enumerate(getattr(net, "stages", ()), start=1))
    if not stages:
        raise ConfigError(
            "method-needs", f"method {method}: network {type(net).__name__} names no stages, so no layer can be placed"
        )
    chosen = sorted(set(stages if layers is None else layers))
    unknown = [number for number in chosen if number not in stages]
    if unknown:
        raise ConfigError(
            "unknown-layer",
            f"method {method}: layers {unknown} do not exist; the network has stages 1 to {len(stages)}",
        )
    return {number: stages[number] for number in chosen}
