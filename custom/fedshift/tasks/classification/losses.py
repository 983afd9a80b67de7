"""Losses of a classification, by name: ``ce``, ``weighted_ce``, ``monai.FocalLoss``, or an installed package's.

They take logits (B, K) and a target: classes (B,) int64, or shares of classes (B, K) as methods that mix samples make
them; of findings (B, K), NaN where unknown. ``ce`` is cross-entropy over the classes, or of each finding (binary).

- **One class**: the mean over samples.
- **Findings**: the mean over samples of the mean over the findings that are known of a sample; one without any adds
  nothing. So a site that knows few findings has losses of the same size as others, and no sample's loss depends on
  another sample.

``weighted_ce`` weighs each sample by its class, by default such that at the site all classes weigh the same and the
mean weight is 1; of findings, such that those with and those without weigh the same. The sum is divided by the number
of samples, not by that of weights, so that a batch may go through the network in parts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedshift.schema.components import package_of
from fedshift.schema.errors import ConfigError
from fedshift.schema.strict import Strict, nearest
from fedshift.schema.task import LossSpec
from fedshift.tasks import package_losses
from fedshift.tasks.losses import Logits, main
from fedshift.tasks.precision import precise

CE, WEIGHTED, FOCAL = "ce", "weighted_ce", "monai.FocalLoss"
NAMES = (CE, WEIGHTED, FOCAL)
Elements = Callable[[Tensor, Tensor], Tensor]
"""The loss of each entry, (B, K), of logits and shares (B, K)."""


class WeightedOptions(Strict):
    """``weights``: one positive number for each class; of findings, what a case with it weighs, one without weighs 1.

    By default they follow from the site's training images.
    """

    weights: tuple[float, ...] | None = None


class FocalOptions(Strict):
    """As MONAI has them: ``gamma``; ``alpha`` and ``weight``, one number for each class; of findings ``alpha`` may be
    one number, the weight of cases with the finding, and 1 - alpha is that of the others.
    """

    gamma: float = Field(default=2.0, ge=0)
    alpha: float | tuple[float, ...] | None = None
    weight: tuple[float, ...] | None = None


class Loss:
    """A scalar for a batch, in float32 (float64 stays); see the module."""

    def __init__(self, spec: LossSpec, *, n_classes: int, findings: bool, where: str) -> None:
        """``where`` names the task in errors.

        Raises:
            ConfigError: no such loss, or options that do not fit.
        """
        of_package = package_of(spec.name) is not None
        if not of_package and spec.name not in NAMES:
            raise ConfigError("loss-unfit", f"{where}: there is no loss {spec.name!r} here{nearest(spec.name, NAMES)}")
        self._n_classes, self._findings = n_classes, findings
        self._weights: Tensor | None = None
        """(K,), or of findings (2, K): of cases without and with each."""
        self.by_site = False
        """Whether weights follow from a site's training images."""
        self._focal: Elements | None = None
        self._of_package: package_losses.Function | None = None
        place = f"{where}: loss {spec.name}"
        if of_package and findings:
            raise ConfigError("loss-unfit", f"{place} is of one class for each image, not of findings: take {CE}")
        if of_package:
            self._of_package = package_losses.function_of(spec.name, spec.options)
            _try(self._of_package, n_classes, where=place)
        if spec.name == CE and spec.options:
            raise ConfigError("unknown-option", f"{place} has no options: take {WEIGHTED} or {FOCAL}")
        if spec.name == WEIGHTED:
            weights = WeightedOptions.parse(spec.options, where=place).weights
            self.by_site = weights is None
            if weights is not None:
                numbers = _numbers("weights", weights, n_classes, where=place)
                self._weights = torch.stack([torch.ones(n_classes), numbers]) if findings else numbers
        if spec.name == FOCAL:
            self._focal = _focal(FocalOptions.parse(spec.options, where=place), n_classes, findings, where=place)

    def at(self, labels: np.ndarray) -> Loss:
        """The loss at a site with these labels of training images: classes (n,), or findings (n, K)."""
        if not len(labels) or not self.by_site:
            return self
        loss = copy.copy(self)
        loss._weights = _by_frequency(labels, self._n_classes, findings=self._findings)
        return loss

    def __call__(self, logits: Logits, target: Tensor) -> Tensor:
        x = precise(main(logits))
        weights = None if self._weights is None else self._weights.to(x)
        if self._findings:
            return self._of_findings(x, target, weights)
        if self._focal is not None:
            return self._focal(x, self._shares(target).to(x)).sum(1).mean()
        if self._of_package is not None:
            return self._of_package(x, self._shares(target).to(x))
        if weights is None:
            return functional.cross_entropy(x, target)
        return functional.cross_entropy(x, target, weights, reduction="none").mean()

    def _shares(self, target: Tensor) -> Tensor:
        return target if target.is_floating_point() else functional.one_hot(target, self._n_classes)

    def _of_findings(self, x: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
        known = ~target.isnan()
        shares = target.nan_to_num(0).to(x)
        if self._focal is not None:
            loss = self._focal(x, shares)
        else:
            loss = functional.binary_cross_entropy_with_logits(x, shares, reduction="none")
        if weights is not None:
            loss = loss * (weights[0] + shares * (weights[1] - weights[0]))
        return (torch.where(known, loss, 0).sum(1) / known.sum(1).clamp(min=1)).mean()


def _numbers(key: str, values: Sequence[float], n_classes: int, *, where: str) -> Tensor:
    if len(values) != n_classes or min(values) <= 0:
        raise ConfigError(
            "invalid-value", f"{where}: {key} must be {n_classes} numbers above 0, one for each class, not {values}"
        )
    return torch.tensor(values, dtype=torch.float32)


def _by_frequency(labels: np.ndarray, n_classes: int, *, findings: bool) -> Tensor:
    """Weights (K,), or (2, K) of cases without and with each finding; 1 for what is not there to be weighed."""
    if not findings:
        counts = np.bincount(labels, minlength=n_classes)
        even = len(labels) / (counts > 0).sum()
        return torch.from_numpy(np.where(counts > 0, even / np.maximum(counts, 1), 1.0)).float()
    counts = np.stack([(labels == value).sum(0) for value in (0, 1)])
    even = counts.sum(0) / 2
    return torch.from_numpy(np.where(counts.all(0), even / np.maximum(counts, 1), 1.0)).float()


def _focal(options: FocalOptions, n_classes: int, findings: bool, *, where: str) -> Elements:
    from monai.losses import FocalLoss

    chosen: dict[str, Any] = {"gamma": options.gamma}
    if options.weight is not None:
        chosen["weight"] = _numbers("weight", options.weight, n_classes, where=where)
    if isinstance(options.alpha, tuple):
        chosen["alpha"] = _numbers("alpha", options.alpha, n_classes, where=where)
    elif options.alpha is not None:
        if not findings or not 0 < options.alpha < 1:
            mend = "between 0 and 1" if findings else f"{n_classes} numbers, one for each class"
            raise ConfigError("invalid-value", f"{where}: alpha must be {mend}, not {options.alpha}")
        chosen["alpha"] = options.alpha
    focal: Elements = FocalLoss(use_softmax=not findings, reduction="none", **chosen)
    _try(focal, n_classes, where=where)
    return focal


def _try(loss: Elements, n_classes: int, *, where: str) -> None:
    """Options that the installed MONAI, or a package's loss, does not take are found here."""
    with torch.device("cpu"):
        try:
            shares = functional.one_hot(torch.arange(3) % n_classes, n_classes).float()
            fits = bool(loss(torch.zeros(3, n_classes), shares).isfinite().all())
        except (TypeError, ValueError, RuntimeError) as error:
            reason = (str(error).splitlines() or [""])[0]
            raise ConfigError("loss-unmade", f"{where} cannot be made with these options ({reason})") from None
    if not fits:
        raise ConfigError("loss-unmade", f"{where} gives no finite number with these options")


def balanced_draw(labels: np.ndarray, *, findings: bool) -> np.ndarray:
    """With which weight each image (n,) is drawn, so that classes, or those with and without a finding, come equally.

    Of findings those of which the site has images of both kinds count, and if there is none all images do equally.
    """
    if not findings:
        return np.asarray(1 / np.bincount(labels)[labels])
    counts = np.stack([(labels == value).sum(0) for value in (0, 1)])
    each = counts.all(0) / np.maximum(counts, 1)
    weights: np.ndarray = ((labels == 0) * each[0] + (labels == 1) * each[1]).sum(1)
    return weights if weights.any() else np.ones(len(labels))
