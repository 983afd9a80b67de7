"""Segmentation by patches: any number of classes and sequences, in 2D or 3D, with MONAI's sliding window."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedshift.data.resampled import FORMAT, black_and_white, intensity_range
from fedshift.data.splits import STEP, subject_of
from fedshift.runtime.regions import IGNORED, voxels_of
from fedshift.runtime.segmentation import PatchSpec, as_volume, classes_of, planes_of
from fedshift.runtime.windows import sliding_in_turn
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.job import JobSpec
from fedshift.schema.strict import nearest
from fedshift.tasks.augmentation import make_augmentation
from fedshift.tasks.base import OneClass, SiteData, Subset, initial_network, selecting, sizes
from fedshift.tasks.evaluation.by_class import (
    PICTURE_RANGES,
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
from fedshift.tasks.evaluation.case_scores import CaseScores
from fedshift.tasks.evaluation.centre_lines import check_installed
from fedshift.tasks.evaluation.confidence import confidence
from fedshift.tasks.evaluation.guarantee import CaseRisks, outline_risks
from fedshift.tasks.evaluation.overlap import box_of
from fedshift.tasks.losses import Logits, make_loss
from fedshift.tasks.segmentation.patches import DataSpec, Patches

OVERLAP_OF_ROUNDS = 1 - STEP
"""Largest overlap of windows when a round's model is scored, which only selects the best round."""

PATCHES_OF_A_VOLUME, SLICES_OF_A_VOLUME = 8, 80
"""Assumed for estimates of memory, before any volume is seen."""
COLOURS = ("red", "green", "blue")
"""Names of the sequences of a colour picture."""
PREPARED = {*("dims", "patch", "spacing", "matrix", "context", "sequences", "normalise", "nonzero", "fixed", "overlap")}
"""What of `DataSpec` decides how a scan becomes the network's input."""


class Task(OneClass):
    """Segmentation of the task's classes, or regions; the score is the mean Dice over foreground classes and cases."""

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
        self._regions = task.made_regions
        if task.ignore and len(task.classes) > IGNORED:
            raise ConfigError(
                "too-many-classes",
                f"task {task.name}: masks with voxels to ignore have at most {IGNORED} classes with the background, "
                f"not {len(task.classes)}: leave out ignore, or classes",
            )
        self._foreground = task.structures
        self.metric = selecting(job, names("dice", self._foreground))
        ranges = PICTURE_RANGES if self._data.pictures else RANGES
        self.metrics: Mapping[str, tuple[float, float]] = {
            name: span
            for score, span in ranges.items()
            if score != "cldice" or job.evaluation.cldice
            for name in names(score, self._foreground)
        }
        for key in ("cldice", "largest_component"):
            self._check_structures(key)
        self.per_case = tuple(self.metrics)
        self.spatial = self._data.patch
        self.sizes = sizes(self.spatial, len(task.classes), sequences=max(len(self._data.sequences), 1))
        copies = self._data.channels + 4 * max(len(task.classes), task.outputs) + 4
        self.evaluated = copies * (PATCHES_OF_A_VOLUME if self._data.dims == 3 else SLICES_OF_A_VOLUME)
        self.intensities = intensity_range(self._data.normalise, self._data.fixed, self._data.convention)
        self._loss = self._make_loss(None)
        with torch.device("cpu"):  # model files are checked with tasks that are made without memory
            self._augmentation = make_augmentation(
                self._data.augmentation,
                dims=self._data.dims,
                patch=self._data.patch,
                sequences=max(len(self._data.sequences), 1),
                mirror=self._data.mirror,
                nonzero=self._data.nonzero,
                coloured=self._data.sequences == COLOURS,
                levels=black_and_white(self._data.normalise, self._data.fixed),
                only=self._data.augmentation_only,
                without=self._data.augmentation_without,
            )

    def _check_structures(self, key: str) -> None:
        """Refuse classes or regions in an option of evaluation that the task does not have."""
        named = getattr(self._job.evaluation, key)
        for name in () if isinstance(named, bool) else named:
            if name not in self._foreground:
                raise ConfigError(
                    "class-unknown",
                    f"evaluation.{key}: task {self._job.task.name} has no class {name!r}"
                    f"{nearest(name, self._foreground)}",
                )

    def _make_loss(self, annotated: tuple[int, ...] | None) -> Callable[[Logits, Tensor], Tensor]:
        task = self._job.task
        return make_loss(
            task.loss.name,
            task.loss.options,
            n_classes=len(task.classes),
            annotated=annotated,
            dims=self._data.dims,
            regions=self._regions,
            ignores=task.ignore,
        )

    def network(self) -> nn.Module:
        return initial_network(self._job, in_channels=self._data.channels, spatial=self.spatial)

    def preparation(self) -> dict[str, Any]:
        """How scans become the network's input: see `fedshift.data.resampled`."""
        return {
            "orientation": "RAS, axes z, y, x",
            "format": FORMAT,
            "resampling": "area where it shrinks, linear where it grows, after normalisation",
            **self._data.model_dump(mode="json", include=PREPARED),
            **({"pictures": True} if self._data.pictures else {}),
            **({} if self._data.bias_field == "none" else {"bias_field": self._data.bias_field}),
            **({} if self._data.convention == "fedshift" else {"convention": self._data.convention}),
        }

    def open(self, folder: Path, site: str) -> Patches:
        if self._job.evaluation.cldice:
            check_installed()
        data = Patches(folder, self._data, site=site, augmentation=self._augmentation)
        data.check_fits(self._job, folder, site)
        return data

    def at(self, data: SiteData, *more: SiteData) -> Task:
        """The task with a loss that leaves out the classes, or regions, that the site's masks do not outline.

        Raises:
            DataError: they outline none.
        """
        outlined = self.outlined(data)
        if outlined == self._foreground:
            return self
        if not outlined:
            what = "classes" if self._regions is None else "regions as a whole"
            message = f"site {data.manifest.site}: its masks outline none of the task's {what}: leave it out"
            raise DataError("no-outlines", message)
        at_site = copy.copy(self)
        at_site._loss = self._make_loss(self._annotated(data))
        return at_site

    def outlined(self, data: SiteData) -> tuple[str, ...]:
        """The foreground classes, or the regions, that a site's masks outline."""
        annotated = self._annotated(data)
        if self._regions is not None:
            return tuple(self._foreground[number] for number in self._regions.known(annotated))
        return self._foreground if annotated is None else tuple(self._job.task.classes[n] for n in annotated)

    @property
    def structures(self) -> tuple[str, ...]:
        """The foreground classes, or the regions."""
        return self._foreground

    @property
    def has_regions(self) -> bool:
        return self._regions is not None

    def _annotated(self, data: SiteData) -> tuple[int, ...] | None:
        """The numbers of the foreground classes that a site's masks outline; None for all."""
        names = data.manifest.annotated
        known = self._job.task.classes[1:]
        return None if names is None else tuple(n for n, name in enumerate(known, start=1) if name in names)

    def predicted(self, logits: Tensor) -> Tensor:
        """Classes, or the sets of regions whose logits are above 0."""
        if self._regions is None:
            return super().predicted(logits)
        bits = 2 ** torch.arange(logits.shape[1], device=logits.device, dtype=torch.uint8)
        return ((logits > 0) * bits.reshape(-1, *[1] * (logits.dim() - 2))).sum(1, dtype=torch.uint8).cpu()

    def probabilities(self, logits: Tensor) -> Tensor:
        return super().probabilities(logits) if self._regions is None else logits.float().sigmoid().nan_to_num_(0).cpu()

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
            nnunet=self._data.convention == "nnunet",
            together=False if apart else None,
        )

    @property
    def sequences(self) -> tuple[str, ...]:
        """Names of the sequences that an image has, in order; empty for a single one without a name."""
        return self._data.sequences

    @property
    def of_pictures(self) -> bool:
        """Whether it segments pictures, and not volumes."""
        return self._data.pictures

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
            largest_component=self._largest,
            written=() if self._regions is None else self._regions.written,
            bias_field=data.bias_field,
            convention=data.convention,
        )

    @property
    def _mirrored(self) -> tuple[int, ...]:
        """Axes of a patch whose mirror images are averaged for final models."""
        if not self._job.evaluation.mirror:
            return ()
        return tuple(range(self._data.dims)) if self._data.mirror is None else self._data.mirror

    @property
    def _largest(self) -> tuple[int, ...]:
        """Numbers of the classes or regions of which final models keep only the largest part."""
        named = self._job.evaluation.largest_component
        kept = (self._foreground if named else ()) if isinstance(named, bool) else named
        return tuple(number for number, name in enumerate(self._foreground, start=1) if name in kept)

    def scores(self, predictions: Iterator[Tensor], data: Patches, subset: Subset) -> dict[str, float]:
        """Dice on the network's grid, ``dice`` the mean over classes and cases, and each class's.

        Of the cases whose masks have a class; a class that none has is left out.
        """
        cases = [
            dice_by_class(
                *self.compared(predicted.numpy(), data.labels(index).numpy()),
                1 + len(self._foreground),
                regions=self._regions is not None,
            )
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
        """Scores of each case and class, or region, on the scan's own grid, to which probabilities are resampled.

        Classes that the site's masks do not outline are left out, and so is each class where a case's mask has none of
        it, but for ``false_positives``, the volume that the model finds there. Calibration counts the voxels (on the
        network's grid) in the bounding box of prediction and reference, of each region. Voxels to ignore are those of
        no class in both.
        """
        regions = self._regions is not None
        numbers = {name: self._foreground.index(name) + 1 for name in self.outlined(data)}
        cases: list[dict[str, dict[str, float]]] = []
        apart: list[dict[str, Side]] = []
        subjects: list[str] = []
        calibration, empty = Calibration(), 0
        for index, batch in zip(data.eval_index(subset), probabilities, strict=True):
            number = int(index[0])
            case = data.manifest.cases[number]
            probability = as_volume(batch, self._data.dims)
            self._calibrate(calibration, probability, as_labels(data.labels(index)), list(numbers.values()))
            predicted, reference = self.compared(self.on_scan(probability, data, number), data.reference(number))
            empty += not any(voxels_of(predicted, n, regions=regions).any() for n in numbers.values())
            apart.append(one_sided(predicted, reference, numbers, regions=regions))
            subjects.append(subject_of(case))
            options = self._job.evaluation
            spacing = data.manifest.known_spacing(case) if self._data.pictures else case.spacing
            scores = scores_by_class(
                predicted,
                reference,
                numbers,
                spacing,
                tolerance=options.tolerance,
                thin=options.cldice,
                regions=regions,
            )
            cases.append(scores)
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
            yield confidence(as_volume(batch, self._data.dims), regions=self._regions is not None)

    def risks(self, probabilities: Iterator[Tensor], data: Patches, subset: Subset) -> CaseRisks:
        """Of each structure alone, before the largest component is taken; voxels to ignore count for nothing."""
        named = {self._foreground.index(name) + 1: name for name in self.outlined(data)}
        regions = self._regions is not None
        risks = CaseRisks()
        for index, batch in zip(data.eval_index(subset), probabilities, strict=True):
            case, labels = data.manifest.cases[int(index[0])], data.reference(int(index[0]))
            truth = labels if self._regions is None else self._regions.sets[labels]
            known = labels != IGNORED if self._job.task.ignore else np.ones(labels.shape, bool)
            placement = data.placement(int(index[0]))
            planes = planes_of(as_volume(batch, self._data.dims), case.shape, regions=regions, placement=placement)
            for number, plane in enumerate(planes, start=int(regions)):
                if (name := named.get(number)) is not None:
                    inside = voxels_of(truth, number, regions=regions)[known]
                    risks.add_outline(name, outline_risks(plane[known], inside), subject=subject_of(case))
        return risks

    def on_scan(self, probability: np.ndarray, data: Patches, case: int) -> np.ndarray:
        """Classes or sets of regions (z, y, x) uint8 on a scan's own grid, from probabilities on the network's."""
        return classes_of(
            probability,
            data.manifest.cases[case].shape,
            largest_component=self._largest,
            regions=self._regions is not None,
            placement=data.placement(case),
        )

    def compared(self, predicted: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What was `predicted`, and a mask's classes as the same, without voxels that the mask says to ignore."""
        reference = labels if self._regions is None else self._regions.sets[labels]
        if not self._job.task.ignore:
            return predicted, reference
        known = labels != IGNORED
        return np.where(known, predicted, 0).astype(np.uint8), np.where(known, reference, 0).astype(np.uint8)

    def _calibrate(
        self, calibration: Calibration, probability: np.ndarray, labels: np.ndarray, counted: Sequence[int]
    ) -> None:
        known = labels != IGNORED if self._job.task.ignore else None
        if self._regions is not None:
            for number in counted:
                sure, region = probability[number - 1], voxels_of(self._regions.sets[labels], number, regions=True)
                _count(calibration, np.maximum(sure, 1 - sure), sure > 0.5, region, known)
            return
        largest = np.empty(probability.shape[1:], np.float32)
        predicted = classes_of(probability, largest.shape, certainty=largest)
        classes = np.where(np.isin(predicted, counted), predicted, 0)  # others may be what the masks call background
        _count(calibration, largest, classes, labels if known is None else np.where(known, labels, 0), known)


def _count(
    calibration: Calibration, sure: np.ndarray, guess: np.ndarray, truth: np.ndarray, known: np.ndarray | None
) -> None:
    """Count the voxels in the box of what is guessed and what is there, of those that are ``known``."""
    inside = box_of((guess > 0) | (truth > 0))
    within = slice(None) if known is None else known[inside].ravel()
    calibration.add(sure[inside].ravel().astype(np.float64)[within], (guess == truth)[inside].ravel()[within])


def as_labels(labels: Tensor) -> np.ndarray:
    """Labels of a case, (1, z, y, x) or (z, y, x), as (z, y, x)."""
    return (labels[0] if labels.dim() == 4 else labels).numpy()
