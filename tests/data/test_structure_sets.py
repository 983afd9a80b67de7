"""RT Structure Sets as planning systems write them: gaps, contours between slices, beyond the image, across it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from dicomstudies import draw_structures, write_slices
from errors import raises

from data_prep.own_scans import prepare_own
from fedshift.cli import main
from fedshift.data.case_check import read_case
from fedshift.data.cases import CaseFiles
from fedshift.data.labels import Labels, settle_labels
from fedshift.data.named_masks import read_mask
from fedshift.data.prepared import read_labels
from fedshift.data.scans import Scan, read_scan
from fedshift.data.structures import Remark
from fedshift.schema.manifest import read_manifest

SIZE, SPACING = (40, 36, 24), (1.0, 1.0, 3.0)
ML = 2.5
"""Of a cylinder of 9 mm radius, for each centimetre of its length: 250 pixels of 1 mm; without pixels it is 2.54."""


def wanted(*classes: str) -> Labels:
    labels = settle_labels(classes=("background", *(classes or ("prostate",))), named=True)
    assert labels is not None
    return labels


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An axial series of 24 slices, 3 mm apart, the first at 0 mm."""
    image = sitk.GetImageFromArray(np.random.default_rng(0).integers(0, 100, SIZE[::-1]).astype(np.int16))
    image.SetSpacing(SPACING)
    return write_slices(tmp_path_factory.mktemp("image") / "s", image)


@pytest.fixture(scope="module")
def scan(series: Path) -> Scan:
    return read_scan(series)


def circle(z: float, *, x: float = 20.0, y: float = 18.0, radius: float = 9.0) -> np.ndarray:
    angle = np.linspace(0, 2 * np.pi, 90, endpoint=False)
    return np.stack([x + radius * np.cos(angle), y + radius * np.sin(angle), np.full(90, z)], 1)


def square(z: float, low: float, high: float) -> np.ndarray:
    return np.array([[low, low, z], [high, low, z], [high, high, z], [low, high, z]], float)


def structures(path: Path, series: Path, contours: Sequence[np.ndarray], kind: str = "CLOSED_PLANAR") -> Path:
    """A structure set with a prostate of these contours (points, 3) in mm."""
    draw_structures(path, series, [(1, "prostate", [])])
    dataset = pydicom.dcmread(path)
    dataset.ROIContourSequence[0].ContourSequence = []
    for points in contours:
        one = pydicom.Dataset()
        one.ContourGeometricType, one.NumberOfContourPoints = kind, len(points)
        one.ContourData = [f"{value:.4f}" for value in points.ravel()]
        dataset.ROIContourSequence[0].ContourSequence.append(one)
    dataset.save_as(path)
    return path


def ml(mask: Scan) -> float:
    return float(np.count_nonzero(mask.voxels) * np.prod(mask.spacing) / 1000)


def slices(mask: Scan) -> list[int]:
    return np.flatnonzero(mask.voxels.any((1, 2))).tolist()


def said(remarks: Sequence[Remark]) -> list[str]:
    return [remark.what for remark in remarks]


FULL = [3.0 * k for k in range(5, 17)]


@pytest.mark.reads("DICOM mask: slices without a contour within a structure")
@pytest.mark.parametrize(
    ("places", "without", "words", "interpolated"),
    [
        pytest.param(
            FULL, 3.6, None, 3.6, marks=pytest.mark.reads("DICOM mask: closed contours on the image's slices")
        ),
        (FULL[::2], 1.8, "slices 7, 9, 11, 13, 15 of 24", 3.6),
        (FULL[::3], 1.2, "slices 7 to 8, 10 to 11, 13 to 14 of 24", 3.6),
        (FULL[:5] + FULL[6:], 3.3, "slice 11 of 24", 3.6),
        (FULL[:4] + FULL[7:], 2.7, "slices 10 to 12 of 24", 3.6),
        (FULL[1::2] + FULL[:1], 2.1, "slices 8, 10, 12, 14, 16 of 24", 3.6),
    ],
    ids=["all", "every second", "every third", "one lost", "three lost", "two and every second"],
)
def test_slices_without_a_contour_are_named_and_filled_if_asked(
    places: list[float],
    without: float,
    words: str | None,
    interpolated: float,
    series: Path,
    scan: Scan,
    tmp_path: Path,
) -> None:
    """… with the volume that planning systems show: the contours' area times their distance."""
    path = structures(tmp_path / "rs.dcm", series, [circle(z) for z in places])
    mask, remarks = read_mask(path, scan, wanted())
    assert ml(mask) == pytest.approx(without * ML, rel=0.01)
    what = (
        None
        if words is None
        else f"has no contour of 'prostate' on {words} (counted from the feet), which lie within it"
    )
    assert said(remarks) == ([] if what is None else [what])
    assert (mask.reading.gaps is None) == (words is None)
    filled, remarks = read_mask(path, scan, wanted(), interpolate=True)
    assert ml(filled) == pytest.approx(interpolated * ML, rel=0.01) and not remarks
    assert (filled.reading.gaps or "").startswith(
        "'prostate' interpolated on slices" if words and "slices" in words else ""
    )


def test_a_cone_drawn_on_every_second_slice(series: Path, scan: Scan, tmp_path: Path) -> None:
    radii = {3.0 * k: 3 + 0.8 * (k - 5) for k in range(5, 18)}
    truth = sum(np.pi * (radius / 10) ** 2 * 0.3 for radius in radii.values())
    path = structures(tmp_path / "rs.dcm", series, [circle(z, radius=r) for z, r in radii.items() if z % 2])
    mask, _ = read_mask(path, scan, wanted(), interpolate=True)
    assert ml(mask) == pytest.approx(truth, rel=0.05)


@pytest.mark.parametrize(
    ("spacing", "offset", "expected", "resampled"),
    [(3.0, 1.0, 12, True), (1.5, 0.0, 12, False), (1.0, 0.5, 12, True), (3.0, 0.2, 12, False)],
)
@pytest.mark.reads("DICOM mask: contours between slices, no further apart than these")
def test_contours_between_slices(
    spacing: float, offset: float, expected: int, resampled: bool, series: Path, scan: Scan, tmp_path: Path
) -> None:
    places = np.arange(15 + offset, 48.1 + offset, spacing)
    path = structures(tmp_path / "rs.dcm", series, [circle(z) for z in places])
    mask, remarks = read_mask(path, scan, wanted())
    assert abs(len(slices(mask)) - expected) <= 1 and ml(mask) == pytest.approx(len(slices(mask)) * 0.3 * ML, rel=0.01)
    assert (mask.reading.resampled is not None) == resampled == any("nearest slice" in what for what in said(remarks))


@pytest.mark.reads("DICOM mask: contours between slices, further apart than these")
def test_contours_between_slices_that_are_far_apart(series: Path, scan: Scan, tmp_path: Path) -> None:
    places = np.arange(16.0, 50.0, 5.0)  # 16 to 46: seven contours, 35 mm
    path = structures(tmp_path / "rs.dcm", series, [circle(z) for z in places])
    with raises("contours-between-slices", naming="'prostate'"):
        read_mask(path, scan, wanted())
    mask, _ = read_mask(path, scan, wanted(), interpolate=True)
    assert ml(mask) == pytest.approx(3.5 * ML, abs=0.3 * ML)


@pytest.mark.parametrize(
    ("contours", "kept", "words"),
    [
        ([circle(z, x=0.0) for z in (9.0, 12.0)], 0.5, "ml of 'prostate' beyond the image, which are cut off"),
        ([circle(z) for z in (-6.0, -3.0, 0.0, 3.0)], 0.5, "has 1.5 of 3 ml of 'prostate' beyond the image"),
        ([circle(z) for z in (66.0, 69.0, 72.0)], 2 / 3, "has 0.75 of 2.25 ml of 'prostate' beyond the image"),
        ([circle(z, y=9.0) for z in (9.0, 12.0)], 1, None),
    ],
    ids=["beside", "below", "above", "up to the edge"],
)
@pytest.mark.parametrize("interpolate", [False, True])
def test_what_is_beyond_the_image_is_cut_off_and_said(
    interpolate: bool,
    contours: list[np.ndarray],
    kept: float,
    words: str | None,
    series: Path,
    scan: Scan,
    tmp_path: Path,
) -> None:
    path = structures(tmp_path / "rs.dcm", series, contours)
    mask, remarks = read_mask(path, scan, wanted(), interpolate=interpolate)
    assert ml(mask) == pytest.approx(kept * len(contours) * 0.3 * ML, rel=0.08)
    assert len(remarks) == (words is not None) and all(words in what for what in said(remarks) if words)


def test_contours_wholly_beside_the_image_are_refused(series: Path, scan: Scan, tmp_path: Path) -> None:
    for number, outline in enumerate((circle(9.0, x=500.0), circle(-90.0))):
        path = structures(tmp_path / f"{number}.dcm", series, [outline])
        with raises("mask-elsewhere", naming="'prostate'"):
            read_mask(path, scan, wanted())


@pytest.mark.parametrize(
    ("contours", "kind", "pixels"),
    [
        pytest.param(
            [square(9, 4.5, 14.5), square(9, 6.5, 9.5)],
            "CLOSED_PLANAR",
            100 - 9,
            marks=pytest.mark.reads("DICOM mask: holes, by contours within contours or by keyholes"),
        ),
        (
            [
                np.array(
                    [[x, y, 9] for x, y in [(4.5, 4.5), (14.5, 4.5), (14.5, 14.5), (4.5, 14.5), (4.5, 7), (6.5, 7),
                     (6.5, 9.5), (9.5, 9.5), (9.5, 6.5), (6.5, 6.5), (6.5, 7), (4.5, 7)]]
                )
            ],
            "CLOSED_PLANAR",
            100 - 9,
        ),
        pytest.param(
            [square(9, 4.5, 14.5), square(9, 9.5, 19.5)],
            "CLOSED_PLANAR",
            200 - 25,
            marks=pytest.mark.reads("DICOM mask: contours of a slice that overlap or repeat each other"),
        ),
        ([square(9, 4.5, 14.5), square(9, 20.5, 24.5)], "CLOSED_PLANAR", 116),
        pytest.param(
            [square(9, 4.5, 14.5), square(9, 9.5, 19.5)],
            "CLOSEDPLANAR_XOR",
            200 - 50,
            marks=pytest.mark.reads("DICOM mask: contours that say XOR"),
        ),
        ([square(9, 4.5, 14.5), np.array([[8.0, 8.0, 9.0]])], "CLOSED_PLANAR", 100),
    ],
    ids=["hole", "keyhole", "overlapping", "two parts", "xor", "a point among them"],
)  # fmt: skip
def test_several_contours_of_a_slice(
    contours: list[np.ndarray], kind: str, pixels: int, series: Path, scan: Scan, tmp_path: Path
) -> None:
    mask, _ = read_mask(structures(tmp_path / "rs.dcm", series, contours, kind), scan, wanted())
    assert np.count_nonzero(mask.voxels) == pixels


@pytest.mark.reads("DICOM mask: contours with an offset vector that moves them")
def test_contours_that_a_vector_moves_are_refused(series: Path, scan: Scan, tmp_path: Path) -> None:
    path = structures(tmp_path / "rs.dcm", series, [square(9, 4.5, 14.5), square(12, 4.5, 14.5)])
    for offset in ([0, 0, 0], [0, 0, 3]):
        made = pydicom.dcmread(path)
        made.ROIContourSequence[0].ContourSequence[1].ContourOffsetVector = offset
        made.save_as(path)
        if not any(offset):
            assert slices(read_mask(path, scan, wanted())[0]) == [3, 4]
    with raises("contours-moved", naming=("rs.dcm", "'prostate'", r"0\0\3")):
        read_mask(path, scan, wanted())


@pytest.mark.reads("DICOM mask: contours of one structure in several items")
def test_contours_of_a_structure_in_two_items_are_its_own(series: Path, scan: Scan, tmp_path: Path) -> None:
    path = structures(tmp_path / "rs.dcm", series, [square(9, 4.5, 14.5)])
    dataset = pydicom.dcmread(path)
    more = pydicom.dcmread(structures(tmp_path / "more.dcm", series, [square(12, 4.5, 14.5)]))
    dataset.ROIContourSequence.append(more.ROIContourSequence[0])
    dataset.save_as(path)
    assert slices(read_mask(path, scan, wanted())[0]) == [3, 4]


@pytest.mark.reads("DICOM mask: two structures of one number")
def test_structures_of_one_number_are_refused(series: Path, scan: Scan, tmp_path: Path) -> None:
    path = structures(tmp_path / "rs.dcm", series, [circle(9.0)])
    dataset = pydicom.dcmread(path)
    second = copy.deepcopy(dataset.StructureSetROISequence[0])
    second.ROIName = "lesion"
    dataset.StructureSetROISequence.append(second)
    dataset.save_as(path)
    with raises("structure-twice", naming="rs.dcm"):
        read_mask(path, scan, wanted())


@pytest.mark.reads("DICOM mask: contours across the image's slices, in planes of its voxels")
def test_contours_in_sagittal_planes(series: Path, scan: Scan, tmp_path: Path) -> None:
    contours = [np.array([[x, 4.5, 13.5], [x, 14.5, 13.5], [x, 14.5, 43.5], [x, 4.5, 43.5]]) for x in range(6, 11)]
    mask, remarks = read_mask(structures(tmp_path / "rs.dcm", series, contours), scan, wanted())
    assert np.count_nonzero(mask.voxels) == 5 * 10 * 10 and slices(mask) == list(range(5, 15)) and not remarks
    _, remarks = read_mask(structures(tmp_path / "rs.dcm", series, contours[::2]), scan, wanted())
    assert "slices 31, 33 of 40 (counted from the left)" in said(remarks)[0]


@pytest.mark.reads("DICOM mask: contours in no plane of the image's voxels")
def test_contours_in_other_planes_are_refused(series: Path, scan: Scan, tmp_path: Path) -> None:
    tilted = square(9, 4.5, 14.5)
    tilted[:2, 2] += 5
    with raises("contours-between-slices", naming="'prostate'"):
        read_mask(structures(tmp_path / "rs.dcm", series, [tilted]), scan, wanted())


@pytest.mark.reads("DICOM mask: points and open contours")
@pytest.mark.parametrize("kind", ["POINT", "OPEN_PLANAR", "OPEN_NONPLANAR"])
def test_points_and_open_contours_are_refused(kind: str, series: Path, scan: Scan, tmp_path: Path) -> None:
    path = structures(tmp_path / "rs.dcm", series, [circle(9.0)], kind)
    with raises("contours-not-closed", naming="'prostate'"):
        read_mask(path, scan, wanted())


@pytest.mark.reads("DICOM mask: a structure of a set in several frames of reference, of another than its image's")
def test_a_structure_of_another_frame_of_reference_is_not_drawn(series: Path, tmp_path: Path) -> None:
    path = structures(tmp_path / "rs.dcm", series, [circle(z) for z in (9.0, 12.0)])
    dataset = pydicom.dcmread(path)
    frame = copy.deepcopy(dataset.ReferencedFrameOfReferenceSequence[0])
    rois = [dataset.StructureSetROISequence[0], copy.deepcopy(dataset.StructureSetROISequence[0])]
    rois[1].ROINumber, rois[1].ROIName = 2, "couch"
    rois[1].ReferencedFrameOfReferenceUID = frame.FrameOfReferenceUID = "1.2.3"
    dataset.StructureSetROISequence = rois
    dataset.ReferencedFrameOfReferenceSequence.insert(0, frame)
    dataset.save_as(path)
    case = CaseFiles("c", (series,), path, labels=wanted())
    read, findings = read_case(case)
    assert read is not None and read.mask is not None and read.mask.voxels.any()
    assert not [finding for finding in findings if finding.code == "mask-of-other-image"]
    rois[0].ReferencedFrameOfReferenceUID, rois[1].ReferencedFrameOfReferenceUID = "1.2.3", dataset.FrameOfReferenceUID
    dataset.save_as(path)
    read, findings = read_case(case)
    assert read is None and [finding.code for finding in findings] == ["mask-of-other-image"]
    assert "'prostate'" in str(findings[0])


def test_the_commands_interpolate_when_they_are_asked(
    series: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in" / "P1"
    folder.mkdir(parents=True)
    (folder / "scan").symlink_to(series)
    structures(folder / "rs.dcm", series, [circle(z) for z in FULL[::2]])
    words = ["data", "check", str(tmp_path / "in"), "--task", "prostate"]
    assert main(words) == 0 and "'prostate' on slices 7, 9" in capsys.readouterr().out
    assert main([*words, "--interpolate"]) == 0 and "no contour" not in capsys.readouterr().out
    options = {"dataset": "prostate", "classes": ("background", "prostate"), "source": tmp_path / "in"}
    site = prepare_own(None, None, "A", tmp_path / "out", interpolate=True, **options)  # type: ignore[arg-type]
    case = read_manifest(site).cases[0]
    assert read_labels(site, case).sum() * 0.003 == pytest.approx(3.6 * ML, rel=0.01)
