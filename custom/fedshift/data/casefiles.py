"""One case before preparation: its image and mask files, and checks of the two together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from fedshift.data.scans import Scan, ScanError, read_scan
from fedshift.schema.manifest import DIRECTION_TOLERANCE, SPACING_TOLERANCE, is_dummy_geometry
from fedshift.schema.names import printable

KNOWN_LABELS = (0, 1, 2)  # 2 is a second zone in some public sets; everything above 0 is the structure
STRUCTURE = "structure"
"""What a mask outlines, where the classes are not known."""
ORIGIN_TOLERANCE = 1e-2  # mm


@dataclass(frozen=True)
class CaseFiles:
    """A case: any image file that SimpleITK reads, or a DICOM series folder, and its mask.

    ``channel`` picks the volume of a 4D image; ``trust_voxels`` takes the image's geometry for the mask,
    whatever the mask's header says, if both files have the same number of voxels along each axis.
    """

    id: str
    image: Path
    mask: Path
    channel: int | None = None
    trust_voxels: bool = False


@dataclass(frozen=True)
class Finding:
    """One result of ``data check``: the file, what is wrong with it, and how to fix it."""

    level: Literal["error", "warning"]
    file: Path
    message: str
    mend: str

    def sentence(self) -> str:
        """Return the finding as one line, whatever is in the file's name."""
        return printable(f"{self.file} {self.message}: {self.mend}").replace("\n", " ")


@dataclass(frozen=True)
class CasePair:
    """A decoded case: image and mask in RAS orientation; the mask is uint8 {0,1}."""

    image: Scan
    mask: Scan


def read_case(case: CaseFiles, *, structure: str = STRUCTURE) -> tuple[CasePair | None, list[Finding]]:
    """Read a case and list everything that is wrong with it; the pair is None if there is an error.

    ``structure`` is what the mask outlines, as findings name it.
    """
    findings: list[Finding] = []
    image = _read(case.image, findings, channel=case.channel)
    trusted = image.stored_direction if image and case.trust_voxels else None
    mask = _read(case.mask, findings, direction=trusted)
    if image is not None:
        findings += _image_findings(case.image, image)
    if mask is not None:
        findings += _mask_findings(case.mask, mask, structure)
    if image is not None and mask is not None:
        if case.trust_voxels and image.voxels.shape == mask.voxels.shape:
            mask = replace(image, voxels=mask.voxels)
        findings += _geometry_findings(case, image, mask)
    if image is None or mask is None or any(finding.level == "error" for finding in findings):
        return None, findings
    return CasePair(image, replace(image, voxels=(mask.voxels > 0).astype(np.uint8))), findings


def structure_of(classes: Sequence[str]) -> str:
    """What the masks of these classes outline: all but the first, which is the background."""
    return " or ".join(classes[1:]) or STRUCTURE


def is_dummy(scan: Scan) -> bool:
    """Whether a scan's header holds a placeholder instead of a voxel size."""
    return is_dummy_geometry(scan.spacing, scan.direction)


def dummy_finding(folder: Path, dummies: int, cases: int) -> list[Finding]:
    """One warning per folder, since the geometry is usually lost for a whole data set at once."""
    if not dummies:
        return []
    return [
        Finding(
            "warning",
            folder,
            f"has a dummy geometry in {dummies} of {cases} header(s), 1 x 1 x 1 mm voxels and no rotation",
            "without the original headers, distances and volumes in mm mean nothing",
        )
    ]


def _read(
    path: Path,
    findings: list[Finding],
    *,
    channel: int | None = None,
    direction: tuple[float, ...] | None = None,
) -> Scan | None:
    try:
        return read_scan(path, channel=channel, direction=direction)
    except ScanError as error:
        findings.append(Finding("error", path, error.what, error.mend))
        return None


def _image_findings(path: Path, image: Scan) -> Iterator[Finding]:
    voxels = image.voxels
    if voxels.min() == voxels.max():
        yield Finding("error", path, f"has the same value everywhere ({voxels.flat[0]:g})", "export the scan again")
    x, y, z = image.spacing
    if z < 0.5 * max(x, y):
        yield Finding(
            "warning",
            path,
            f"has voxels of {x:.2f} x {y:.2f} x {z:.2f} mm (right-left, front-back, foot-head), "
            "which looks like a sagittal or coronal series",
            "give the axial series, because slices are cut axially",
        )


def _mask_findings(path: Path, mask: Scan, structure: str) -> Iterator[Finding]:
    values = np.unique(mask.voxels)
    fractional = values[values != np.rint(values)]
    unknown = values[~np.isin(values, KNOWN_LABELS)]
    known = f"0 outside, 1 (or 2) {structure}"
    if fractional.size:
        yield Finding(
            "error",
            path,
            f"has fractional values such as {fractional[0]:g}",
            "it was resampled or scaled, so export the mask with nearest-neighbour interpolation",
        )
    elif unknown.size:
        shown = ", ".join(f"{value:g}" for value in unknown[:5])
        yield Finding("error", path, f"has unknown label(s) {shown}", f"relabel it so that values are {known}")
    elif not mask.voxels.any():
        mend = f"draw the {structure} ({known}) or leave the case out"
        yield Finding("error", path, "is an empty mask", mend)
    elif mask.voxels.any(axis=(1, 2)).all():
        yield Finding(
            "warning",
            path,
            f"covers every one of the {mask.voxels.shape[0]} slices",
            f"look whether it was drawn past the ends of the {structure}",
        )


def _geometry_findings(case: CaseFiles, image: Scan, mask: Scan) -> Iterator[Finding]:
    """At most one finding per case: a wrong shape hides all other differences."""
    mend = f"export the mask on the grid of {case.image.name}"
    stored = f" (stored as {image.stored} and {mask.stored})" if image.stored != mask.stored else ""
    if image.voxels.shape != mask.voxels.shape:
        given, wanted = (" x ".join(map(str, scan.voxels.shape[::-1])) for scan in (mask, image))
        yield Finding("error", case.mask, f"has {given} voxels, its image {wanted}{stored}", mend)
        return
    differences = []
    for name, unit, tolerance, one, other in (
        ("spacing", " mm", SPACING_TOLERANCE, image.spacing, mask.spacing),
        ("direction", "", DIRECTION_TOLERANCE, image.direction, mask.direction),
        ("origin", " mm", ORIGIN_TOLERANCE, image.origin, mask.origin),
    ):
        gap = np.abs(np.subtract(other, one))
        if gap.max() > tolerance:
            differences.append(f"{name} by up to {gap.max():.3g}{unit} (tolerance {tolerance:g}{unit})")
    if differences:
        mend += ", or, if you know that only its header is wrong, prepare with --trust-voxels"
        yield Finding("error", case.mask, f"differs from its image in {', '.join(differences)}{stored}", mend)
