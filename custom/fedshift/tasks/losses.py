"""Segmentation losses by name: FedFA's two, those of MONAI (`fedshift.tasks.monai_losses`), and those of packages.

A loss takes logits (B, K, *spatial) and a target: classes (B, *spatial) int64, or shares of the classes
(B, K, *spatial), which methods that mix samples make. What is common to all of them:

- **Deep supervision.** A list of logits from fine to coarse (`fedshift.tasks.monai_networks.Segmenter`) is weighted
  1, 1/2, 1/4 …, normalised to a sum of 1, as in nnU-Net; the target is sampled at the coarser voxels' centres. Unlike
  nnU-Net, which leaves out the coarsest, all outputs that the network gives count.
- **Classes that a site has not outlined** (``annotated``) may be anywhere in what its masks call background. Their
  probabilities are added to the background's, before any loss (marginal loss: Fang and Yan, TMI 2020; Shi et al.,
  Medical Image Analysis 2021), by the logarithm of the sum of exponentials over their logits and the background's.
- **Regions** (`fedshift.schema.regions`) have an output each: classes, or shares of them, become regions, and the loss
  is of sigmoids, a mean over regions. Those that a site's masks do not outline are left out.
- **Voxels to ignore** (of value `IGNORED`, or of shares that lack a part) are taken out before any loss, so that it is
  over the others, of the batch for fedshift's losses and with ``batch: true``, else a mean over samples that have some.
- **Precision**: float32 (float64 stays), whatever the network computes in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedshift.runtime.regions import IGNORED
from fedshift.schema.components import package_of
from fedshift.schema.errors import ConfigError
from fedshift.schema.regions import Regions
from fedshift.schema.strict import nearest
from fedshift.tasks import monai_losses, package_losses
from fedshift.tasks.monai_losses import ALLOWED, PREFIX, Base
from fedshift.tasks.precision import precise

SMOOTH = 1e-5

Logits = Tensor | Sequence[Tensor]
"""What a network gives: logits, or in training with deep supervision a list of them from fine to coarse."""


def main(logits: Logits) -> Tensor:
    """The logits at full size, which methods see."""
    return logits if isinstance(logits, Tensor) else logits[0]


def dice_loss(logits: Tensor, target: Tensor) -> Tensor:
    """1 − mean over classes of the soft Dice over the whole batch (FedFA's loss; background included).

    ``logits`` (B, K, *spatial); ``target`` (B, *spatial) int64 or soft (B, K, *spatial).
    """
    probability = logits.softmax(1)
    return _soft_dice(probability, shares(target, logits.shape[1]).to(probability.dtype))


def _soft_dice(probability: Tensor, target: Tensor) -> Tensor:
    """1 − mean over channels of the soft Dice of two (B, K, *spatial), over all else."""
    dims = (0, *range(2, probability.dim()))
    overlap = (probability * target).sum(dims)
    dice = (2 * overlap + SMOOTH) / (probability.sum(dims) + target.sum(dims) + SMOOTH)
    return 1 - dice.mean()


def ce_dice_loss(logits: Tensor, target: Tensor) -> Tensor:
    """(cross-entropy + Dice loss) / 2 (FedFA)."""
    return (functional.cross_entropy(logits, target) + dice_loss(logits, target)) / 2


def shares(target: Tensor, n_classes: int) -> Tensor:
    """Classes (B, *spatial) as (B, K, *spatial); shares stay as they are."""
    return target if target.is_floating_point() else functional.one_hot(target, n_classes).movedim(-1, 1)


def regions_dice_loss(logits: Tensor, target: Tensor) -> Tensor:
    """`dice_loss` of regions; both (B, R, *spatial)."""
    return _soft_dice(logits.sigmoid(), target)


def regions_ce_dice_loss(logits: Tensor, target: Tensor) -> Tensor:
    """`ce_dice_loss` of regions, with the mean of their binary cross-entropies; both (B, R, *spatial)."""
    return (functional.binary_cross_entropy_with_logits(logits, target) + regions_dice_loss(logits, target)) / 2


BUILT_IN: Mapping[str, Base] = {"ce_dice": ce_dice_loss, "dice": dice_loss}
BUILT_IN_OF_REGIONS: Mapping[str, Base] = {"ce_dice": regions_ce_dice_loss, "dice": regions_dice_loss}


WHOLE = 0.999
"""Sum of a voxel's shares from which on none of them is ignored."""
SURE = 30.0
"""A logit so far above the others that its softmax is 1 in float32."""


def available() -> list[str]:
    return [*BUILT_IN, *(PREFIX + name for name in ALLOWED)]


def takes_soft_targets(name: str) -> bool:
    """Whether targets may be shares of classes, as methods that mix samples make them."""
    allowed = ALLOWED.get(name.removeprefix(PREFIX))
    return allowed is None or allowed.soft


class Loss:
    """A scalar for a batch; see the module. ``soft`` says whether targets may be shares of classes."""

    def __init__(
        self,
        name: str,
        base: Base,
        *,
        soft: bool,
        annotated: tuple[int, ...] | None,
        regions: Regions | None = None,
        ignores: bool = False,
        by_sample: bool = False,
    ) -> None:
        """Make a loss of a loss of all voxels.

        Args:
            name: of ``base``.
            base: of classes, or of regions.
            soft: whether targets may be shares of classes.
            annotated: foreground classes, or of ``regions`` the numbers from 0, that are outlined; None for all.
            regions: of the task.
            ignores: whether targets may have voxels to ignore.
            by_sample: whether ``base`` is a mean over samples.
        """
        self.name, self.soft = name, soft
        self._base, self._annotated, self._ignores, self._by_sample = base, annotated, ignores, by_sample
        kept = None if regions is None else regions.table if annotated is None else regions.table[:, list(annotated)]
        self._table = None if kept is None else torch.from_numpy(kept).float()

    def __call__(self, logits: Logits, target: Tensor) -> Tensor:
        """The loss, in float32 or float64."""
        if target.is_floating_point() and not self.soft:
            raise ConfigError(
                "loss-unfit",
                f"loss {self.name} takes one class for each voxel, and a method of this job mixes them: take "
                f"{PREFIX}DiceCELoss, or leave the method out",
            )
        if isinstance(logits, Tensor):
            return self._of_output(logits, target)
        weights = [0.5**number for number in range(len(logits))]
        losses = [self._of_output(output, _at(target, output.shape[2:])) for output in logits]
        parts = [weight / sum(weights) * loss for weight, loss in zip(weights, losses, strict=True)]
        return torch.stack(parts).sum()

    def _of_output(self, logits: Tensor, target: Tensor) -> Tensor:
        logits = precise(logits)
        if not self._ignores:
            return self._of_known(logits, target)
        known = target.sum(1) > WHOLE if target.is_floating_point() else target != IGNORED
        if known.all():
            return self._of_known(logits, target)
        if not self._by_sample:
            return self._of_some(logits, target, known)
        losses = [self._of_some(*(part[None] for part in each)) for each in zip(logits, target, known, strict=True)]
        return torch.stack(losses).sum() / known.flatten(1).any(1).sum().clamp(min=1)

    def _of_some(self, logits: Tensor, target: Tensor, known: Tensor) -> Tensor:
        """Of the voxels ``known`` (B, *spatial) as one row; 0 if there is none."""
        if not known.any():
            return (logits * 0).sum()
        logits = logits.movedim(1, -1)[known].T[None]
        target = target.movedim(1, -1)[known].T[None] if target.is_floating_point() else target[known][None]
        return self._of_known(logits, target)

    def _of_known(self, logits: Tensor, target: Tensor) -> Tensor:
        if self._table is not None:
            logits = logits if self._annotated is None else logits[:, list(self._annotated)]
            return self._base(logits, in_regions(target, self._table.to(logits)))
        if self._annotated is not None:
            logits, target = marginal(logits, target, annotated=self._annotated)
        return self._base(logits, target)


def in_regions(target: Tensor, table: Tensor) -> Tensor:
    """Classes (B, *spatial), or shares of them (B, K, *spatial), as shares of regions (B, R, *spatial).

    ``table`` (K, R): the part of each class that is in a region, 0 or 1.
    """
    classes = target.movedim(1, -1).to(table) @ table if target.is_floating_point() else table[target]
    return classes.movedim(-1, 1)


def marginal(logits: Tensor, target: Tensor, *, annotated: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Logits and target of background and the annotated classes; all other classes are part of the background.

    The softmax of the new logits (B, 1 + A, *spatial) is the sum of the old one's over the classes put together.
    """
    n_classes = logits.shape[1]
    kept = list(annotated)
    rest = [number for number in range(n_classes) if number not in kept]
    merged = torch.cat([logits[:, rest].logsumexp(1, keepdim=True), logits[:, kept]], 1)
    if target.is_floating_point():
        return merged, torch.cat([target[:, rest].sum(1, keepdim=True), target[:, kept]], 1)
    places = torch.zeros(n_classes, dtype=target.dtype, device=target.device)
    places[kept] = torch.arange(1, len(kept) + 1, dtype=target.dtype, device=target.device)
    return merged, places[target]


def _at(target: Tensor, size: Sequence[int]) -> Tensor:
    """A target at a coarser size: the value at the centre of each voxel."""
    spatial = target.shape[-len(size) :]
    for axis, (whole, part) in enumerate(zip(spatial, size, strict=True), start=target.dim() - len(size)):
        if whole != part:
            centres = (torch.arange(part, device=target.device) * 2 + 1) * whole // (2 * part)
            target = target.index_select(axis, centres)
    return target


def make_loss(
    name: str,
    options: Mapping[str, Any],
    *,
    n_classes: int,
    annotated: Sequence[int] | None = None,
    dims: int = 2,
    regions: Regions | None = None,
    ignores: bool = False,
) -> Loss:
    """A loss by name. One of MONAI is tried once, so that bad values of its options are found here.

    Args:
        name: one of `available`, or of an installed package (`fedshift.tasks.package_losses`).
        options: the package's, or MONAI's own, of which activation, one-hot coding and reduction are set here.
        n_classes: with background.
        annotated: the foreground classes (their indices, from 1) that the site's masks outline; None for all.
        dims: spatial ones of the images, in which the loss is tried.
        regions: of the task, which the network's outputs are then.
        ignores: whether targets may have voxels to ignore.

    Raises:
        ConfigError: no such loss or option, a value that does not fit, a number of weights that is not the number of
            classes, no annotated class or region, or a loss that cannot leave classes or voxels out.
    """
    of_package = package_of(name) is not None
    if not of_package and name not in available():
        raise ConfigError("unknown-loss", f"there is no loss {name!r}{nearest(name, available())}")
    outputs = n_classes if regions is None else len(regions.names)
    partial = _partial(name, annotated, n_classes, regions)
    if name in BUILT_IN:
        if options:
            raise ConfigError(
                "unknown-option",
                f"loss {name} has no options: leave out {', '.join(options)}, or take {PREFIX}DiceCELoss",
            )
        base = BUILT_IN[name] if regions is None else BUILT_IN_OF_REGIONS[name]
        return Loss(name, base, soft=True, annotated=partial, regions=regions, ignores=ignores)
    if of_package:
        if (partial is not None or ignores) and not package_losses.is_of_probabilities(name):
            raise ConfigError(
                "loss-unfit",
                f"loss {name} does not say that classes and voxels can be left out of it (OF_PROBABILITIES), and the "
                f"task has voxels to ignore, or a site does not outline all classes: take {PREFIX}DiceCELoss",
            )
        with torch.device("cpu"), _making(name, options):
            base = _of_package(name, options, of_regions=regions is not None)
            loss = Loss(name, base, soft=True, annotated=partial, regions=regions, ignores=ignores)
            _try(loss, n_classes=n_classes, dims=dims, regions=regions)
        return loss
    allowed = ALLOWED[name.removeprefix(PREFIX)]
    if regions is None and partial is not None and not allowed.marginal:
        raise ConfigError(
            "loss-unfit",
            f"loss {name} cannot leave classes out, since it is not of the softmax's probabilities alone, and a site "
            f"annotates {len(partial)} of {n_classes - 1} classes: take {PREFIX}DiceCELoss",
        )
    if ignores and allowed.everywhere:
        raise ConfigError(
            "loss-unfit",
            f"loss {name} is of distances or centre lines, which need all voxels, and the task has voxels to ignore: "
            f"take {PREFIX}DiceCELoss",
        )
    about: dict[str, Any] = {"annotated": partial, "regions": regions, "ignores": ignores}
    # Jobs are checked with tasks that are made without memory, and a trial needs values.
    with torch.device("cpu"), _making(name, options):
        base = monai_losses.build(name, options, outputs=outputs, annotated=partial, regions=regions)
        loss = Loss(name, base, soft=allowed.soft, by_sample=not options.get("batch"), **about)
        _try(loss, n_classes=n_classes, dims=dims, regions=regions)
    return loss


@contextmanager
def _making(name: str, options: Mapping[str, Any]) -> Iterator[None]:
    """What another library's loss says of options that it cannot take, as one sentence."""
    try:
        yield
    except (TypeError, ValueError, AttributeError, AssertionError, KeyError, IndexError, RuntimeError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ConfigError(
            "loss-unmade", f"loss {name}: no such loss can be made with options {dict(options)} ({reason})"
        ) from None


def _of_package(name: str, options: Mapping[str, Any], *, of_regions: bool) -> Base:
    function = package_losses.function_of(name, options, of_regions=of_regions)
    if of_regions:
        return function
    return lambda logits, target: function(logits, shares(target, logits.shape[1]).to(logits.dtype))


def _partial(
    name: str, annotated: Sequence[int] | None, n_classes: int, regions: Regions | None
) -> tuple[int, ...] | None:
    """The classes, or the numbers of the regions, that are outlined; None for all."""
    if annotated is None:
        return None
    kept = tuple(sorted(set(annotated)))
    if not kept or kept[0] < 1 or kept[-1] >= n_classes:
        raise ConfigError(
            "invalid-value",
            f"loss {name}: annotated classes are some of 1 to {n_classes - 1}, not {list(kept) or 'none'}",
        )
    if regions is None:
        return None if len(kept) == n_classes - 1 else kept
    known = regions.known(kept)
    if not known:
        raise ConfigError("invalid-value", f"loss {name}: the annotated classes are all of no region")
    return None if len(known) == len(regions.names) else known


def _try(loss: Loss, *, n_classes: int, dims: int, regions: Regions | None) -> None:
    """Call a loss on a sample that the network is sure of and on one that it is not; both have voxels of all classes.

    No side has a length that a list with a number for each class could be taken for.

    Raises:
        ValueError: it is no finite number.
    """
    target = (torch.arange(n_classes + 3) % n_classes).expand(2, *[2] * (dims - 1), n_classes + 3)
    soft = shares(target, n_classes).float()
    sure = soft if regions is None else 2 * in_regions(soft, torch.from_numpy(regions.table).float()) - 1
    logits = sure * torch.tensor([SURE, 0.0]).reshape(2, *[1] * (dims + 1))
    for each in (target, soft) if loss.soft else (target,):
        value = loss(logits, each)
        if value.shape or not value.isfinite():
            raise ValueError(f"in a trial it was {value.tolist()}, not a finite number")
