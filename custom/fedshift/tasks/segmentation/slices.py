"""Segmentation of volumes slice by slice, as the papers do: adjacent slices as channels, Dice by case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fedshift.data import draws
from fedshift.data.arrays import open_arrays
from fedshift.data.prepared import read_labels
from fedshift.data.splits import Fold, case_splits, legacy_split, split_rule, subject_of
from fedshift.runtime.grids import CLIP_ABOVE_QUANTILE, radiological, restore
from fedshift.runtime.segmentation import SliceSpec
from fedshift.schema.errors import ConfigError
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import Case, Split
from fedshift.schema.seeding import derive_seed
from fedshift.schema.strict import Strict
from fedshift.tasks.base import (
    EVALUATED,
    OneClass,
    ScanData,
    SiteData,
    Subset,
    initial_network,
    refuse_patch_options,
    selecting,
    sizes,
)
from fedshift.tasks.cache import Cache
from fedshift.tasks.evaluation.by_class import MAX_MILLILITRES, MICROLITRES, Side, evaluation, one_sided
from fedshift.tasks.evaluation.calibration import Calibration
from fedshift.tasks.evaluation.case_scores import CaseScores
from fedshift.tasks.evaluation.confidence import confidence
from fedshift.tasks.evaluation.guarantee import CaseRisks, outline_risks
from fedshift.tasks.evaluation.overlap import box_of, counts_of, dice, papers_dice
from fedshift.tasks.evaluation.surfaces import MAX_MILLIMETRES, surface_distances
from fedshift.tasks.losses import Logits, make_loss


class DataSpec(Strict):
    """Options of ``task.data``: how slices become samples.

    ``matrix``: pixels along a side. ``context``: a slice alone, or with its neighbours, as channels. ``augmentation``:
    ``rot90-flip`` is quarter turns and flips.

    ``split: case`` uses the manifest's split by case; ``slice-legacy`` is the papers' split of shuffled slices, with
    slices of one patient in training and test. ``fraction``: fraction of the training samples, at least 32 (FedFA).
    ``seed`` draws them apart from the job's seed, so that runs that differ in it train on the same slices. ``scale``:
    the largest input intensity. ``train_slices: foreground`` skips slices without foreground and the first and last
    slice of a volume, as the papers do. ``clip_above_quantile``: intensities of a volume are clipped above this
    quantile before they are scaled; the default is the papers'. ``fold``: train and test on a fold of a
    cross-validation over cases, see `fedshift.data.splits.case_splits`. ``empty``: whether cases may lack the
    structure, see `fedshift.schema.codes`. ``cache``: where the slices lie in training, see `fedshift.tasks.cache`.
    """

    matrix: int = Field(ge=32, multiple_of=16)
    context: Literal[1, 3] = 3
    scale: float = Field(default=1.0, gt=0, le=255)
    split: Literal["case", "slice-legacy"] = "case"
    fraction: float = Field(default=1.0, gt=0, le=1)
    seed: int = Field(default=0, ge=0)
    train_slices: Literal["all", "foreground"] = "all"
    augmentation: Literal["none", "rot90-flip"] = "none"
    clip_above_quantile: float = Field(default=CLIP_ABOVE_QUANTILE, gt=0.5, le=1)
    fold: Fold | None = None
    empty: bool | None = None
    cache: Cache = "auto"

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.fold is not None and self.split != "case":
            raise ValueError("'fold' deals cases to folds: set split: case, or leave it out")
        return self


class Slices(ScanData):
    """A prepared site: slices in memory-mapped arrays, read in batches without decoding.

    A sample is a slice with its neighbours as channels (the first and last slice of a volume are repeated).
    """

    eval_batch = 32

    def __init__(self, folder: Path, spec: DataSpec, *, site: str) -> None:
        arrays = open_arrays(folder, matrix=spec.matrix, clip_above_quantile=spec.clip_above_quantile)
        self.manifest = arrays.manifest
        self.split_rule = split_rule(spec.fold) if spec.split == "case" else spec.split
        self._images, self._labels, self._spec, self._folder = arrays.images, arrays.labels, spec, folder
        self.cache = spec.cache
        cases = self.manifest.cases
        self.check_masks(folder)
        self.case_of = np.repeat(np.arange(len(cases)), [case.shape[0] for case in cases])
        first = np.repeat([case.offset for case in cases], [case.shape[0] for case in cases])
        last = np.repeat([case.offset + case.shape[0] - 1 for case in cases], [case.shape[0] for case in cases])
        index = np.arange(len(first))
        reach = spec.context // 2
        self._window = np.stack([np.clip(index + d, first, last) for d in range(-reach, reach + 1)], 1)
        foreground = self._labels.reshape(len(index), -1).any(1)
        self.countable = foreground & (index > first) & (index < last)
        self._members = self._split(cases, site=site)

    def _split(self, cases: tuple[Case, ...], *, site: str) -> dict[Subset, np.ndarray]:
        spec = self._spec
        if spec.split == "slice-legacy":
            countable = np.flatnonzero(self.countable)
            legacy = legacy_split(countable, fraction=spec.fraction, site=site)
            return {"all": countable, "train": legacy["train"], "val": legacy["val"], "test": legacy["test"]}
        members: dict[Subset, np.ndarray] = {"all": np.arange(len(self.case_of))}
        split_of = np.array(case_splits(cases, site=site, fold=spec.fold))
        for split in get_args(Split):
            inside = (split_of == split)[self.case_of]
            if split == "train" and spec.train_slices == "foreground":
                inside &= self.countable
            members[split] = np.flatnonzero(inside)
        if spec.fraction < 1:
            train = members["train"]
            keep = min(len(train), max(int(spec.fraction * len(train)), 32))
            rng = np.random.default_rng(derive_seed(spec.seed, site, 0, "fraction"))
            members["train"] = np.sort(rng.permutation(train)[:keep])
        return members

    def members(self, subset: Subset) -> np.ndarray:
        """Slice numbers of a split, ascending (in the order of the permutation for slice-legacy); or of all cases."""
        return self._members[subset]

    def cases(self, subset: Subset) -> np.ndarray:
        volumes: np.ndarray = self.case_of[self.members(subset)]
        return volumes

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        return self._images, self._labels

    def keep(self, images: np.ndarray, labels: np.ndarray) -> None:
        self._images, self._labels = images, labels

    def images(self, index: np.ndarray) -> Tensor:
        """(B, context, M, M) float32 in [0, scale] for slice numbers (B,)."""
        return self._scaled(torch.from_numpy(self._images[self._window[index]]))

    def _scaled(self, stack: Tensor) -> Tensor:
        return stack.float().mul_(self._spec.scale / 255)

    def labels(self, index: np.ndarray) -> Tensor:
        """(B, M, M) int64 for slice numbers (B,)."""
        return torch.from_numpy(self._labels[index]).long()

    def stacks(self, subset: Subset) -> Iterator[np.ndarray]:
        """All slices of each case, also those that are not trained on; of a split by slice those in the subset."""
        shuffled = self._spec.split == "slice-legacy"
        members = np.sort(self.members(subset)) if shuffled else np.arange(len(self.case_of))
        return (members[self.case_of[members] == case] for case in np.unique(self.cases(subset)))

    def heights(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        cases = [self.manifest.cases[number] for number in self.case_of[index]]
        depth = np.array([case.shape[0] for case in cases])
        return (index - [case.offset for case in cases] + 0.5) / depth, 1 / depth

    def reference(self, case: int) -> np.ndarray:
        """The mask of a case on its original grid, (slices, rows, columns) bool, in the orientation of the arrays."""
        mask: np.ndarray = radiological(read_labels(self._folder, self.manifest.cases[case])) > 0
        return mask

    def train_batch(self, index: np.ndarray, *, seeds: Tensor) -> tuple[Tensor, Tensor]:
        if self._on_device is None:
            x, y = self.train_samples(index)
        else:
            images, labels = self._on_device
            stacks = torch.from_numpy(self._window[self.members("train")[index]]).to(images.device)
            x, y = self._scaled(images[stacks]), labels[stacks[:, self._spec.context // 2]].long()
        return rotate_and_flip(x, y, seeds=seeds) if self._spec.augmentation == "rot90-flip" else (x, y)


def rotate_and_flip(x: Tensor, y: Tensor, *, seeds: Tensor) -> tuple[Tensor, Tensor]:
    """Random quarter turns and flips of each image and its mask, as in FedFA's released code.

    k ∈ {0…4} quarter turns, then with probability 0.75 a vertical flip, a horizontal flip, or both.
    """
    turns, flips = (draws.uniform(seeds, 2, stream=draws.TURNS) * torch.tensor([5, 4])).long().unbind(1)
    turns %= 4
    x, y = x.clone(), y.clone()
    for turn in range(4):
        for flip in range(4):
            chosen = torch.nonzero((turns == turn) & (flips == flip))[:, 0].to(x.device)
            if not len(chosen):
                continue
            # Bit 1 flips rows, bit 2 columns; 0 leaves the image unchanged.
            dims = [d for bit, d in ((1, -2), (2, -1)) if flip & bit]
            x[chosen] = torch.rot90(x[chosen], turn, (-2, -1)).flip(dims)
            y[chosen] = torch.rot90(y[chosen], turn, (-2, -1)).flip(dims)
    return x, y


def volumes(
    values: Iterator[Tensor], members: Iterator[np.ndarray], case_of: np.ndarray, expected: dict[int, int]
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield each case as soon as its last slice is predicted; only incomplete cases are held in memory.

    Args:
        values: predictions of each batch, (B, …).
        members: slice numbers of each batch, (B,).
        case_of: the case of every slice number.
        expected: case -> number of its slices.

    Yields:
        Case, its slice numbers in ascending order, and the values in that order.
    """
    begun: dict[int, list[tuple[int, np.ndarray]]] = {}
    for index, batch in zip(members, values, strict=True):
        for number, value in zip(index.tolist(), batch.numpy(), strict=True):
            case = int(case_of[number])
            slices = begun.setdefault(case, [])
            slices.append((number, value))
            if len(slices) == expected[case]:
                slices.sort(key=lambda entry: entry[0])
                yield case, np.array([n for n, _ in slices]), np.stack([v for _, v in slices])
                del begun[case]


class Task(OneClass):
    """Segmentation of the task's classes; the score is the mean foreground Dice over cases."""

    data_spec = DataSpec
    dense = True
    evaluated = EVALUATED
    metrics: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType(
        {
            "dice": (0, 1),
            "dice_papers": (0, 1),
            "hd95": (0, MAX_MILLIMETRES),
            "asd": (0, MAX_MILLIMETRES),
            "false_positives": (0, MAX_MILLILITRES),
        }
    )
    per_case = ("dice", "hd95", "asd", "false_positives")

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self.metric = selecting(job, ("dice", "dice_papers"))
        self._data = DataSpec.parse(job.task.data, where=f"task {job.task.name}: data")
        if job.task.takes_empty and (self._data.split != "case" or self._data.train_slices != "all"):
            raise ConfigError(
                "options-clash",
                f"task {job.task.name} takes cases without the structure, of which data.split={self._data.split} with "
                f"data.train_slices={self._data.train_slices} uses no slice: set data.split=case and "
                "data.train_slices=all, or data.empty=false",
            )
        self.spatial = (self._data.matrix, self._data.matrix)
        self.sizes = sizes(self.spatial, len(job.task.classes))
        self.intensities = (0.0, self._data.scale)
        if len(job.task.classes) != 2:
            fault = "slices (data.matrix) have background and one foreground class: set data.patch for more"
            raise ConfigError("too-many-classes", f"task {job.task.name}: {fault}")
        self._loss = make_loss(job.task.loss.name, job.task.loss.options, n_classes=2)
        refuse_patch_options(job)

    def network(self) -> nn.Module:
        return initial_network(self._job, in_channels=self._data.context, spatial=self.spatial)

    def preparation(self) -> dict[str, Any]:
        """How scans become the network's input: see `fedshift.data.arrays`."""
        return {
            "orientation": "RAS",
            "slices": "axial, anterior at the top, the patient's right on the left",
            "clip_above_quantile": self._data.clip_above_quantile,
            "intensity": "per volume: min-max, times 255, floor",
            "square": "padded with 0 on both sides",
            "resampling": "area where it shrinks, linear where it grows, rounded",
            "matrix": self._data.matrix,
            "context": self._data.context,
            "scale": self._data.scale,
        }

    @property
    def spec(self) -> SliceSpec:
        """How models segment a scan, with the steps of `evaluate`."""
        data = self._data
        return SliceSpec(data.matrix, data.context, data.scale, data.clip_above_quantile)

    def open(self, folder: Path, site: str) -> Slices:
        data = Slices(folder, self._data, site=site)
        data.check_fits(self._job, folder, site)
        return data

    def at(self, data: SiteData, *more: SiteData) -> Task:
        return self

    def loss(self, logits: Logits, target: Tensor) -> Tensor:
        return self._loss(logits, target)

    def logits(
        self, forward: Callable[[Tensor], Tensor], batches: Iterable[Tensor], *, final: bool, apart: bool = False
    ) -> Iterator[Tensor]:
        return map(forward, batches)

    def scores(self, predictions: Iterator[Tensor], data: Slices, subset: Subset) -> dict[str, float]:
        """``dice``: mean over cases with foreground of its Dice, on the network's grid; missing if there is none.

        ``dice_papers``: FedFA's metric, the mean over slices with foreground of the mean of background and foreground
        Dice; missing if there is no such slice.
        """
        members = data.members(subset)
        if not len(members):
            return {}
        counts = np.concatenate(
            [
                counts_of(predicted.bool(), data.labels(index).bool())
                for index, predicted in zip(data.eval_index(subset), predictions, strict=True)
            ]
        )
        cases, position = np.unique(data.case_of[members], return_inverse=True)
        per_case = dice(*(np.bincount(position, column, len(cases)) for column in counts.T))
        known = per_case[~np.isnan(per_case)]
        mean = {"dice": float(known.mean())} if len(known) else {}
        return {**mean, **self._papers(counts, data.countable[members])}

    def evaluate(
        self,
        probabilities: Iterator[Tensor],
        data: Slices,
        subset: Subset,
        *,
        seed: int,
        share_cases: bool,
        keep: CaseScores | None = None,
    ) -> Evaluation:
        """Scores of each case on its original grid: probabilities are resampled to the scan's rows and columns.

        Dice; HD95 and ASD in mm if all slices of the volume are in the split; ``dice_papers`` as in `scores`. A case
        without foreground has the volume that the model finds instead, ``false_positives``.
        Calibration counts the pixels (on the network's grid) in the bounding box of prediction and reference, since far
        from both every model is correct with high confidence.
        """
        members = data.members(subset)
        expected = dict(zip(*np.unique(data.case_of[members], return_counts=True), strict=True))
        foreground = (batch[:, 1].clone() for batch in probabilities)
        by_metric: dict[str, dict[int, float]] = {name: {} for name in self.per_case}
        counts: list[np.ndarray] = []
        shown: list[np.ndarray] = []
        apart: list[dict[str, Side]] = []
        calibration, empty = Calibration(), 0
        for number, slices, probability in volumes(foreground, data.eval_index(subset), data.case_of, expected):
            case = data.manifest.cases[number]
            labels = data.labels(slices).bool()
            predicted = torch.from_numpy(probability > 0.5)
            counts.append(counts_of(predicted, labels))
            shown.append(data.countable[slices])
            inside = box_of((predicted | labels).numpy())
            sure, right = np.maximum(probability, 1 - probability)[inside], (predicted == labels).numpy()[inside]
            calibration.add(sure.ravel(), right.ravel())
            reference = data.reference(number)[slices - case.offset]
            mask = restore(probability, *case.shape[1:]) > 0.5
            empty += not mask.any()
            whole = len(slices) == case.shape[0]
            if whole:
                apart.append(one_sided(mask, reference, {self._job.task.classes[1]: 1}))
            if not reference.any():
                millilitres = int(mask.sum()) * float(np.prod(case.spacing)) / MICROLITRES
                by_metric["false_positives"][number] = millilitres
                continue
            by_metric["dice"][number] = float(dice(*(np.array(n.sum()) for n in (mask & reference, mask, reference))))
            if whole:
                by_metric["hd95"][number], by_metric["asd"][number] = surface_distances(mask, reference, case.spacing)
        order = sorted(expected)
        cases = {
            name: np.array([by_case.get(n, np.nan) for n in order])
            for name, by_case in by_metric.items()
            if by_case and (name == "false_positives" or len(by_case) == len(by_metric["dice"]))
        }
        subjects = [subject_of(data.manifest.cases[number]) for number in order]
        record = evaluation(
            cases,
            subjects,
            calibration=calibration,
            empty=empty,
            apart=apart,
            seed=seed,
            share_cases=share_cases,
            keep=keep,
        )
        return record.model_copy(update={"scores": record.scores | self._papers(*map(np.concatenate, (counts, shown)))})

    def confidences(self, probabilities: Iterator[Tensor], data: Slices, subset: Subset) -> Iterator[float | None]:
        expected = dict(zip(*np.unique(data.case_of[data.members(subset)], return_counts=True), strict=True))
        for _, _, probability in volumes(probabilities, data.eval_index(subset), data.case_of, expected):
            yield confidence(probability.swapaxes(0, 1))

    def risks(self, probabilities: Iterator[Tensor], data: Slices, subset: Subset) -> CaseRisks:
        expected = dict(zip(*np.unique(data.case_of[data.members(subset)], return_counts=True), strict=True))
        foreground = (batch[:, 1].clone() for batch in probabilities)
        risks = CaseRisks()
        for number, slices, values in volumes(foreground, data.eval_index(subset), data.case_of, expected):
            case = data.manifest.cases[number]
            probability, truth = restore(values, *case.shape[1:]), data.reference(number)[slices - case.offset]
            known = outline_risks(probability, truth)
            risks.add_outline(self._job.task.classes[1], known, subject=subject_of(case))
        return risks

    def _papers(self, counts: np.ndarray, shown: np.ndarray) -> dict[str, float]:
        """FedFA's metric from `counts_of` (n, 3), over the slices selected by ``shown`` (n,) bool."""
        if not shown.any():
            return {}
        overlap, predicted, reference = counts[shown].T
        pixels = float(self._data.matrix**2)
        outside = papers_dice(pixels - predicted - reference + overlap, pixels - predicted, pixels - reference)
        return {"dice_papers": float(((papers_dice(overlap, predicted, reference) + outside) / 2).mean())}
