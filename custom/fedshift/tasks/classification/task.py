"""The task: labels, loss and scores of a classification put together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedshift.schema.errors import ConfigError
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.job import JobSpec
from fedshift.schema.strict import Strict
from fedshift.tasks.base import (
    EVALUATED,
    OneClass,
    SiteData,
    Subset,
    initial_network,
    refuse_patch_options,
    selecting,
    sizes,
)
from fedshift.tasks.classification.losses import WEIGHTED, Loss
from fedshift.tasks.classification.pictures import Images
from fedshift.tasks.classification.spec import DataSpec
from fedshift.tasks.classification.volumes import Volumes, VolumeSpec
from fedshift.tasks.evaluation import by_finding
from fedshift.tasks.evaluation.by_finding import PLAIN, Threshold
from fedshift.tasks.evaluation.calibration import Calibration
from fedshift.tasks.evaluation.case_scores import CaseScores
from fedshift.tasks.evaluation.guarantee import CaseRisks
from fedshift.tasks.evaluation.kappa import kappa, kappa_interval
from fedshift.tasks.evaluation.spread import FEWEST, distribution
from fedshift.tasks.losses import Logits

KAPPA = "kappa"


def _opened(folder: Path, spec: DataSpec | VolumeSpec, site: str) -> Images:
    if isinstance(spec, VolumeSpec):
        return Volumes(folder, spec, site=site)
    return Images(folder, spec, site=site)


class Task(OneClass):
    """Classification of the task's classes."""

    data_spec: type[Strict] = DataSpec
    dense = False
    metrics: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType(
        {"accuracy": (0, 1), "macro_accuracy": (0, 1), **dict.fromkeys(by_finding.SCORES, (0, 1)), KAPPA: (-1, 1)}
    )
    per_case = ("accuracy",)

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        refuse_patch_options(job)
        if job.evaluation.reference:
            raise ConfigError(
                "options-clash",
                f"task {job.task.name} classifies pictures, and evaluation.reference is of scans: leave it out",
            )
        where = f"task {job.task.name}"
        self.volumes = "patch" in job.task.data
        self.evaluated = 2 * Volumes.eval_batch if self.volumes else EVALUATED
        spec = VolumeSpec if self.volumes else DataSpec
        self.data_spec = spec
        self._data: DataSpec | VolumeSpec = spec.parse(job.task.data, where=f"{where}: data")
        self.findings = self._data.multi_label
        if self.findings and self._data.ordinal:
            raise ConfigError(
                "options-clash", f"{where}: grades in order are one class each: leave data.multi_label or ordinal out"
            )
        self.metric = selecting(job, self._known_scores())
        self.spatial = self._data.spatial
        sequences = self._data.channels if isinstance(self._data, VolumeSpec) else 1
        self.sizes = sizes(self.spatial, len(job.task.classes), sequences=sequences)
        self._loss = Loss(job.task.loss, n_classes=len(job.task.classes), findings=self.findings, where=where)
        self._by_class = self._tells_of_classes()
        self._thresholds: Sequence[Threshold] = [Threshold()] * len(job.task.classes)
        if isinstance(self._data, DataSpec):
            self._data.check(where)
        else:
            self._data.make_augmentation()
        self.intensities = self._data.intensities

    def _known_scores(self) -> tuple[str, ...]:
        """Scores that rounds have, the default first."""
        if self.findings:
            return (*by_finding.OF_RANKS, "accuracy")
        return ("accuracy", *by_finding.OF_RANKS, *([KAPPA] if self._data.ordinal else []))

    def _tells_of_classes(self) -> bool:
        """Whether final models are scored for each class."""
        asked = self._job.evaluation.by_class
        if asked is None:
            return self.findings or self._data.ordinal or self.metric != "accuracy"
        if not asked and self.findings:
            raise ConfigError(
                "no-effect", f"task {self._job.task.name}: findings are scored by class: leave evaluation.by_class out"
            )
        return asked

    @property
    def measures_labels(self) -> str:
        """The setting by which the training of one image depends on the labels of the site's others, if one does."""
        if self._data.sampling == "balanced":
            return "data.sampling=balanced"
        return f"loss={WEIGHTED} without weights" if self._loss.by_site else ""

    def network(self) -> nn.Module:
        return initial_network(self._job, in_channels=self._data.channels, spatial=self.spatial)

    def preparation(self) -> dict[str, Any]:
        return self._data.preparation()

    @property
    def spec(self) -> DataSpec | VolumeSpec:
        """The options of ``task.data``."""
        return self._data

    @property
    def sequences(self) -> tuple[str, ...]:
        """Names of the sequences that a volume must have; empty for a single one without a name, and for pictures."""
        return self._data.sequences if isinstance(self._data, VolumeSpec) else ()

    def open(self, folder: Path, site: str) -> Images:
        data = _opened(folder, self._data, site)
        data.check_fits(self._job, folder, site)
        return data

    def open_labelled(self, folder: Path, site: str) -> Images:
        """A prepared folder all of which is to be scored, and which need have nothing to train on; errors as `open`."""
        if isinstance(self._data, VolumeSpec):
            return _opened(folder, self._data.model_copy(update={"fold": None}), site)
        whole = {"shares": None, "fraction": 1.0, "images": None, "choose": "random"}
        return _opened(folder, self._data.model_copy(update=whole), site)

    def at(self, data: SiteData, *more: SiteData) -> Task:
        """The task with the loss of a site, or of several that are pooled: see `Loss.at`."""
        if not self._loss.by_site:
            return self
        labels = [each.train_labels for each in (data, *more) if isinstance(each, Images)]
        at_site = copy.copy(self)
        at_site._loss = self._loss.at(np.concatenate(labels))
        return at_site

    def decided(self, probabilities: Iterator[Tensor], data: SiteData) -> Task:
        """The task with the thresholds that a site's validation part chooses; probabilities as for `evaluate`."""
        if not self._by_class or not data.count("val"):
            return self
        values, truth = self._gathered(probabilities, data, "val")
        specificity = self._job.evaluation.specificity
        chosen = [by_finding.choose(truth[:, k], values[:, k], specificity=specificity) for k in range(truth.shape[1])]
        task = copy.copy(self)
        task._thresholds = chosen
        return task

    def with_thresholds(self, thresholds: Mapping[str, float], specific: Mapping[str, float]) -> Task:
        """The task that scores by class, with thresholds of findings and specific ones, which others chose."""
        task = copy.copy(self)
        task._by_class = True
        names = self._job.task.classes
        task._thresholds = [
            Threshold(thresholds.get(name, PLAIN), name in thresholds, specific.get(name)) for name in names
        ]
        return task

    def loss(self, logits: Logits, target: Tensor) -> Tensor:
        """In float32 (float64 stays); soft targets (B, K) are allowed."""
        return self._loss(logits, target)

    def logits(
        self, forward: Callable[[Tensor], Tensor], batches: Iterable[Tensor], *, final: bool, apart: bool = False
    ) -> Iterator[Tensor]:
        return map(forward, batches)

    def predicted(self, logits: Tensor) -> Tensor:
        return (
            super().predicted(logits) if self.metric == "accuracy" and not self.findings else self.probabilities(logits)
        )

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.float().sigmoid().nan_to_num_(0).cpu() if self.findings else super().probabilities(logits)

    def scores(self, predictions: Iterator[Tensor], data: SiteData, subset: Subset) -> dict[str, float]:
        """``accuracy``: the share of the subset's images whose most likely class is the right one.

        Of findings, the mean over images of the share of the known ones that are on the right side of 0.5. With
        another metric also the average over classes, or kappa.
        """
        members = data.members(subset)
        if not len(members):
            return {}
        if self.metric == "accuracy" and not self.findings:
            predicted = torch.cat(list(predictions))
            return {"accuracy": float((predicted == data.labels(members)).double().mean())}
        values, truth = self._gathered(predictions, data, subset)
        right = self._right(values, truth, self._decisions(values))
        scores = {} if np.isnan(right).all() else {"accuracy": float(np.nanmean(right))}
        if self.metric == KAPPA:
            value = kappa(truth.argmax(1), values.argmax(1))
            return scores | ({} if value is None else {KAPPA: value})
        ranks = [by_finding.rank_scores(truth[:, k], values[:, k]) for k in range(truth.shape[1])]
        return scores | by_finding.average(ranks)

    def _gathered(
        self, probabilities: Iterator[Tensor], data: SiteData, subset: Subset
    ) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities and labels of a subset, (n, K) each; labels are 1, 0, or NaN where unknown."""
        values = np.concatenate([batch.numpy() for batch in probabilities]).astype(np.float64)
        labels = data.labels(data.members(subset)).numpy()
        if not self.findings:
            labels = np.eye(values.shape[1])[labels]
        return values, labels.astype(np.float64)

    def _decisions(self, values: np.ndarray) -> np.ndarray:
        """What is said of each case and class, (n, K) bool: the most likely class, or findings from their threshold."""
        if not self.findings:
            return np.asarray(np.arange(values.shape[1]) == values.argmax(1)[:, None])
        return np.asarray(values >= np.array([threshold.decision for threshold in self._thresholds]))

    def _right(self, values: np.ndarray, truth: np.ndarray, decided: np.ndarray) -> np.ndarray:
        """Of each case (n,) whether its class is right, or which share of its known findings; NaN without any."""
        known = ~np.isnan(truth)
        right = ((decided == (truth == 1)) & known).sum(1)
        if not self.findings:
            return np.asarray(right == truth.shape[1], np.float64)
        return np.where(known.any(1), right / np.maximum(known.sum(1), 1), np.nan)

    def evaluate(
        self,
        probabilities: Iterator[Tensor],
        data: SiteData,
        subset: Subset,
        *,
        seed: int,
        share_cases: bool,
        keep: CaseScores | None = None,
    ) -> Evaluation:
        """Accuracy with its interval over subjects, and what else is told of a final model.

        Of one class each: confusion matrix and calibration, of few pictures neither. ``macro_accuracy`` is the mean
        over classes that the subset has of the share of their pictures that is right. Of findings, and where the job
        asks for it, scores of each class (`fedshift.tasks.evaluation.by_finding`).
        """
        values, truth = self._gathered(probabilities, data, subset)
        members = data.members(subset)
        subjects = data.subject_names(members)
        decided = self._decisions(values)
        right = self._right(values, truth, decided)
        hides = not share_cases and len(members) < FEWEST
        scores: dict[str, float] = {}
        intervals: dict[str, tuple[float, float]] = {}
        spreads = {}
        if not np.isnan(right).all():
            spreads["accuracy"] = distribution(right, seed=seed, share_cases=share_cases, subjects=subjects)
            scores["accuracy"] = spreads["accuracy"].mean
        confusion = None
        if not self.findings:
            confusion = np.zeros((values.shape[1], values.shape[1]), np.int64)
            np.add.at(confusion, (truth.argmax(1), values.argmax(1)), 1)
            present = confusion.sum(1) > 0
            scores["macro_accuracy"] = float((confusion.diagonal()[present] / confusion.sum(1)[present]).mean())
        if self._data.ordinal and (agreement := kappa(truth.argmax(1), values.argmax(1))) is not None:
            scores[KAPPA] = agreement
            ends = kappa_interval(truth.argmax(1), values.argmax(1), subjects=subjects or members, seed=seed)
            intervals |= {} if ends is None or hides else {KAPPA: ends}
        classes = None
        if self._by_class:
            classes, means, ends_of_means = by_finding.records(
                self._job.task.classes,
                truth,
                values,
                decided,
                self._thresholds,
                by_threshold=self.findings,
                subjects=subjects or members,
                seed=seed,
                share_cases=share_cases,
            )
            scores, intervals = scores | means, intervals | ends_of_means
        if keep is not None:
            keep.values, keep.subjects = {"accuracy": right} if spreads else {}, subjects
            keep.truth, keep.probabilities = (truth, values) if self._by_class else (None, None)
        return Evaluation(
            scores=scores,
            distributions=spreads,
            calibration=None
            if hides
            else self._calibration(values, truth, data.eval_batch).record(fewest=1 if share_cases else FEWEST),
            confusion=None if hides or confusion is None else confusion.tolist(),
            classes=None if hides else classes,
            intervals=intervals,
        )

    def risks(self, probabilities: Iterator[Tensor], data: SiteData, subset: Subset) -> CaseRisks:
        """Of each class, over the cases that have it."""
        values, truth = self._gathered(probabilities, data, subset)
        subjects = data.subjects_of(data.members(subset))
        risks = CaseRisks()
        for k, name in enumerate(self._job.task.classes):
            has = truth[:, k] == 1
            if has.any():
                risks.add_classes(name, values[has, k], subjects=subjects[has].tolist())
        return risks

    def _calibration(self, values: np.ndarray, truth: np.ndarray, size: int) -> Calibration:
        """Of the most likely class, or of all known findings, whose probability is then that of being there."""
        calibration = Calibration()
        for start in range(0, len(values), size):  # sums of floats in this order
            predicted, actual = values[start : start + size], truth[start : start + size]
            if self.findings:
                known = ~np.isnan(actual)
                calibration.add(predicted[known], actual[known] == 1)
            else:
                calibration.add(predicted.max(1), predicted.argmax(1) == actual.argmax(1))
        return calibration
