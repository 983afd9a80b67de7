"""Where the results of each case go, and the writing of them: masks, DICOM, overlays."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from fedshift.data.scans import Scan
from fedshift.inference.masks import mask_path, write_mask
from fedshift.inference.sequences import ScanCase
from fedshift.schema.errors import ConfigError

if TYPE_CHECKING:
    from fedshift.inference.dicom_source import Origin

Format = Literal["mask", "seg", "rtstruct", "sr"]
"""What is written of a scan: a mask in its own format (NIfTI for DICOM), DICOM SEG, RT Structure Set, DICOM SR."""
FORMATS: tuple[Format, ...] = get_args(Format)
DEFAULT: tuple[Format, ...] = ("mask",)
DEFAULT_OF_DICOM: tuple[Format, ...] = ("mask", "seg")


def formats_of(case: ScanCase, wanted: Collection[Format]) -> tuple[Format, ...]:
    """What is written of a case; ``wanted`` is empty if nobody said it.

    Raises:
        ConfigError: DICOM of a scan that is none, or a report without the segments that it is on.
    """
    if not wanted:
        return DEFAULT_OF_DICOM if case.is_dicom else DEFAULT
    if "sr" in wanted and "seg" not in wanted:
        raise ConfigError("options-clash", "--format sr reports on the segments of a DICOM SEG: add --format seg")
    if set(wanted) != {"mask"} and not case.is_dicom:
        said = "is no DICOM, to which a result could refer: leave out --format, or name a series"
        raise ConfigError("not-dicom", f"{case.image} {said}")
    return tuple(each for each in FORMATS if each in wanted)


def output_paths(
    cases: Sequence[ScanCase],
    out: Path,
    *,
    overlay: bool,
    formats: Collection[Format] = (),
    replace: Collection[Path] = (),
) -> list[dict[str, Path]]:
    """The paths of each case's results, by format and ``overlay``.

    Args:
        cases: of `fedshift.inference.sequences.find_cases`.
        out: the folder for them.
        overlay: whether overlays are drawn.
        formats: as of `formats_of`.
        replace: resolved paths of images whose outputs may be overwritten.

    Raises:
        ConfigError: two cases would get the same output file, an output would overwrite an image, or it exists; or as
            `formats_of`.
    """
    paths: list[dict[str, Path]] = []
    taken: dict[Path, Path] = {}
    images = {case.image.resolve() for case in cases}
    for case in cases:
        chosen, mask = formats_of(case, formats), mask_path(case.named, out)
        stem = mask.name.rpartition("_mask.")[0]
        results: dict[str, Path] = {
            each: mask if each == "mask" else mask.with_name(f"{stem}_{each}.dcm") for each in chosen
        }
        if overlay:
            results["overlay"] = mask.with_name(f"{stem}_overlay.png")
        files = list(results.values())
        if mask.suffix == ".mhd" and "mask" in results:  # ITK writes the voxels beside such a header
            files += [mask.with_suffix(end) for end in (".raw", ".zraw")]
        for path in sorted(files):
            if path in taken:
                said = f"the masks of {taken[path]} and {case.image} would both become {mask.stem}…"
                raise ConfigError("same-output", f"{said}: predict them into different folders")
            if path.resolve() in images:
                raise ConfigError("overwrites-image", f"{path} is one of the images: name another folder with --out")
            if path.exists() and case.image.resolve() not in replace:
                said = f"{path} already exists: name another folder with --out, or replace it with --force"
                raise ConfigError("output-exists", said)
        taken |= dict.fromkeys(files, case.image)
        paths.append(results)
    return paths


def write_results(
    mask: np.ndarray,
    scan: Scan,
    case: ScanCase,
    paths: Mapping[str, Path],
    *,
    volumes_ml: Mapping[str, float],
    remarks: Sequence[str],
    kind: str,
    origin: Origin | None,
    volume: int | None,
) -> None:
    """Write a scan's results: all of them, or none if one fails. DICOM needs a mask that is not empty.

    Args:
        mask: classes uint8 of ``scan.voxels``'s shape.
        scan: the case's first sequence.
        case: where it was read from.
        paths: of `output_paths`.
        volumes_ml: of each foreground class, in order.
        remarks: warnings on the result, for reports.
        kind: of the model's training data.
        origin: what DICOM results say of the model.
        volume: which one was read, from 1, of a scan with several.

    Raises:
        DataError: a file cannot be written, or is not the mask when it is read back.
    """
    begun: list[Path] = []
    try:
        if "mask" in paths:
            begun.append(paths["mask"])
            write_mask(mask, scan, paths["mask"], source=case.image)
        if paths.keys() & {"seg", "rtstruct"}:
            assert origin is not None
            begun += [path for each, path in paths.items() if each not in ("mask", "overlay")]
            _write_dicom(mask, scan, case, paths, volumes_ml, remarks, origin, volume)
        if "overlay" in paths:
            from fedshift.inference.overlay import draw  # imported only if asked for: needs Pillow

            labels = [f"{name} {millilitres:.1f} ml" for name, millilitres in volumes_ml.items()]
            begun.append(paths["overlay"])
            draw(scan, mask, paths["overlay"], title=case.image.name, classes=labels, kind=kind)
    except Exception:
        for path in begun:
            path.unlink(missing_ok=True)
        raise


def _write_dicom(
    mask: np.ndarray,
    scan: Scan,
    case: ScanCase,
    paths: Mapping[str, Path],
    volumes_ml: Mapping[str, float],
    remarks: Sequence[str],
    origin: Origin,
    volume: int | None,
) -> None:
    from fedshift.inference.dicom_rtstruct import write_structure_set
    from fedshift.inference.dicom_seg import write_segmentation
    from fedshift.inference.dicom_source import open_source
    from fedshift.inference.dicom_sr import write_report

    source, classes = open_source(case.image, volume=volume), tuple(volumes_ml)
    if "rtstruct" in paths:
        write_structure_set(mask, scan, paths["rtstruct"], source=source, origin=origin, classes=classes)
    if "seg" in paths:
        segments = write_segmentation(mask, scan, paths["seg"], source=source, origin=origin, classes=classes)
        if "sr" in paths:
            write_report(
                paths["sr"],
                segmentation=segments,
                source=source,
                origin=origin,
                volumes=volumes_ml,
                classes=classes,
                remarks=remarks,
            )
