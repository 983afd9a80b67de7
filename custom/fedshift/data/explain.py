"""``check --explain``: how a file, a series or a mask is read, or why it is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fedshift.data.case_check import known_spacing, read_case
from fedshift.data.cases import CaseFiles
from fedshift.data.dicom import is_dicom_mask
from fedshift.data.layouts.studies import image_of
from fedshift.data.named_masks import names_structures, structures_in
from fedshift.data.picture_files import is_picture
from fedshift.data.picture_scan import COLOURS, in_colour
from fedshift.data.scan_file import Finding, ScanError
from fedshift.data.scan_folders import picture_files, pictures_in, scan_files, scans_in
from fedshift.data.scans import Scan, read_scan, read_volumes
from fedshift.data.slicer_masks import refuse_layers
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import FILE_NAME, read_manifest
from fedshift.schema.names import few_names
from fedshift.schema.reading import Reading

LEVELS_UP = 3  # folders above a DICOM mask in which its image is looked for


@dataclass(frozen=True)
class Explained:
    """How one file was read: its record, what came out of it in words, and what is to be said of it."""

    path: Path
    reading: Reading | None = None
    outcome: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class ReadingOptions:
    """The options that files are read with, see `fedshift.data.cases.CaseFiles`."""

    volume: int | None = None
    trust_voxels: bool = False
    interpolate: bool = False
    may_be_empty: bool = False


def explain(path: Path, mask: Path | None = None, options: ReadingOptions = ReadingOptions()) -> Iterator[Explained]:
    """Explain a scan or a mask, all scans of a folder, an image with its mask, or the cases of a prepared site.

    Raises:
        DataError: a folder without scans, or a site's manifest that cannot be read.
    """
    if mask is not None:
        yield from _case(path, mask, options)
    elif (path / FILE_NAME).is_file():
        yield from _site(path)
    elif names_structures(path):
        image = _image_of(path) if is_dicom_mask(path) else None
        yield _without_image(path) if image is None else list(_case(image, path, options))[-1]
    else:
        only_pictures = path.is_dir() and picture_files(path) and not scan_files(path)
        for scan in pictures_in([path]) if only_pictures else scans_in([path]):
            yield _scan(scan, options)


def _scan(path: Path, options: ReadingOptions) -> Explained:
    try:
        refuse_layers(path)
        if is_picture(path):
            scans = read_volumes(path, _channels(path))
            return Explained(path, scans[0].reading, _outcome_of_picture(scans))
        scan = read_scan(path, volume=options.volume)
    except ScanError as error:
        return Explained(path, findings=(Finding.from_error(error),))
    findings = [
        Finding("warning", unclear.code, path, f"{unclear.what}, {unclear.used}", unclear.remedy)
        for unclear in scan.unclear
    ]
    return Explained(path, scan.reading, _outcome(scan), tuple(findings))


def _case(image: Path, mask: Path, options: ReadingOptions) -> Iterator[Explained]:
    """An image, and its mask on the image's grid; all that is wrong with them is said of the mask."""
    yield (first := _scan(image, options))
    if first.reading is None:
        yield Explained(mask, findings=first.findings)
        return
    channels = _channels(image) if is_picture(image) else (None,)
    case = CaseFiles(mask.stem, (image,) * len(channels), mask, channels=channels, **asdict(options))
    decoded, findings = read_case(case)
    findings_of_mask = tuple(finding for finding in findings if finding not in first.findings)
    if decoded is None:
        yield Explained(mask, findings=findings_of_mask)
    else:
        outcome = _outcome_of_picture([decoded.mask]) if decoded.mask.is_picture else _outcome(decoded.mask)
        yield Explained(mask, decoded.mask.reading, outcome, findings_of_mask)


def _site(folder: Path) -> Iterator[Explained]:
    for case in read_manifest(folder).cases:
        for name, reading in case.reading.items():
            yield Explained(folder / f"{case.id} ({name})", reading)


def _image_of(mask: Path) -> Path | None:
    """The series that a DICOM mask was drawn on, in its folder or one above."""
    for folder in list(mask.absolute().parents)[:LEVELS_UP]:
        if folder in (folder.parent, Path.home()):
            break  # where everything is
        if (image := image_of(mask, folder)) is not None:
            return image
    return None


def _without_image(mask: Path) -> Explained:
    try:
        fault = f"has the structures {few_names(structures_in(mask))}"
    except (ScanError, DataError) as error:
        fault = str(error)
    remedy = "name the image first, as in --explain IMAGE --masks MASK"
    return Explained(
        mask, findings=(Finding("error", "image-unknown", mask, f"{fault}, and the image of it is not near", remedy),)
    )


def _channels(picture: Path) -> tuple[int | None, ...]:
    return (0, 1, 2) if in_colour(picture) else (None,)


def _outcome_of_picture(scans: Sequence[Scan]) -> dict[str, str]:
    """Of its colours, or of a mask."""
    _, rows, columns = scans[0].voxels.shape
    spacing = known_spacing(scans[0], true=False)
    size = "not known" if spacing is None else f"{spacing[2]:.4g} x {spacing[1]:.4g} mm"
    least, most = min(scan.voxels.min() for scan in scans), max(scan.voxels.max() for scan in scans)
    outcome = {"pixels": f"{columns} x {rows}", "pixel size": size, "values": f"{least:g} to {most:g}"}
    return outcome | ({"sequences": ", ".join(COLOURS)} if len(scans) > 1 else {})


def _outcome(scan: Scan) -> dict[str, str]:
    z, y, x = scan.voxels.shape
    return {
        "voxels": f"{x} x {y} x {z} (right-left, front-back, foot-head)",
        "voxel size": f"{' x '.join(f'{size:.4g}' for size in scan.spacing)} mm",
        "stored as": scan.stored,
        "values": f"{scan.voxels.min():g} to {scan.voxels.max():g}",
    }
