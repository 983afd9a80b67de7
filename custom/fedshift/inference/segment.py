"""Segment scans one by one: read, preprocess, predict, resample back, write the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from torch import Tensor

from fedshift.data.case_check import known_spacing, readings_of
from fedshift.data.scans import Scan
from fedshift.inference.masks import volume_ml
from fedshift.inference.model import Choice, Images, Model, ReadyModel, make_ready
from fedshift.inference.outputs import write_results
from fedshift.inference.plausible import (
    MIN_INTENSITY,
    check_positions,
    check_scan,
    check_volume,
    read_tags,
    without_spacing,
)
from fedshift.inference.sequences import ScanCase
from fedshift.runtime.segmentation import network_images, segment
from fedshift.schema.errors import DataError, FedshiftError
from fedshift.schema.fingerprint import ALL
from fedshift.schema.reading import Reading
from fedshift.tasks.evaluation.confidence import Confidence
from fedshift.tasks.out_of_memory import prediction_out_of_memory

if TYPE_CHECKING:
    from fedshift.inference.dicom_source import Origin


class Segmenter(Protocol):
    """What makes masks: a model file (`ModelSegmenter`), or a bundle (`fedshift.inference.monai_bundle.Bundle`)."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the foreground classes, whose numbers count from 1."""
        ...

    @property
    def sequences(self) -> tuple[str, ...]:
        """Names of the sequences that a case must have; empty for a single one without a name."""
        ...

    @property
    def kind(self) -> str:
        """On what it was trained: ``patients``, ``images``, ``phantom`` or ``unknown``."""
        ...

    @property
    def signed(self) -> bool:
        """Whether it is known that it was trained on intensities below 0, such as CT."""
        ...

    @property
    def resamples_by_matrix(self) -> bool:
        """As of `fedshift.inference.model.Model`."""
        ...

    def mask(
        self, scan: Scan, voxels: np.ndarray, certainty: np.ndarray, *, spacing: Sequence[float] | None
    ) -> np.ndarray:
        """Classes of the voxels, uint8 of ``scan.voxels``'s shape.

        Args:
            scan: the case's first sequence.
            voxels: all its sequences, (S, z, y, x).
            certainty: float32 of the scan's shape, filled in with the probability of each foreground voxel's class;
                NaN where that is not known.
            spacing: mm along z, y, x; None if the header holds a placeholder.
        """
        ...


@dataclass(frozen=True)
class ModelSegmenter:
    """A model file that is ready as a `Segmenter`."""

    ready: ReadyModel

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.ready.model.header.job.task.classes[1:])

    @property
    def sequences(self) -> tuple[str, ...]:
        return self.ready.model.sequences

    @property
    def kind(self) -> str:
        return self.ready.model.header.kind

    @property
    def signed(self) -> bool:
        """Whether the task normalises fixed intensities, as CT's, or a site's first sequence has such."""
        model = self.ready.model
        sites = [reference.fingerprint for reference in model.header.references.values()]
        measured = [site.intensities.get((model.sequences or site.channels)[0], {}).get(ALL) for site in sites]
        low = min((each.values[0][0] for each in measured if each is not None and each.values), default=0.0)
        return model.data.get("normalise") == "fixed" or low < MIN_INTENSITY

    @property
    def resamples_by_matrix(self) -> bool:
        return self.ready.model.resamples_by_matrix

    def mask(
        self, scan: Scan, voxels: np.ndarray, certainty: np.ndarray, *, spacing: Sequence[float] | None
    ) -> np.ndarray:
        return predict_mask(self.ready, voxels, spacing, certainty=certainty)


def predict_mask(
    ready: ReadyModel,
    voxels: np.ndarray,
    spacing: Sequence[float] | None,
    *,
    certainty: np.ndarray | None = None,
    see: Callable[[np.ndarray], None] | None = None,
) -> np.ndarray:
    """The class of each voxel of a scan, uint8 (z, y, x); arguments as of `fedshift.runtime.segmentation.segment`.

    Raises:
        DataError: intensities that the task's normalisation cannot take.
    """
    assert ready.model.spec is not None
    try:
        return segment(voxels, spacing, ready.logits, ready.model.spec, certainty=certainty, see=see)
    except ValueError as error:
        raise DataError("intensities", f"the scan {error}") from None


def outline(ready: ReadyModel, voxels: np.ndarray, spacing: Sequence[float] | None) -> tuple[np.ndarray, float | None]:
    """The mask of `predict_mask`, and the model's confidence in it; None if nothing was found."""
    confidence = Confidence()
    mask = predict_mask(ready, voxels, spacing, see=confidence.add)
    return mask, confidence.mean


def ready_for(
    model: Model,
    cases: Sequence[ScanCase],
    choice: Choice,
    *,
    device: str = "auto",
    true_spacing: bool = False,
    volume: int | None = None,
) -> ReadyModel:
    """Prepare a model for prediction. With ``choice.estimate``, statistics come from the scans that can be read.

    ``true_spacing``: whether their voxels of 1 x 1 x 1 mm are no placeholder. ``volume``: which one to take, from 1, of
    a scan with several.

    Raises:
        ConfigError: as `make_ready`.
        DataError: none of the scans can be read.
    """
    readers = [partial(case.read_stacked, volume=volume) for case in cases]
    return ready_from(model, readers, choice, device=device, true_spacing=true_spacing)


def ready_from(
    model: Model,
    readers: Iterable[Callable[[], tuple[Scan, np.ndarray]]],
    choice: Choice,
    *,
    device: str = "auto",
    true_spacing: bool = False,
) -> ReadyModel:
    """`ready_for`, for scans that are read in any way: each reader gives a scan and its sequences (S, z, y, x)."""
    if not choice.estimate:
        return make_ready(model, choice, device=device)
    images: list[Tensor] = []
    first_error = None
    assert model.spec is not None
    for read in readers:
        try:
            scan, voxels = read()
            images += network_images(voxels, known_spacing(scan, true=true_spacing), model.spec)
        except DataError as error:  # whoever predicts reports it for this scan
            first_error = first_error or error
    if not images and first_error is not None:
        raise first_error
    return make_ready(model, choice, images=Images(images), device=device)


@dataclass(frozen=True)
class ClassResult:
    """What was found of a class: ``probability`` is the mean of the network's over its voxels, None if not known."""

    voxels: int
    volume_ml: float
    probability: float | None


@dataclass(frozen=True)
class Segmented:
    """The result for one case. With an ``error``, nothing was written."""

    image: Path
    written: Mapping[str, Path] = field(default_factory=dict)
    """Each `fedshift.inference.outputs.Format`, and ``overlay``, with its file; no DICOM of an empty mask."""
    classes: Mapping[str, ClassResult] = field(default_factory=dict)
    """Of each foreground class."""
    remarks: tuple[str, ...] = ()
    reading: Mapping[str, Reading] = field(default_factory=dict)
    """How each sequence was read, by its name."""
    error: str | None = None

    @property
    def total(self) -> ClassResult:
        """Of all classes together."""
        results = self.classes.values()
        voxels = sum(each.voxels for each in results)
        known = bool(voxels) and all(each.probability is not None for each in results if each.voxels)
        weighted = sum((each.probability or 0) * each.voxels for each in results)
        return ClassResult(voxels, sum(each.volume_ml for each in results), weighted / voxels if known else None)


def segment_cases(
    segmenter: Segmenter,
    cases: Sequence[ScanCase],
    paths: Sequence[Mapping[str, Path]],
    *,
    origin: Origin | None = None,
    true_spacing: bool = False,
    volume: int | None = None,
) -> Iterator[Segmented]:
    """Yield one result per case, in order. A failed case gives an error result and does not stop the rest.

    Args:
        segmenter: what makes the masks.
        cases: of `fedshift.inference.sequences.find_cases`.
        paths: of each case, from `fedshift.inference.outputs.output_paths`.
        origin: what DICOM results say of the model; None if none is written.
        true_spacing: whether voxels of 1 x 1 x 1 mm are no placeholder.
        volume: which one to take, from 1, of a scan with several.
    """
    for case, wanted in zip(cases, paths, strict=True):
        try:
            with prediction_out_of_memory(case.image):
                result = _segment_case(segmenter, case, wanted, origin, true_spacing=true_spacing, volume=volume)
        except FedshiftError as error:
            result = Segmented(case.image, error=str(error))
        yield result


def _segment_case(
    segmenter: Segmenter,
    case: ScanCase,
    wanted: Mapping[str, Path],
    origin: Origin | None,
    *,
    true_spacing: bool,
    volume: int | None,
) -> Segmented:
    scans = case.read(volume=volume)
    reading = readings_of(scans, segmenter.sequences)
    scan, voxels = scans[0], np.stack([sequence.voxels for sequence in scans])
    del scans
    spacing = known_spacing(scan, true=true_spacing)
    certainty = np.zeros(scan.voxels.shape, np.float32)
    mask = segmenter.mask(scan, voxels, certainty, spacing=spacing)
    classes = {name: _result(mask == number, certainty, scan) for number, name in enumerate(segmenter.classes, start=1)}
    remarks = [] if spacing is not None else [without_spacing(by_matrix=segmenter.resamples_by_matrix)]
    remarks += check_scan(scan, read_tags(case.image), target=segmenter.classes[0], signed=segmenter.signed)
    remarks += [said for name, result in classes.items() for said in check_volume(result.volume_ml, target=name)]
    remarks += scan.reading.remarks if case.is_dicom else check_positions(scan)
    if not mask.any() and (dicom := [each for each in ("seg", "rtstruct", "sr") if each in wanted]):
        remarks.append(f"nothing was found, so no DICOM ({', '.join(dicom)}) was written")
        wanted = {each: path for each, path in wanted.items() if each not in dicom}
    write_results(
        mask,
        scan,
        case,
        wanted,
        volumes_ml={name: each.volume_ml for name, each in classes.items()},
        remarks=remarks,
        kind=segmenter.kind,
        origin=origin,
        volume=volume,
    )
    return Segmented(case.image, wanted, classes, tuple(remarks), reading)


def _result(where: np.ndarray, certainty: np.ndarray, scan: Scan) -> ClassResult:
    voxels = int(np.count_nonzero(where))
    probability = float(certainty[where].mean(dtype=np.float64)) if voxels else np.nan
    return ClassResult(voxels, volume_ml(where, scan), None if np.isnan(probability) else probability)
