"""Segment scans one by one: read, preprocess, predict, resample back, write the results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from torch import Tensor

from fedshift.data.case_check import known_spacing, readings_of
from fedshift.data.scans import Scan
from fedshift.inference.ensemble import averaged
from fedshift.inference.masks import OUTLINES_SEG, ScanMask, volume_ml, write_results
from fedshift.inference.model import Model
from fedshift.inference.plausible import (
    check_found,
    check_positions,
    check_scan,
    check_volume,
    read_tags,
    without_spacing,
)
from fedshift.inference.promise import Outlines
from fedshift.inference.ready import Choice, Images, ReadyModel, make_ready, readable
from fedshift.inference.sequences import ScanCase
from fedshift.runtime.regions import voxels_of
from fedshift.runtime.segmentation import network_images, written_as_classes
from fedshift.schema.errors import DataError, FedshiftError
from fedshift.schema.guarantee import Promise
from fedshift.schema.reading import Reading
from fedshift.tasks.evaluation.confidence import Confidence
from fedshift.tasks.out_of_memory import prediction_out_of_memory

if TYPE_CHECKING:
    from fedshift.inference.dicom_source import Origin

DICOM = ("seg", "rtstruct", "sr")


class Segmenter(Protocol):
    """What makes masks: `fedshift.inference.ready.ReadyModel` or `fedshift.inference.monai_bundle.Bundle`."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the foreground classes, or regions, whose numbers count from 1."""
        ...

    @property
    def written(self) -> tuple[int, ...]:
        """The class as which each set of regions is written; empty for classes."""
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
    def statistics(self) -> str:
        """Whose statistics it normalises with, in words."""
        ...

    @property
    def signed(self) -> bool:
        """Whether it is known that it was trained on intensities below 0, such as CT."""
        ...

    @property
    def of_pictures(self) -> bool:
        """Whether it takes pictures, and not volumes."""
        ...

    @property
    def resamples_by_matrix(self) -> bool: ...

    def mask(
        self, scan: Scan, voxels: np.ndarray, certainty: np.ndarray, *, spacing: Sequence[float] | None
    ) -> np.ndarray:
        """Classes of the voxels, or sets of regions, uint8 of ``scan.voxels``'s shape.

        Args:
            scan: the case's first sequence.
            voxels: all its sequences, (S, z, y, x).
            certainty: float32 of the scan's shape, filled in with the probability of each foreground voxel's class;
                NaN where that is not known. Of regions (R, z, y, x).
            spacing: mm along z, y, x; None if the header holds a placeholder.
        """
        ...


def outline(ready: ReadyModel, voxels: np.ndarray, spacing: Sequence[float] | None) -> tuple[np.ndarray, float | None]:
    """The classes that `ReadyModel.segment` finds, and the model's confidence in them; None if nothing was found."""
    confidence = Confidence(regions=bool(ready.written))
    mask = ready.segment(voxels, spacing, see=confidence.add)
    assert ready.model.spec is not None
    return written_as_classes(mask, ready.model.spec), confidence.mean


def ready_for(
    model: Model,
    cases: Iterable[Stacked],
    choice: Choice,
    *,
    others: Sequence[Model] = (),
    device: str = "auto",
    true_spacing: bool = False,
) -> ReadyModel:
    """Prepare a model for prediction. With ``choice.estimate``, statistics come from the cases that can be read.

    Args:
        model: from `fedshift.inference.model.open_model`.
        cases: what will be segmented.
        choice: whose statistics.
        others: models that are averaged with it, of `fedshift.inference.ensemble.open_others`.
        device: a torch device name, or ``auto``.
        true_spacing: whether voxels of 1 x 1 x 1 mm are no placeholder.

    Raises:
        ConfigError: as `make_ready`.
        DataError: none of the cases can be read.
    """

    def images_of(case: Stacked) -> list[Tensor]:
        assert model.spec is not None
        scan, voxels = case.read_stacked()
        return network_images(voxels, known_spacing(scan, true=true_spacing), model.spec)

    @cache
    def images() -> Images:
        return Images([*chain(*readable(partial(images_of, case) for case in cases))])

    ready, *more = (make_ready(each, choice, images=images, device=device) for each in (model, *others))
    return averaged(ready, more)


class Stacked(Protocol):
    """A case that can be read, such as a `fedshift.inference.sequences.ScanCase`."""

    def read_stacked(self) -> tuple[Scan, np.ndarray]:
        """Its first scan, and the voxels of all its sequences (S, z, y, x)."""
        ...


@dataclass(frozen=True)
class ClassResult:
    """What was found of a class: ``probability`` is the mean of the network's over its voxels, None if not known.

    ``volume_ml`` is None of pictures, which have an area where the size of their pixels is known.
    """

    voxels: int
    volume_ml: float | None
    probability: float | None
    area_mm2: float | None = None

    def __str__(self) -> str:
        """What is said of it in a line: a volume or an area."""
        return sized(self.volume_ml, self.area_mm2, self.voxels)


NOTHING = ClassResult(0, None, None)


@dataclass(frozen=True)
class Segmented:
    """The result for one case. With an ``error``, nothing was written."""

    image: Path
    written: Mapping[str, Path] = field(default_factory=dict)
    """Each `fedshift.inference.masks.Format`, and ``overlay``, with its file; no DICOM of an empty mask."""
    classes: Mapping[str, ClassResult] = field(default_factory=dict)
    """Of each foreground class."""
    total: ClassResult = NOTHING
    """Of all of them, where each voxel counts once. Of regions, which may overlap, no probability is known."""
    remarks: tuple[str, ...] = ()
    reading: Mapping[str, Reading] = field(default_factory=dict)
    """How each sequence was read, by its name."""
    error: str | None = None


def segment_cases(
    segmenter: Segmenter,
    cases: Sequence[ScanCase],
    paths: Sequence[Mapping[str, Path]],
    *,
    origin: Origin | None = None,
    true_spacing: bool = False,
    promises: Mapping[str, Promise] | None = None,
) -> Iterator[Segmented]:
    """Yield one result per case, in order. A failed case gives an error result and does not stop the rest.

    Args:
        segmenter: what makes the masks.
        cases: of `fedshift.inference.sequences.find_cases`.
        paths: of each case, from `fedshift.inference.masks.output_paths`.
        origin: what DICOM results say of the model; None if none is written.
        true_spacing: whether voxels of 1 x 1 x 1 mm are no placeholder.
        promises: of a `ReadyModel`, those of the structures whose inner and outer outlines are written.
    """
    for case, wanted in zip(cases, paths, strict=True):
        try:
            yield _segment_case(segmenter, case, wanted, origin, true_spacing=true_spacing, promises=promises)
        except FedshiftError as error:
            yield Segmented(case.image, error=str(error))


def _segment_case(
    segmenter: Segmenter,
    case: ScanCase,
    wanted: Mapping[str, Path],
    origin: Origin | None,
    *,
    true_spacing: bool,
    promises: Mapping[str, Promise] | None,
) -> Segmented:
    with prediction_out_of_memory(case.image):
        scans = case.read()
        reading = {"image": scans[0].reading} if scans[0].is_picture else readings_of(scans, segmenter.sequences)
        scan, voxels = scans[0], np.stack([sequence.voxels for sequence in scans])
        del scans
        refuse_other_kind(scan, case.image, pictures=segmenter.of_pictures)
        spacing = known_spacing(scan, true=true_spacing)
        written = segmenter.written
        each = (len(segmenter.classes),) if written else ()
        certainty = np.zeros((*each, *scan.voxels.shape), np.float32)
        outlines: Outlines | None = None
        if promises:
            assert isinstance(segmenter, ReadyModel)
            outlines = Outlines(segmenter, promises, scan.voxels.shape)
            mask = segmenter.segment(voxels, spacing, certainty=certainty, on_scan=outlines.add)
        else:
            mask = segmenter.mask(scan, voxels, certainty, spacing=spacing)
        classes = {
            name: _result(
                voxels_of(mask, number, regions=bool(written)),
                certainty[number - 1] if written else certainty,
                scan,
                spacing,
            )
            for number, name in enumerate(segmenter.classes, start=1)
        }
        total = _result(mask != 0, None if written else certainty, scan, spacing)
        if segmenter.of_pictures:
            remarks = [remark for name, result in classes.items() for remark in check_found(result.voxels, target=name)]
        else:
            remarks = [] if spacing is not None else [without_spacing(by_matrix=segmenter.resamples_by_matrix)]
            remarks += check_scan(scan, read_tags(case.image), target=segmenter.classes[0], signed=segmenter.signed)
            remarks += [
                remark
                for name, result in classes.items()
                for remark in check_volume(result.volume_ml or 0.0, target=name)
            ]
            remarks += scan.reading.remarks if case.is_dicom else check_positions(scan)
        if not mask.any() and (dicom := [each for each in DICOM if each in wanted]):
            remarks.append(f"nothing was found, so no DICOM ({', '.join(dicom)}) was written")
            wanted = {each: path for each, path in wanted.items() if each not in dicom}
        outlined = {} if outlines is None else outlines.sides
        if outlines is not None:
            remarks += outlines.remarks({name: result.voxels for name, result in classes.items()})
            blank = {
                f"{OUTLINES_SEG}{name}" for name, sides in outlined.items() if not any(map(np.any, sides.values()))
            }
            wanted = {each: path for each, path in wanted.items() if each not in blank}
        volumes_ml = {name: result.volume_ml or 0.0 for name, result in classes.items()}
        sizes = {name: str(result) for name, result in classes.items()}
        drawn = ScanMask(case, scan, mask, volumes_ml, sizes, tuple(remarks), voxels, written, outlined)
        write_results(drawn, wanted, origin=origin, kind=segmenter.kind)
    return Segmented(case.image, wanted, classes, total, tuple(remarks), reading)


def _result(
    where: np.ndarray, certainty: np.ndarray | None, scan: Scan, spacing: tuple[float, float, float] | None
) -> ClassResult:
    voxels = int(np.count_nonzero(where))
    mean = np.nan if certainty is None or not voxels else float(certainty[where].mean(dtype=np.float64))
    probability = None if np.isnan(mean) else mean
    if scan.is_picture:
        return ClassResult(voxels, None, probability, voxels * spacing[1] * spacing[2] if spacing else None)
    return ClassResult(voxels, volume_ml(where, scan), probability)


def sized(volume_ml: float | None, area_mm2: float | None, voxels: int) -> str:
    """A volume, or of a picture an area, as people read it."""
    if volume_ml is not None:
        return f"{volume_ml:.1f} ml"
    return f"{voxels} pixels" if area_mm2 is None else f"{area_mm2:.1f} mm²"


def refuse_other_kind(scan: Scan, file: Path, *, pictures: bool) -> None:
    """Refuse a picture where a model takes volumes, and the other way round (`DataError`)."""
    if scan.is_picture != pictures:
        kind, wanted = ("a volume", "pictures") if pictures else ("a picture", "volumes")
        raise DataError(
            "kind-of-data", f"{file} is {kind}, and the model segments {wanted}: name another model or file"
        )
