"""Where the results of each case go, and the writing of them: masks in the geometry of their scans, DICOM, overlays.

A mask is read back after it was written, and compared.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import nibabel
import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.nifti import is_nifti
from fedshift.data.picture_files import is_picture
from fedshift.data.picture_scan import INSIDE, read_picture_mask, write_picture
from fedshift.data.scan_file import SUFFIXES, suffix_of
from fedshift.data.scans import Scan, read_scan, stem_of
from fedshift.inference.geometry import stored_grid
from fedshift.inference.sequences import ScanCase
from fedshift.runtime.regions import voxels_of
from fedshift.schema.errors import ConfigError, DataError

if TYPE_CHECKING:
    from fedshift.inference.dicom_source import Origin

Format = Literal["mask", "regions", "seg", "rtstruct", "sr"]
"""What is written of a scan: a mask in its own format (NIfTI for DICOM), one for each region or class, DICOM SEG, RT
Structure Set, DICOM SR."""
FORMATS: tuple[Format, ...] = get_args(Format)
IN_ITS_FORMAT: frozenset[Format] = frozenset({"mask", "regions"})
DEFAULT: tuple[Format, ...] = ("mask",)
DEFAULT_OF_DICOM: tuple[Format, ...] = ("mask", "seg")
REGION, OUTLINES, OUTLINES_SEG, OUTLINES_DRAWN = "region ", "outlines ", "outlines in DICOM of ", "outlines drawn of "
"""How the keys of the paths of single regions begin, and those of single structures' inner and outer outlines."""
VALUES = {"outer": 1, "inner": 2}
"""Of a voxel in the file of a structure's outlines: in the outer one alone, or in the inner one, and so in both."""
TOLERANCE = 1e-3
"""Allowed difference of positions (mm) and direction cosines; NIfTI stores both as float32."""
POSITION_FIELDS = (
    *("pixdim", "qform_code", "quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y", "qoffset_z"),
    *("sform_code", "srow_x", "srow_y", "srow_z"),
)
"""Of a NIfTI header: what its qform and its sform are made of."""


@dataclass(frozen=True)
class ScanMask:
    """The mask of a scan: ``classes``, uint8 of its shape; ``volumes_ml`` of each foreground class, in order.

    ``sizes``: the same in words, areas of pictures. ``remarks``: warnings on the result, for reports. ``voxels``: of
    all sequences, (S, z, y, x). ``written``: where ``classes`` are sets of regions (`fedshift.runtime.regions`), the
    class of each set; empty for classes. ``outlines``: structure -> ``outer`` and ``inner``, as
    far as they are promised -> the voxels within, bool (`fedshift.inference.promise.outlines`).
    """

    case: ScanCase
    scan: Scan
    classes: np.ndarray
    volumes_ml: Mapping[str, float]
    sizes: Mapping[str, str]
    remarks: tuple[str, ...]
    voxels: np.ndarray
    written: tuple[int, ...] = ()
    outlines: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)


def mask_path(image: Path, out: Path) -> Path:
    """The mask's path: ``<stem>_mask`` in the image's own format, NIfTI for DICOM, PNG for pictures."""
    if is_picture(image):
        return out / f"{stem_of(image)}_mask.png"
    if image.is_dir():
        return out / f"{stem_of(image.resolve())}_mask{SUFFIXES[0]}"
    suffix = suffix_of(image)
    return out / f"{stem_of(image)}_mask{SUFFIXES[0] if suffix in (None, '.nii.zst') else suffix}"


def _formats_of(case: ScanCase, wanted: Collection[Format], *, apart: bool) -> tuple[Format, ...]:
    """What is written of a case; ``wanted`` is empty if nobody said it. ``apart``: see `output_paths`."""
    if apart and "mask" in wanted:
        raise ConfigError(
            "options-clash",
            "--format mask writes one structure for each voxel, and those of this model overlap: take --format regions",
        )
    if not wanted:
        default = DEFAULT_OF_DICOM if case.is_dicom else DEFAULT
        return tuple("regions" if apart and each == "mask" else each for each in default)
    if "sr" in wanted and "seg" not in wanted:
        raise ConfigError("options-clash", "--format sr reports on the segments of a DICOM SEG: add --format seg")
    if not {*wanted} <= IN_ITS_FORMAT and not case.is_dicom:
        fault = "is no DICOM, to which a result could refer: leave out --format, or name a series"
        fault = (
            "is a picture, of which the mask alone is written: leave out --format" if is_picture(case.image) else fault
        )
        raise ConfigError("not-dicom", f"{case.image} {fault}")
    return tuple(each for each in FORMATS if each in wanted)


def output_paths(
    cases: Sequence[ScanCase],
    out: Path,
    *,
    overlay: bool,
    formats: Collection[Format] = (),
    replace: Collection[Path] = (),
    structures: Sequence[str] = (),
    outlined: Sequence[str] = (),
    apart: bool = False,
) -> list[dict[str, Path]]:
    """The paths of each case's results, by format and ``overlay``.

    Args:
        cases: of `fedshift.inference.sequences.find_cases`.
        out: the folder for them.
        overlay: whether overlays are drawn.
        formats: as of `_formats_of`.
        replace: resolved paths of images whose outputs may be overwritten.
        structures: names of what is segmented, of which ``regions`` has a file each, under ``region NAME``.
        outlined: those whose inner and outer outlines are written too: a file each in the scan's format, and one in
            DICOM and a picture where the masks have these.
        apart: whether structures overlap and no class is known as which several are written, so that each has its own
            file.

    Raises:
        ConfigError: two cases would get the same output file, an output would overwrite an image, or it exists; or as
            `_formats_of`.
    """
    paths: list[dict[str, Path]] = []
    occupied: dict[Path, Path] = {}
    images = {case.image.resolve() for case in cases}
    for case in cases:
        chosen, mask = _formats_of(case, formats, apart=apart), mask_path(case.named, out)
        stem = mask.name.rpartition("_mask.")[0]
        results: dict[str, Path] = {
            each: mask if each == "mask" else mask.with_name(f"{stem}_{each}.dcm")
            for each in chosen
            if each != "regions"
        }
        ending = mask.name.removeprefix(f"{stem}_mask")
        named = {name: re.sub(r"[^\w.+-]+", "_", name) for name in structures}
        if "regions" in chosen:
            results |= {
                f"{REGION}{name}": mask.with_name(f"{stem}_{each}_mask{ending}") for name, each in named.items()
            }
        forms = {OUTLINES: ending} | ({OUTLINES_SEG: ".dcm"} if "seg" in chosen else {})
        forms |= {OUTLINES_DRAWN: ".png"} if overlay and ending != ".png" else {}
        for name in outlined:
            results |= {
                f"{key}{name}": mask.with_name(f"{stem}_{named[name]}_outlines{end}") for key, end in forms.items()
            }
        if overlay:
            results["overlay"] = mask.with_name(f"{stem}_overlay.png")
        files = list(results.values())
        headers = [path for path in files if path.suffix == ".mhd"]  # ITK writes the voxels beside such a header
        files += [path.with_suffix(end) for path in headers for end in (".raw", ".zraw")]
        for path in sorted(files):
            if path in occupied:
                message = f"the masks of {occupied[path]} and {case.image} would both become {mask.stem}…"
                raise ConfigError("same-output", f"{message}: predict them into different folders")
            if path.resolve() in images:
                raise ConfigError("overwrites-image", f"{path} is one of the images: name another folder with --out")
            if path.exists() and case.image.resolve() not in replace:
                message = f"{path} already exists: name another folder with --out, or replace it with --force"
                raise ConfigError("output-exists", message)
        occupied |= dict.fromkeys(files, case.image)
        paths.append(results)
    return paths


def write_results(drawn: ScanMask, paths: Mapping[str, Path], *, origin: Origin | None, kind: str) -> None:
    """Write a scan's results: all of them, or none if one fails. DICOM needs a mask that is not empty.

    Args:
        drawn: what is written.
        paths: of `output_paths`.
        origin: what DICOM results say of the model.
        kind: of the model's training data.

    Raises:
        DataError: a file cannot be written, or is not the mask when it is read back.
    """
    scan, mask, classes = drawn.scan, drawn.classes, tuple(drawn.volumes_ml)
    begun: list[Path] = []
    try:
        if "mask" in paths:
            begun.append(paths["mask"])
            classes_of_voxels = np.array(drawn.written, np.uint8)[mask] if drawn.written else mask
            count = max(drawn.written, default=len(classes))
            _write_mask(classes_of_voxels, drawn, paths["mask"], classes=count)
        for number, name in enumerate(classes, start=1):
            if (path := paths.get(f"{REGION}{name}")) is not None:
                begun.append(path)
                inside = voxels_of(mask, number, regions=bool(drawn.written))
                _write_mask(inside.astype(np.uint8), drawn, path, classes=1)
        _write_outlines(drawn, paths, begun, origin=origin, kind=kind)
        if paths.keys() & {"seg", "rtstruct"}:
            from fedshift.inference import dicom_rtstruct, dicom_seg, dicom_source, dicom_sr

            assert origin is not None
            begun += [paths[each] for each in ("seg", "rtstruct", "sr") if each in paths]
            source = dicom_source.open_source(drawn.case.image, volume=drawn.case.volume)
            about: dict[str, Any] = {"source": source, "origin": origin, "classes": classes}
            drawing: dict[str, Any] = about | {"regions": bool(drawn.written)}
            if "rtstruct" in paths:
                dicom_rtstruct.write_structure_set(mask, scan, paths["rtstruct"], **drawing)
            if "seg" in paths:
                segments = dicom_seg.write_segmentation(mask, scan, paths["seg"], **drawing)
            if "sr" in paths:
                about |= {"volumes": drawn.volumes_ml, "remarks": drawn.remarks}
                dicom_sr.write_report(paths["sr"], segmentation=segments, **about)
        if "overlay" in paths:
            from fedshift.inference.overlay import draw  # needs Pillow

            labels = [f"{name} {size}" for name, size in drawn.sizes.items()]
            begun.append(paths["overlay"])
            about = {"title": drawn.case.image.name, "classes": labels, "kind": kind}
            draw(scan, mask, paths["overlay"], **about, regions=bool(drawn.written), voxels=drawn.voxels)
    except Exception:
        for path in begun:
            path.unlink(missing_ok=True)
        raise


def _write_outlines(
    drawn: ScanMask, paths: Mapping[str, Path], begun: list[Path], *, origin: Origin | None, kind: str
) -> None:
    """Write the inner and outer outlines of structures; ``begun`` gets every file before it is written."""
    for name, sides in drawn.outlines.items():
        bits = np.zeros(drawn.scan.voxels.shape, np.uint8)
        for bit, inside in enumerate(sides.values()):
            bits[inside] |= 1 << bit
        parts = [f"{name[:40]}, {side} outline" for side in sides]
        if (path := paths.get(f"{OUTLINES}{name}")) is not None:
            begun.append(path)
            values = np.zeros(drawn.scan.voxels.shape, np.uint8)
            for side, inside in sides.items():
                values[inside] = VALUES[side]
            _write_mask(values, drawn, path, classes=len(VALUES))
        if (path := paths.get(f"{OUTLINES_SEG}{name}")) is not None and bits.any():
            from fedshift.inference import dicom_seg, dicom_source

            assert origin is not None
            begun.append(path)
            about: dict[str, Any] = {"source": dicom_source.open_source(drawn.case.image, volume=drawn.case.volume)}
            about["origin"] = replace(origin, codes=dict.fromkeys(parts, origin.codes[name]))
            dicom_seg.write_segmentation(bits, drawn.scan, path, **about, classes=parts, regions=True)
        if (path := paths.get(f"{OUTLINES_DRAWN}{name}")) is not None:
            from fedshift.inference.overlay import draw  # needs Pillow

            begun.append(path)
            shown: dict[str, Any] = {
                "title": drawn.case.image.name,
                "classes": parts,
                "kind": kind,
                "voxels": drawn.voxels,
            }
            draw(drawn.scan, bits, path, **shown, regions=True)


def _write_mask(mask: np.ndarray, drawn: ScanMask, path: Path, *, classes: int) -> None:
    if drawn.scan.is_picture:
        write_picture_mask(mask, path, classes=classes)
    else:
        write_mask(mask, drawn.scan, path, source=drawn.case.image)


def write_mask(mask: np.ndarray, scan: Scan, path: Path, *, source: Path) -> None:
    """Write a mask on the grid of the file that ``scan`` was read from, and read it back.

    Args:
        mask: bool, or classes uint8, ``[z, y, x]`` in RAS, as ``scan.voxels``.
        scan: its geometry, and the orientation of the original file.
        path: the suffix selects the format.
        source: the scan's file. From a NIfTI source, qform and sform are both copied with their codes, because
            readers differ in which one they use.

    Raises:
        DataError: the mask cannot be written, or reading it back gives other voxels or another geometry.
    """
    image, grid = stored_grid(mask, scan)
    try:
        if is_nifti(source):
            _write_nifti(grid, source, path)
        else:
            sitk.WriteImage(image, str(path), useCompression=True)
    except (RuntimeError, OSError):
        path.unlink(missing_ok=True)
        message = f"{path} cannot be written: free disk space or give write permission there"
        raise DataError("file-unwritable", message) from None
    back = read_scan(path)
    same = (
        np.allclose(back.stored_direction, scan.stored_direction, rtol=0, atol=TOLERANCE)
        and _lies_on(back, mask, scan)
        and (not is_nifti(source) or _position_fields(path) == _position_fields(source))
    )
    if not same:
        path.unlink()
        message = f"{path} does not match the geometry of its scan when read back, so it was deleted"
        raise DataError("mask-differs", f"{message}: export the scan again")


def write_picture_mask(mask: np.ndarray, path: Path, *, classes: int) -> None:
    """Write the mask of a picture as PNG, upright, and read it back: 255 where it is of the one class, or its number.

    Raises:
        DataError: it cannot be written, or reading it back gives other values.
    """
    values = mask * np.uint8(INSIDE) if classes == 1 else mask.astype(np.uint8)
    try:
        write_picture([values], path)
        same = np.array_equal(read_picture_mask(path, prepared=True).voxels, values)
    except (OSError, DataError):
        same = False
    if not same:
        path.unlink(missing_ok=True)
        raise DataError("file-unwritable", f"{path} cannot be written: free disk space or give write permission there")


def _lies_on(back: Scan, mask: np.ndarray, scan: Scan) -> bool:
    """Whether a scan has the voxels of ``mask``, each where ``scan`` has it, whatever order their axes have.

    Axes turned by exactly 45 degrees have no nearest direction of the body, and rounding decides which they are given.
    """
    written, wanted = _affine(back), _affine(scan)
    to_back = np.rint(np.linalg.inv(written) @ wanted)  # from index to index
    placed = written @ to_back
    sizes, wanted_sizes = (np.linalg.norm(affine[:3, :3], axis=0) for affine in (placed, wanted))
    if not (
        sizes.all()
        and np.allclose(sizes, wanted_sizes, rtol=0, atol=TOLERANCE)
        and np.allclose(placed[:3, :3] / sizes, wanted[:3, :3] / wanted_sizes, rtol=0, atol=TOLERANCE)
        and np.allclose(placed[:3, 3], wanted[:3, 3], rtol=1e-6, atol=TOLERANCE)
    ):
        return False
    turn, shift = to_back[:3, :3], to_back[:3, 3]
    if not ((np.abs(turn).sum(0) == 1).all() and (np.abs(turn).sum(1) == 1).all()):
        return False
    axes = np.abs(turn).argmax(0)  # of `back`, for each of the scan's
    flipped = turn.sum(0) < 0
    placed_voxels = back.voxels.T.transpose(axes)  # views: a copy of a large scan's indices takes 100 bytes a voxel
    if not np.array_equal(shift[axes], np.where(flipped, np.array(placed_voxels.shape) - 1, 0)):
        return False
    return np.array_equal(np.flip(placed_voxels, tuple(np.flatnonzero(flipped).tolist())), mask.T)


def _affine(scan: Scan) -> np.ndarray:
    """From an index x, y, z to mm, in ITK's world."""
    affine = np.eye(4)
    affine[:3, :3] = np.reshape(scan.direction, (3, 3)) * np.array(scan.spacing)
    affine[:3, 3] = scan.origin
    return affine


def _write_nifti(grid: np.ndarray, source: Path, path: Path) -> None:
    """Write ``grid`` [z, y, x], in the file's own orientation, with the source's header but without its text fields."""
    stored = nibabel.load(source)
    header = stored.header.copy()
    header.set_data_dtype(np.uint8)
    header.set_slope_inter(1, 0)
    header["cal_min"] = header["cal_max"] = 0
    for text_field in ("descrip", "aux_file", "intent_name"):
        header[text_field] = b""
    header.extensions.clear()
    values = np.ascontiguousarray(grid.transpose(2, 1, 0))  # one volume, also of a 4D file
    nibabel.save(type(stored)(values, None, header), path)


def _position_fields(path: Path) -> tuple[bytes, ...]:
    """The `POSITION_FIELDS` of a NIfTI file: its matrices would not do, as not every quaternion has one.

    The sizes after the third, such as seconds between the volumes of a 4D file, are no positions.
    """
    header = nibabel.load(path).header
    return tuple(np.ravel(header[name])[:4].astype(float).tobytes() for name in POSITION_FIELDS)


def volume_ml(mask: np.ndarray, scan: Scan) -> float:
    """Volume of the mask in millilitres."""
    return float(np.count_nonzero(mask) * np.prod(scan.spacing) / 1000)
