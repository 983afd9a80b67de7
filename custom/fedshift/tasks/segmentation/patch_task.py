"""Segmentation by patches: any number of classes and sequences, in 2D or 3D, with MONAI's sliding window."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedshift.data.resampled import FORMAT, intensity_range
from fedshift.data.splits import STEP, subject_of
from fedshift.runtime.segmentation import PatchSpec, as_volume, classes_of
from fedshift.runtime.windows import sliding_in_turn
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.job import JobSpec
from fedshift.tasks.augmentation import make_augmentation
from fedshift.tasks.base import CaseScores, SiteData, Subset, initial_network, selecting, sizes
from fedshift.tasks.evaluation.by_class import (
    RANGES,
    Side,
    dice_by_class,
    evaluation,
    mean_over,
    names,
    one_sided,
    scores_by_class,
    values_by_score,
)
from fedshift.tasks.evaluation.calibration import Calibration
from fedshift.tasks.evaluation.confidence import confidence
from fedshift.tasks.evaluation.overlap import box_of
from fedshift.tasks.losses import Logits, make_loss
from fedshift.tasks.segmentation.patches import DataSpec, Patches

OVERLAP_OF_ROUNDS = 1 - STEP
"""Largest overlap of windows when a round's model is scored, which only selects the best round."""

PATCHES_OF_A_VOLUME, SLICES_OF_A_VOLUME = 8, 80
"""Assumed for estimates of memory, before any volume is seen."""
PREPARED = {*("dims", "patch", "spacing", "matrix", "context", "sequences", "normalise", "nonzero", "fixed", "overlap")}
"""What of `DataSpec` decides how a scan becomes the network's input."""


class Task:
    """Segmentation of the task's classes; the score is the mean Dice over foreground classes and cases."""

    data_spec = DataSpec
    dense = True

    def __init__(self, job: JobSpec) -> None:
        self._job, task = job, job.task
        self._data = DataSpec.parse(task.data, where=f"task {task.name}: data")
        if job.evaluation.mirror and self._data.mirror == ():
            raise ConfigError(
                "options-clash",
                f"task {task.name}: evaluation.mirror has no axis to mirror, as data.mirror is []: set "
                "evaluation.mirror=false, or name the axes",
            )
        self._foreground = task.classes[1:]
        self.metric = selecting(job, names("dice", self._foreground))
        self.metrics: Mapping[str, tuple[float, float]] = {
            name: span for score, span in RANGES.items() for name in names(score, self._foreground)
        }
        self.per_case = tuple(self.metrics)
        self.spatial = self._data.patch
        self.sizes = sizes(self.spatial, len(task.classes))
        copies = self._data.channels + 4 * len(task.classes) + 4
        self.evaluated = copies * (PATCHES_OF_A_VOLUME if self._data.dims == 3 else SLICES_OF_A_VOLUME)
        self.intensities = intensity_range(self._data.normalise, self._data.fixed)
        self._loss = self._make_loss(None)
        with torch.device("cpu"):  # model files are checked with tasks that are made without memory
            self._augmentation = make_augmentation(
                self._data.augmentation,
                dims=self._data.dims,
                patch=self._data.patch,
                sequences=max(len(self._data.sequences), 1),
                mirror=self._data.mirror,
                nonzero=self._data.nonzero,
            )

    def _make_loss(self, annotated: tuple[int, ...] | None) -> Callable[[Logits, Tensor], Tensor]:
        spec = self._job.task.loss
        n_classes, dims = len(self._job.task.classes), self._data.dims
        return make_loss(spec.name, spec.options, n_classes=n_classes, annotated=annotated, dims=dims)

    def network(self) -> nn.Module:
        return initial_network(self._job, in_channels=self._data.channels, spatial=self.spatial)

    def preparation(self) -> dict[str, Any]:
        """How scans become the network's input: see `fedshift.data.resampled`."""
        return {
            "orientation": "RAS, axes z, y, x",
            "format": FORMAT,
            "resampling": "area where it shrinks, linear where it grows, after normalisation",
            **self._data.model_dump(mode="json", include=PREPARED),
        }

    def open(self, folder: Path, site: str) -> Patches:
        data = Patches(folder, self._data, site=site, augmentation=self._augmentation)
        data.check_fits(self._job, folder, site)
        return data

    def at(self, data: SiteData) -> Task:
        """The task with a loss that leaves out the classes that the site's masks do not outline.

        Raises:
            DataError: they outline none.
        """
        outlined = self.outlined(data)
        if outlined == self._foreground:
            return self
        if not outlined:
            said = f"site {data.manifest.site}: its masks outline none of the task's classes: leave it out"
            raise DataError("no-outlines", said)
        at_site = copy.copy(self)
        at_site._loss = self._make_loss(tuple(self._job.task.classes.index(name) for name in outlined))
        return at_site

    def outlined(self, data: SiteData) -> tuple[str, ...]:
        """The foreground classes that a site's masks outline."""
        annotated = data.manifest.annotated
        return tuple(name for name in self._foreground if annotated is None or name in annotated)

    def loss(self, logits: Logits, target: Tensor) -> Tensor:
        return self._loss(logits, target)

    def logits(
        self, forward: Callable[[Tensor], Tensor], batches: Iterable[Tensor], *, final: bool, apart: bool = False
    ) -> Iterator[Tensor]:
        """Of cases, by the sliding window. Final models have the task's overlap, and mirror images if the job asks."""
        return sliding_in_turn(
            forward,
            batches,
            patch=self.spatial,
            overlap=self._data.overlap if final else min(self._data.overlap, OVERLAP_OF_ROUNDS),
            mirror=self._mirrored if final else (),
            together=False if apart else None,
        )

    @property
    def sequences(self) -> tuple[str, ...]:
        """Names of the sequences that an image has, in order; empty for a single one without a name."""
        return self._data.sequences

    @property
    def spec(self) -> PatchSpec:
        """How final models segment a scan, with the steps of `evaluate`."""
        data = self._data
        return PatchSpec(
            dims=data.dims,
            patch=data.patch,
            spacing=data.spacing,
            matrix=data.matrix,
            context=data.context,
            normalise=data.normalise,
            nonzero=data.nonzero,
            fixed=None if data.fixed is None else data.fixed.numbers,
            overlap=data.overlap,
            mirror=self._mirrored,
            largest_component=self._job.evaluation.largest_component,
        )

    @property
    def _mirrored(self) -> tuple[int, ...]:
        """Axes of a patch whose mirror images are averaged for final models."""
        if not self._job.evaluation.mirror:
            return ()
        return tuple(range(self._data.dims)) if self._data.mirror is None else self._data.mirror

    def scores(self, predictions: Iterator[Tensor], data: Patches, subset: Subset) -> dict[str, float]:
        """Dice on the network's grid, ``dice`` the mean over classes and cases, and each class's.

        Of the cases whose masks have a class; a class that none has is left out.
        """
        cases = [
            dice_by_class(predicted.numpy(), data.labels(index).numpy(), 1 + len(self._foreground))
            for index, predicted in zip(data.eval_index(subset), predictions, strict=True)
        ]
        means = dict(zip(self._foreground, mean_over(np.array(cases)).tolist(), strict=True)) if cases else {}
        known = {name: means[name] for name in self.outlined(data) if name in means and not np.isnan(means[name])}
        by_class = {f"dice {name}": value for name, value in known.items()} if len(self._foreground) > 1 else {}
        return {"dice": float(np.mean(list(known.values()))), **by_class} if known else {}

    def evaluate(
        self,
        probabilities: Iterator[Tensor],
        data: Patches,
        subset: Subset,
        *,
        seed: int,
        share_cases: bool,
        keep: CaseScores | None = None,
    ) -> Evaluation:
        """Scores of each case and class on the scan's own grid, to which probabilities are resampled.

        Classes that the site's masks do not outline are left out, and so is each class where a case's mask has none of
        it, but for ``false_positives``, the volume that the model finds there. Calibration counts the voxels (on the
        network's grid) in the bounding box of prediction and reference.
        """
        numbers = {name: self._number(name) for name in self.outlined(data)}
        cases: list[dict[str, dict[str, float]]] = []
        apart: list[dict[str, Side]] = []
        subjects: list[str] = []
        calibration, empty = Calibration(), 0
        for index, batch in zip(data.eval_index(subset), probabilities, strict=True):
            number = int(index[0])
            case = data.manifest.cases[number]
            probability = as_volume(batch, self._data.dims)
            self._calibrate(calibration, probability, as_labels(data.labels(index)), list(numbers.values()))
            predicted = self.on_scan(probability, case.shape)
            reference = data.reference(number)
            empty += not np.isin(predicted, list(numbers.values())).any()
            apart.append(one_sided(predicted, reference, numbers))
            subjects.append(subject_of(case))
            tolerance = self._job.evaluation.tolerance
            cases.append(scores_by_class(predicted, reference, numbers, case.spacing, tolerance=tolerance))
        return evaluation(
            values_by_score(cases, self._foreground),
            subjects,
            calibration=calibration,
            empty=empty,
            apart=apart,
            seed=seed,
            share_cases=share_cases,
            keep=keep,
        )

    def confidences(self, probabilities: Iterator[Tensor], data: Patches, subset: Subset) -> Iterator[float | None]:
        for batch in probabilities:
            yield confidence(as_volume(batch, self._data.dims))

    def on_scan(self, probability: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Classes (z, y, x) uint8 on a scan's own grid, from probabilities (K, z, y, x) on the network's."""
        return classes_of(probability, shape, largest_component=self._job.evaluation.largest_component)

    def _number(self, name: str) -> int:
        return self._job.task.classes.index(name)

    def _calibrate(
        self, calibration: Calibration, probability: np.ndarray, labels: np.ndarray, counted: Sequence[int]
    ) -> None:
        largest = np.empty(probability.shape[1:], np.float32)
        predicted = classes_of(probability, largest.shape, largest_component=False, certainty=largest)
        classes = np.where(np.isin(predicted, counted), predicted, 0)  # others may be what the masks call background
        inside = box_of((classes > 0) | (labels > 0))
        calibration.add(largest[inside].ravel().astype(np.float64), (classes == labels)[inside].ravel())


def as_labels(labels: Tensor) -> np.ndarray:
    """Labels of a case, (1, z, y, x) or (z, y, x), as (z, y, x)."""
    return (labels[0] if labels.dim() == 4 else labels).numpy()
