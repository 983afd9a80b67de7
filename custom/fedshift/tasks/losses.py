"""Segmentation losses by name: FedFA's two, and those of ``monai.losses`` (``loss: {name: monai.DiceCELoss, …}``).

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

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedshift.runtime.regions import IGNORED
from fedshift.schema.components import package_of
from fedshift.schema.errors import ConfigError
from fedshift.schema.regions import Regions
from fedshift.schema.strict import nearest
from fedshift.tasks import package_losses
from fedshift.tasks.precision import precise

SMOOTH = 1e-5
PREFIX = "monai."

Logits = Tensor | Sequence[Tensor]
"""What a network gives: logits, or in training with deep supervision a list of them from fine to coarse."""
Base = Callable[[Tensor, Tensor], Tensor]
"""A loss of one pair of logits and target."""


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


OWN: Mapping[str, Base] = {"ce_dice": ce_dice_loss, "dice": dice_loss}
OWN_OF_REGIONS: Mapping[str, Base] = {"ce_dice": regions_ce_dice_loss, "dice": regions_dice_loss}


@dataclass(frozen=True)
class Allowed:
    """A loss of ``monai.losses``.

    ``given``: options that follow from classes that exclude each other. ``soft``: whether targets may be shares of
    classes. ``marginal``: whether it is of the softmax's probabilities alone, so that classes can be added up.
    ``foreground``: whether it can be of the foreground alone; not where MONAI cuts the background off before the
    softmax, which then never learns it. ``everywhere``: whether it needs all voxels, and not single ones.
    """

    given: Mapping[str, Any]
    soft: bool = True
    marginal: bool = True
    foreground: bool = True
    everywhere: bool = False


SOFTMAX, SIGMOID = {"softmax": True}, {"sigmoid": True}
ALLOWED: Mapping[str, Allowed] = {
    "DiceLoss": Allowed(SOFTMAX),
    "DiceCELoss": Allowed(SOFTMAX),
    "DiceFocalLoss": Allowed(SOFTMAX, marginal=False),
    "FocalLoss": Allowed({"use_softmax": True}, foreground=False),
    "GeneralizedDiceLoss": Allowed(SOFTMAX),
    "GeneralizedDiceFocalLoss": Allowed(SOFTMAX, marginal=False),
    "HausdorffDTLoss": Allowed(SOFTMAX, soft=False, everywhere=True),
    "LogHausdorffDTLoss": Allowed(SOFTMAX, soft=False, everywhere=True),
    "SoftDiceclDiceLoss": Allowed(SOFTMAX, everywhere=True),
    "SoftclDiceLoss": Allowed(SOFTMAX, everywhere=True),
    "TverskyLoss": Allowed(SOFTMAX),
}
IGNORE_INDEX = "ignore_index"
"""A class whose voxels count for nothing. It would be another class where `marginal` numbers the classes anew."""
WITHHELD = frozenset(
    {"self", "to_onehot_y", "sigmoid", "softmax", "use_softmax", "other_act", "reduction", IGNORE_INDEX}
)
"""What the task decides, or is not plain data."""
OF_CLASSES = frozenset({"weight", "alpha"})
"""Options that may have one number for each class."""
NOT_OF_REGIONS: Mapping[str, str] = {
    "include_background": "regions have no background",
    "label_smoothing": "a binary cross-entropy has none",
}
"""Options that regions do not have, and why."""
WHOLE = 0.999
"""Sum of a voxel's shares from which on none of them is ignored."""
SURE = 30.0
"""A logit so far above the others that its softmax is 1 in float32."""


def available() -> list[str]:
    return [*OWN, *(PREFIX + name for name in ALLOWED)]


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
            return self._one(logits, target)
        weights = [0.5**number for number in range(len(logits))]
        losses = [self._one(output, _at(target, output.shape[2:])) for output in logits]
        parts = [weight / sum(weights) * loss for weight, loss in zip(weights, losses, strict=True)]
        return torch.stack(parts).sum()

    def _one(self, logits: Tensor, target: Tensor) -> Tensor:
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
    if name in OWN:
        if options:
            raise ConfigError(
                "unknown-option",
                f"loss {name} has no options: leave out {', '.join(options)}, or take {PREFIX}DiceCELoss",
            )
        base = OWN[name] if regions is None else OWN_OF_REGIONS[name]
        return Loss(name, base, soft=True, annotated=partial, regions=regions, ignores=ignores)
    if of_package:
        if (partial is not None or ignores) and not package_losses.is_of_probabilities(name):
            raise ConfigError(
                "loss-unfit",
                f"loss {name} does not say that classes and voxels can be left out of it (OF_PROBABILITIES), and the "
                f"task has voxels to ignore, or a site does not outline all classes: take {PREFIX}DiceCELoss",
            )
        with torch.device("cpu"), _made(name, options):
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
    with torch.device("cpu"):  # jobs are checked with tasks that are made without memory, and a trial needs values
        chosen = _chosen(name, options, allowed, outputs=outputs, annotated=partial, regions=regions)
        with _made(name, options):
            loss = Loss(
                name,
                _monai(name, chosen, allowed, of_regions=regions is not None),
                soft=allowed.soft,
                annotated=partial,
                regions=regions,
                ignores=ignores,
                by_sample=not options.get("batch"),
            )
            _try(loss, n_classes=n_classes, dims=dims, regions=regions)
    return loss


@contextmanager
def _made(name: str, options: Mapping[str, Any]) -> Iterator[None]:
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


def _monai(name: str, chosen: Mapping[str, Any], allowed: Allowed, *, of_regions: bool) -> Base:
    if not of_regions:
        return _Monai(*(_class(name)(**chosen, **allowed.given, to_onehot_y=hard) for hard in (True, False)))
    given = {} if "use_softmax" in allowed.given else SIGMOID
    made = _class(name)(**chosen, **given, include_background=True, to_onehot_y=False)  # the first is a region too
    return _OfRegions(_DiceBce(made) if name == f"{PREFIX}DiceCELoss" else made)


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


def _class(name: str) -> Any:
    module = importlib.import_module("monai.losses")
    short = name.removeprefix(PREFIX)
    made = getattr(module, short, None)
    if made is None or not ALLOWED[short].given.keys() <= inspect.signature(made.__init__).parameters.keys():
        said = f"loss {name} is not in the MONAI that is installed, or takes no softmax there: install a newer one"
        raise ConfigError("library-old", said)
    return made


def _chosen(
    name: str,
    options: Mapping[str, Any],
    allowed: Allowed,
    *,
    outputs: int,
    annotated: tuple[int, ...] | None,
    regions: Regions | None,
) -> dict[str, Any]:
    """A job's options as MONAI takes them."""
    parameters = inspect.signature(_class(name).__init__).parameters
    known = [key for key in parameters if key not in WITHHELD]
    background = options.get("include_background", True)
    chosen: dict[str, Any] = {}
    for key, value in options.items():
        if key == IGNORE_INDEX:
            raise ConfigError(
                "option-fixed",
                f"loss {name}: voxels to ignore are said with ignore: true in the task, and classes that a site's "
                f"masks do not outline are left out of its loss already: leave {key} out of loss.options",
            )
        if key in WITHHELD:
            raise ConfigError("option-fixed", f"loss {name}: {key} follows from the task: leave it out of loss.options")
        if key not in known:
            raise ConfigError("unknown-option", f"loss {name}: unknown option {key!r}{nearest(key, known)}")
        if regions is not None and key in NOT_OF_REGIONS:
            raise ConfigError("option-fixed", f"loss {name}: {NOT_OF_REGIONS[key]}: leave {key} out of loss.options")
        chosen[key] = _value(name, key, value, outputs, background, annotated, of_regions=regions is not None)
    if not background and not allowed.foreground:
        raise ConfigError(
            "options-clash",
            f"loss {name}: without the background (include_background: false) MONAI leaves it out of the softmax too, "
            f"and it is never learned: give it a small first number in weight instead, or take {PREFIX}DiceFocalLoss",
        )
    return chosen


def _value(
    name: str,
    key: str,
    value: Any,
    outputs: int,
    background: bool,
    annotated: tuple[int, ...] | None,
    *,
    of_regions: bool,
) -> Any:
    """An option as MONAI takes it: numbers for each class or region as a tensor, without those that are left out."""
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if not isinstance(value, list | tuple) or not all(isinstance(number, int | float) for number in value):
        raise ConfigError("invalid-value", f"loss {name}: option {key} must be a number, a word or a list of numbers")
    first = 0 if background or name == f"{PREFIX}DiceCELoss" else 1  # DiceCE's cross-entropy has all classes
    if key in OF_CLASSES and len(value) != outputs - first:
        each = "region" if of_regions else "class"
        raise ConfigError(
            "invalid-value",
            f"loss {name}: {key} must have {outputs - first} numbers, one for each {each}, not {len(value)}",
        )
    if key not in OF_CLASSES:
        return tuple(value)
    alone = () if of_regions else range(first, 1)
    kept = range(first, outputs) if annotated is None else (*alone, *annotated)
    return torch.tensor([float(value[number - first]) for number in kept])


class _Monai:
    """A loss of MONAI for classes, and the same for shares of classes."""

    def __init__(self, hard: nn.Module, soft: nn.Module) -> None:
        self._hard, self._soft = hard, soft

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        if target.is_floating_point():
            loss: Tensor = self._soft.to(logits)(logits, target.to(logits.dtype))
        else:
            loss = self._hard.to(logits)(logits, target[:, None])
        return loss


class _OfRegions:
    """A loss of MONAI for regions, with its weights where the logits are."""

    def __init__(self, loss: nn.Module) -> None:
        self._loss = loss

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = self._loss.to(logits)(logits, target)
        return loss


class _DiceBce(nn.Module):
    """MONAI's ``DiceCELoss`` for regions: it takes a cross-entropy over several outputs, as if they were classes."""

    def __init__(self, made: nn.Module) -> None:
        super().__init__()
        self._made: Any = made

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        weight = self._made.binary_cross_entropy.pos_weight
        if weight is not None:
            weight = weight.reshape(-1, *[1] * (logits.dim() - 2))
        cross_entropy = functional.binary_cross_entropy_with_logits(logits, target, pos_weight=weight)
        loss: Tensor = self._made.lambda_dice * self._made.dice(logits, target) + self._made.lambda_ce * cross_entropy
        return loss
