"""Segment scans one by one: read, preprocess, predict, resample back, write the mask."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import numpy as np
from torch import Tensor

from fedshift.data.case_check import known_spacing, readings_of
from fedshift.data.scans import Scan
from fedshift.data.series import is_dicom
from fedshift.inference.masks import mask_path, volume_ml, write_mask
from fedshift.inference.model import Choice, Images, Model, ReadyModel, make_ready
from fedshift.inference.plausible import (
    MIN_INTENSITY,
    check_positions,
    check_scan,
    check_volume,
    read_tags,
    without_spacing,
)
from fedshift.inference.sequences import case_of, read_case, read_sequences
from fedshift.inference.slicewise import batches, probabilities, to_network, to_scan
from fedshift.schema.errors import ConfigError, DataError, FedshiftError
from fedshift.schema.fingerprint import ALL
from fedshift.schema.reading import Reading
from fedshift.tasks.evaluation.confidence import Confidence, confidence
from fedshift.tasks.out_of_memory import prediction_out_of_memory
from fedshift.tasks.precision import autocast

if TYPE_CHECKING:
    from fedshift.inference.dicom_source import Origin, Source


Format = Literal["mask", "seg", "rtstruct", "sr"]
"""What is written of a scan: a mask in its own format (NIfTI for DICOM), DICOM SEG, RT Structure Set, DICOM SR."""
FORMATS: tuple[Format, ...] = get_args(Format)
OF_FILES: tuple[Format, ...] = ("mask",)
OF_DICOM: tuple[Format, ...] = ("mask", "seg")
"""What is written if nobody says it."""


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
class Segmented:
    """The result for one scan. With an ``error``, nothing was written."""

    image: Path
    written: Mapping[str, Path] = field(default_factory=dict)
    """Each `Format`, and ``overlay``, with its file; DICOM is not written of an empty mask."""
    classes: Mapping[str, Found] = field(default_factory=dict)
    """What was found of each foreground class."""
    remarks: tuple[str, ...] = ()
    reading: Mapping[str, Reading] = field(default_factory=dict)
    """How each sequence was read, by its name."""
    error: str | None = None

    @property
    def all(self) -> Found:
        """What was found of all classes together."""
        found = self.classes.values()
        voxels = sum(each.voxels for each in found)
        known = bool(voxels) and all(each.probability is not None for each in found if each.voxels)
        sure = sum((each.probability or 0) * each.voxels for each in found)
        return Found(voxels, sum(each.volume_ml for each in found), sure / voxels if known else None)


@dataclass(frozen=True)
class Found:
    """What was found of a class: ``probability`` is the mean of the network's over its voxels, None if not known."""

    voxels: int
    volume_ml: float
    probability: float | None


def formats_of(image: Path, wanted: Collection[Format]) -> tuple[Format, ...]:
    """What is written of an image; ``wanted`` is empty if nobody said it.

    Raises:
        ConfigError: DICOM of a scan that is none, or a report without the segments that it is on.
    """
    dicom = is_dicom(image)
    if not wanted:
        return OF_DICOM if dicom else OF_FILES
    if "sr" in wanted and "seg" not in wanted:
        raise ConfigError("--format sr reports on the segments of a DICOM SEG: add --format seg")
    if not dicom and set(wanted) != {"mask"}:
        raise ConfigError(f"{image} is no DICOM, to which a result could refer: leave out --format, or name a series")
    return tuple(each for each in FORMATS if each in wanted)


def output_paths(
    images: Sequence[Path],
    out: Path,
    *,
    overlay: bool,
    formats: Collection[Format] = (),
    replace: Collection[Path] = (),
    sequences: Sequence[str] = (),
) -> dict[Path, dict[str, Path]]:
    """The paths of each image's results.

    Args:
        images: the scans.
        out: the folder for them.
        overlay: whether overlays are drawn.
        formats: as of `formats_of`.
        replace: resolved paths of images whose outputs may be overwritten.
        sequences: names of the model's sequences; with several, a scan is the first file of its case.

    Raises:
        ConfigError: two images would get the same output file, an output would overwrite an image, or it exists; or as
            `formats_of`.
    """
    paths: dict[Path, dict[str, Path]] = {}
    written: dict[Path, set[Path]] = {}
    given = {image.resolve() for image in images}
    for image in images:
        mask = mask_path(case_of(image, sequences), out)
        stem = mask.name.rpartition("_mask.")[0]
        made: dict[str, Path] = {
            each: mask if each == "mask" else mask.with_name(f"{stem}_{each}.dcm")
            for each in formats_of(image, formats)
        }
        if overlay:
            made["overlay"] = mask.with_name(f"{stem}_overlay.png")
        files = set(made.values()) | (
            {mask.with_suffix(end) for end in _data_suffixes(mask)} if "mask" in made else set()
        )
        twin = next((other for other, others in written.items() if files & others), None)
        if twin is not None:
            raise ConfigError(
                f"the masks of {twin} and {image} would both become {mask.stem}…: predict them into different folders"
            )
        overwritten = next((path for path in sorted(files) if path.resolve() in given), None)
        if overwritten is not None:
            raise ConfigError(f"{overwritten} is one of the images: name another folder with --out")
        taken = next((path for path in sorted(files) if path.exists()), None)
        if taken is not None and image.resolve() not in replace:
            raise ConfigError(f"{taken} already exists: name another folder with --out, or replace it with --force")
        paths[image], written[image] = made, files
    return paths


def _data_suffixes(mask: Path) -> tuple[str, ...]:
    """Suffixes of the data files that ITK writes next to a MetaImage header."""
    return (".raw", ".zraw") if mask.suffix == ".mhd" else ()


def ready_for(
    model: Model,
    images: Sequence[Path],
    choice: Choice,
    *,
    device: str = "auto",
    true_spacing: bool = False,
    volume: int | None = None,
) -> ReadyModel:
    """Prepare a model for prediction. With ``choice.own``, statistics come from the scans that can be read.

    ``true_spacing``: whether their voxels of 1 x 1 x 1 mm are no placeholder. ``volume``: which one to take, from 1, of
    a scan with several.

    Raises:
        ConfigError: as `make_ready`.
        DataError: none of the scans can be read.
    """
    readers = [partial(read_case, image, model.sequences, volume=volume) for image in images]
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
    if not choice.own:
        return make_ready(model, choice, device=device)
    given, first_error = [], None
    for read in readers:
        try:
            scan, voxels = read()
            given += _inputs(model, scan, voxels, known_spacing(scan, true=true_spacing))
        except DataError as error:  # whoever predicts reports it for this scan
            first_error = first_error or error
    if not given and first_error is not None:
        raise first_error
    return make_ready(model, choice, images=Images(given), device=device)


def _inputs(model: Model, scan: Scan, voxels: np.ndarray, spacing: Sequence[float] | None) -> list[Tensor]:
    """A scan as the network's images, in batches."""
    if model.patches is not None:
        return model.patches.windows(voxels, spacing)
    data = model.data
    slices = to_network(scan.voxels, matrix=data["matrix"], clip_above_quantile=data["clip_above_quantile"])
    return list(batches(slices, context=data["context"], scale=data["scale"]))


@dataclass(frozen=True)
class ModelSegmenter:
    """A model file that is ready as a `Segmenter`."""

    model: Model
    ready: ReadyModel

    @property
    def classes(self) -> tuple[str, ...]:
        """The task's."""
        return tuple(self.model.header.job.task.classes[1:])

    @property
    def sequences(self) -> tuple[str, ...]:
        """The task's."""
        return self.model.sequences

    @property
    def kind(self) -> str:
        """As the model file says."""
        return self.model.header.kind

    @property
    def signed(self) -> bool:
        """Whether the task normalises fixed intensities, as CT's, or a site has told of such in its first sequence."""
        sites = [one.fingerprint for one in self.model.header.references.values()]
        told = [site.intensities.get((self.sequences or site.channels)[0], {}).get(ALL) for site in sites]
        low = min((one.values[0][0] for one in told if one is not None and one.values), default=0.0)
        return self.model.data.get("normalise") == "fixed" or low < MIN_INTENSITY

    @property
    def resamples_by_matrix(self) -> bool:
        """As the task's data are prepared."""
        return self.model.resamples_by_matrix

    def mask(
        self, scan: Scan, voxels: np.ndarray, certainty: np.ndarray, *, spacing: Sequence[float] | None
    ) -> np.ndarray:
        """`predict_mask`."""
        return predict_mask(self.model, self.ready, scan, voxels, spacing=spacing, certainty=certainty)


def segment_scans(
    of: Segmenter,
    paths: Mapping[Path, Mapping[str, Path]],
    *,
    origin: Origin | None = None,
    true_spacing: bool = False,
    volume: int | None = None,
    begin: Callable[[Path], None] = lambda image: None,
) -> Iterator[Segmented]:
    """Yield one result per scan, in order. A failed scan gives an error result and does not stop the rest.

    Args:
        of: what makes the masks.
        paths: from `output_paths`.
        origin: what DICOM results say of the model; None if none is written.
        true_spacing: whether voxels of 1 x 1 x 1 mm are no placeholder.
        volume: which one to take, from 1, of a scan with several.
        begin: called with each scan before it is read.
    """
    for image, wanted in paths.items():
        begin(image)
        written: dict[str, Path] = {}
        try:
            with prediction_out_of_memory(image):
                made = _segment_one(of, image, wanted, written, origin, true_spacing=true_spacing, volume=volume)
            yield made
        except FedshiftError as error:
            for path in written.values():  # all of a scan's results, or none
                path.unlink(missing_ok=True)
            yield Segmented(image, error=str(error))


def _segment_one(
    of: Segmenter,
    image: Path,
    wanted: Mapping[str, Path],
    written: dict[str, Path],
    origin: Origin | None,
    *,
    true_spacing: bool,
    volume: int | None,
) -> Segmented:
    """Segment a scan; ``written`` is filled in with each file before it is written."""
    classes = of.classes
    scans = read_sequences(image, of.sequences, volume=volume)
    reading = readings_of(scans, of.sequences)
    scan, voxels = scans[0], np.stack([one.voxels for one in scans])
    del scans
    spacing = known_spacing(scan, true=true_spacing)
    remarks = [*check_positions(image), *(scan.reading.remarks if is_dicom(image) else ())]
    if spacing is None:
        remarks.append(without_spacing(by_matrix=of.resamples_by_matrix))
    remarks += check_scan(scan, read_tags(image), target=classes[0], signed=of.signed)
    certainty = np.zeros(scan.voxels.shape, np.float32)
    mask = of.mask(scan, voxels, certainty, spacing=spacing)
    found = {name: _found(mask == number, certainty, scan) for number, name in enumerate(classes, start=1)}
    for name in classes:
        remarks += check_volume(found[name].volume_ml, target=name)
    dicom = [each for each in ("seg", "rtstruct", "sr") if each in wanted]
    if dicom and not mask.any():
        remarks.append(f"nothing was found, so no DICOM ({', '.join(dicom)}) was written")
        dicom = []
    if "mask" in wanted:
        written["mask"] = wanted["mask"]
        write_mask(mask, scan, wanted["mask"], source=image)
    if dicom:
        from fedshift.inference.dicom_source import open_source

        assert origin is not None
        written |= {each: wanted[each] for each in dicom}
        _write_dicom(mask, scan, open_source(image, volume=volume), written, origin, found, remarks)
    if "overlay" in wanted:
        from fedshift.inference.overlay import draw  # imported only if asked for: needs Pillow

        said = [f"{name} {found[name].volume_ml:.1f} ml" for name in classes]
        written["overlay"] = wanted["overlay"]
        draw(scan, mask, wanted["overlay"], title=image.name, classes=said, kind=of.kind)
    return Segmented(image, dict(written), found, tuple(remarks), reading)


def _found(where: np.ndarray, certainty: np.ndarray, scan: Scan) -> Found:
    voxels = int(np.count_nonzero(where))
    sure = float(certainty[where].mean(dtype=np.float64)) if voxels else np.nan
    return Found(voxels, volume_ml(where, scan), None if np.isnan(sure) else sure)


def _write_dicom(
    mask: np.ndarray,
    scan: Scan,
    source: Source,
    paths: Mapping[str, Path],
    origin: Origin,
    found: Mapping[str, Found],
    remarks: Sequence[str],
) -> None:
    """Write what of ``paths`` is DICOM."""
    from fedshift.inference.dicom_rtstruct import write_structure_set
    from fedshift.inference.dicom_seg import write_segmentation
    from fedshift.inference.dicom_sr import write_report

    classes = tuple(found)
    if "rtstruct" in paths:
        write_structure_set(mask, scan, paths["rtstruct"], source=source, origin=origin, classes=classes)
    if "seg" in paths:
        made = write_segmentation(mask, scan, paths["seg"], source=source, origin=origin, classes=classes)
        if "sr" in paths:
            volumes = {name: each.volume_ml for name, each in found.items()}
            write_report(
                paths["sr"],
                segmentation=made,
                source=source,
                origin=origin,
                volumes=volumes,
                classes=classes,
                remarks=remarks,
            )


def predict_mask(
    model: Model,
    ready: ReadyModel,
    scan: Scan,
    voxels: np.ndarray,
    *,
    spacing: Sequence[float] | None,
    certainty: np.ndarray | None = None,
) -> np.ndarray:
    """Predict the class of each voxel of a scan: uint8, same shape as ``scan.voxels``.

    ``voxels`` are of all its sequences, (S, z, y, x), and ``spacing`` their size in mm along z, y, x, None if it is not
    known. ``certainty`` (float32, of the scan's shape) is filled in with the probability of each foreground voxel's
    class.
    """
    return outline(model, ready, scan, voxels, spacing=spacing, certainty=certainty)[0]


def outline(
    model: Model,
    ready: ReadyModel,
    scan: Scan,
    voxels: np.ndarray,
    *,
    spacing: Sequence[float] | None,
    certainty: np.ndarray | None = None,
) -> tuple[np.ndarray, float | None]:
    """The mask of `predict_mask`, and the model's confidence in it; None if nothing was found."""
    data, precision = model.data, model.header.job.task.schedule.precision
    if model.patches is not None:

        def forward(x: Tensor) -> Tensor:
            with autocast(precision, ready.device):
                logits: Tensor = ready.predictor(x.to(ready.device))
            return logits

        sure = Confidence()
        mask = model.patches.segment(forward, voxels, spacing, certainty=certainty, see=sure.add)
        return mask, sure.mean
    found = probabilities(
        scan.voxels,
        ready.predictor,
        matrix=data["matrix"],
        context=data["context"],
        scale=data["scale"],
        clip_above_quantile=data["clip_above_quantile"],
        precision=precision,
        device=ready.device,
    )
    probability = to_scan(found, scan.voxels.shape)
    if certainty is not None:
        certainty[...] = probability
    return (probability > 0.5).astype(np.uint8), confidence(np.stack([1 - found, found]))
