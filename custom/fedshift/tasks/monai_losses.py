"""Losses of ``monai.losses``, by name: ``loss: {name: monai.DiceCELoss, options: {…}}``.

Options are MONAI's own, without those that follow from the task: activation, one-hot coding and reduction. What each
loss can do is in `ALLOWED`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedshift.schema.errors import ConfigError
from fedshift.schema.regions import Regions
from fedshift.schema.strict import nearest

PREFIX = "monai."
Base = Callable[[Tensor, Tensor], Tensor]
"""A loss of one pair of logits and target."""


@dataclass(frozen=True)
class Allowed:
    """A loss of ``monai.losses``.

    ``activation``: options that follow from classes that exclude each other. ``soft``: whether targets may be shares of
    classes. ``marginal``: whether it is of the softmax's probabilities alone, so that classes can be added up.
    ``foreground``: whether it can be of the foreground alone; not where MONAI cuts the background off before the
    softmax, which then never learns it. ``everywhere``: whether it needs all voxels, and not single ones.
    """

    activation: Mapping[str, Any]
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
"""A class whose voxels count for nothing. It would be another class where classes that a site has not outlined are left
out, and the others numbered anew."""
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


def build(
    name: str, options: Mapping[str, Any], *, outputs: int, annotated: tuple[int, ...] | None, regions: Regions | None
) -> Base:
    """A loss with a job's options.

    Args:
        name: with `PREFIX`.
        options: the job's.
        outputs: how many classes, with background, or regions the network gives.
        annotated: the classes or regions that are outlined; None for all.
        regions: of the task.

    Raises:
        ConfigError: an option that does not exist, that the task decides, or whose value does not fit.
    """
    allowed = ALLOWED[name.removeprefix(PREFIX)]
    chosen = _chosen(name, options, allowed, outputs=outputs, annotated=annotated, regions=regions)
    return _loss(name, chosen, allowed, of_regions=regions is not None)


def _loss(name: str, chosen: Mapping[str, Any], allowed: Allowed, *, of_regions: bool) -> Base:
    if not of_regions:
        return _Monai(*(_class(name)(**chosen, **allowed.activation, to_onehot_y=hard) for hard in (True, False)))
    activation = {} if "use_softmax" in allowed.activation else SIGMOID
    loss = _class(name)(**chosen, **activation, include_background=True, to_onehot_y=False)  # the first is a region too
    return _OfRegions(_DiceBce(loss) if name == f"{PREFIX}DiceCELoss" else loss)


def _class(name: str) -> Any:
    module = importlib.import_module("monai.losses")
    short = name.removeprefix(PREFIX)
    loss_class = getattr(module, short, None)
    if (
        loss_class is None
        or not ALLOWED[short].activation.keys() <= inspect.signature(loss_class.__init__).parameters.keys()
    ):
        message = f"loss {name} is not in the MONAI that is installed, or takes no softmax there: install a newer one"
        raise ConfigError("library-old", message)
    return loss_class


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

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self._loss: Any = loss

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        weight = self._loss.binary_cross_entropy.pos_weight
        if weight is not None:
            weight = weight.reshape(-1, *[1] * (logits.dim() - 2))
        cross_entropy = functional.binary_cross_entropy_with_logits(logits, target, pos_weight=weight)
        loss: Tensor = self._loss.lambda_dice * self._loss.dice(logits, target) + self._loss.lambda_ce * cross_entropy
        return loss
