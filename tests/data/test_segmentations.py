"""DICOM SEG as programs write them: thick, sparse, fractional, turned, deflated, and what cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from dicomstudies import draw_segmentation, write_frames, write_slices
from errors import raises
from pydicom.uid import RLELossless

from fedshift.data import dicom, segmentations
from fedshift.data.case_check import read_case
from fedshift.data.cases import CaseFiles
from fedshift.data.dicom import identify, is_dicom_mask
from fedshift.data.labels import Labels, settle_labels
from fedshift.data.named_masks import read_mask, structures_in
from fedshift.data.scans import Scan, read_scan
from fedshift.data.structures import Remark

SIZE, SPACING = (16, 14, 12), (1.0, 1.0, 3.0)
DEFLATED = "1.2.840.10008.1.2.1.99"
FILLED = np.pad(np.ones((4, 5), np.uint8), ((5, 5), (3, 8)))
"""20 of the image's pixels, of 1 mm."""


def wanted(*classes: str) -> Labels:
    labels = settle_labels(classes=("background", *(classes or ("prostate",))), named=True)
    assert labels is not None
    return labels


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An axial series of twelve slices, 3 mm apart, the first at 0 mm."""
    voxels = np.random.default_rng(0).integers(0, 100, SIZE[::-1]).astype(np.int16)
    image = sitk.GetImageFromArray(voxels)
    image.SetSpacing(SPACING)
    return write_slices(tmp_path_factory.mktemp("image") / "s", image)


@pytest.fixture(scope="module")
def scan(series: Path) -> Scan:
    return read_scan(series)


def at(*places: float, pixels: np.ndarray = FILLED, segment: int = 1) -> list[tuple[int, Sequence[float], np.ndarray]]:
    """Frames over each other."""
    return [(segment, (0.0, 0.0, place), pixels) for place in places]


def said(remarks: Sequence[Remark]) -> str:
    return "; ".join(remark.what for remark in remarks)


def slices(mask: Scan) -> list[int]:
    return np.flatnonzero(mask.voxels.any((1, 2))).tolist()


@pytest.mark.parametrize(
    ("places", "thickness", "between", "expected"),
    [
        # On the image's slices, whatever the file says of their thickness, and whichever frames are left out.
        pytest.param((6, 9, 12), 3, 3, [2, 3, 4], marks=pytest.mark.reads("DICOM mask: a SEG on its image's slices")),
        ((6, 9, 12), 3, None, [2, 3, 4]),
        ((6, 9, 12), None, None, [2, 3, 4]),
        ((6, 9, 12), 2, 3, [2, 3, 4]),
        ((6, 9, 12), 5, 3, [2, 3, 4]),
        ((6, 9, 12), 5, None, [2, 3, 4]),
        ((6, 9, 12), 2.5, 0, [2, 3, 4]),
        ((6, 9, 12), 2.5, 0.5, [2, 3, 4]),  # the gap in place of the distance
        ((6, 9, 12), 3, 6, [2, 3, 4]),  # places say more than a number that contradicts them
        ((9,), 3, 3, [3]),
        ((9,), None, None, [3]),
        pytest.param(
            (6, 9, 27), 3, 3, [2, 3, 9], marks=pytest.mark.reads("DICOM mask: a SEG without frames of empty slices")
        ),
        ((6, 18), 3, 3, [2, 6]),
        ((6, 18), 3, None, [2, 6]),
        # Thicker: the frame's own extent; a slice on the border of two is in the upper one.
        pytest.param(
            (6, 12, 18),
            6,
            6,
            [1, 2, 3, 4, 5, 6],
            marks=pytest.mark.reads("DICOM mask: a SEG of thicker slices than its image"),
        ),
        ((6, 12, 18), 6, None, [1, 2, 3, 4, 5, 6]),
        ((6, 12, 18), None, 6, [1, 2, 3, 4, 5, 6]),
        ((6, 12, 18), 3, 6, [1, 2, 3, 4, 5, 6]),
        ((6, 12, 18), None, None, [1, 2, 3, 4, 5, 6]),
        ((6, 12, 18), 5.4, None, [1, 2, 3, 4, 5, 6]),  # a gap of 0.6 mm between slices
        ((6, 24), 6, 6, [1, 2, 7, 8]),
        ((9,), 9, 9, [2, 3, 4]),
        ((9, 18), 9, None, [2, 3, 4, 5, 6, 7]),
        ((7.5, 13.5, 19.5), 6, 6, [2, 3, 4, 5, 6, 7]),
        ((9, 16, 23), 7, 7, [2, 3, 4, 5, 6, 7, 8]),
        # Finer, or between the image's slices.
        pytest.param(
            tuple(np.arange(6, 13)), 1, 1, [2, 3, 4], marks=pytest.mark.reads("DICOM mask: a SEG of finer slices")
        ),
        ((7, 10, 13), 3, 3, [2, 3, 4]),
    ],
)
@pytest.mark.parametrize("kind", ["BINARY", "FRACTIONAL", "LABELMAP"])
def test_a_frame_is_as_thick_as_its_places_and_measures_say(
    kind: str,
    places: tuple[float, ...],
    thickness: float | None,
    between: float | None,
    expected: list[int],
    series: Path,
    scan: Scan,
    tmp_path: Path,
) -> None:
    frames = at(*places, pixels=FILLED * (255 if kind == "FRACTIONAL" else 1))
    if kind != "BINARY":  # also a frame without a voxel, which is no neighbour
        frames += at(30.0, pixels=FILLED * 0) if (30 - places[-1]) % 3 == 0 and len(places) > 2 and not between else []
    path = write_frames(
        tmp_path / "seg.dcm", series, frames, spacing=(1, 1), thickness=thickness, between=between, kind=kind
    )
    mask, _ = read_mask(path, scan, wanted())
    assert slices(mask) == expected and mask.voxels.sum() == 20 * len(expected)


@pytest.mark.parametrize(
    ("spacing", "orientation", "shape", "origin"),
    [
        ((0.5, 0.5), (1, 0, 0, 0, 1, 0), (20, 20), (1.75, 2.75, 0)),
        ((2.0, 1.0), (1, 0, 0, 0, 1, 0), (5, 10), (2.0, 3.5, 0)),
        ((1.0, 1.0), (0, 1, 0, 1, 0, 0), (10, 10), (2.0, 3.0, 0)),
        ((1.0, 1.0), (-1, 0, 0, 0, 1, 0), (10, 10), (11.0, 3.0, 0)),
        ((1.0, 1.0), (1, 0, 0, 0, 1, 0), (10, 10), (2.3, 3.3, 0)),
    ],
    ids=["finer", "coarser rows", "rows are columns", "mirrored", "shifted"],
)
@pytest.mark.reads("DICOM mask: a SEG of other pixels: finer, turned, shifted, cropped")
def test_pixels_of_another_size_place_and_order(
    spacing: tuple[float, float],
    orientation: tuple[float, ...],
    shape: tuple[int, int],
    origin: tuple[float, ...],
    series: Path,
    scan: Scan,
    tmp_path: Path,
) -> None:
    """A square of 10 mm, filled: 100 of the image's pixels on each of three slices, at the same place."""
    frames = [(1, (origin[0], origin[1], z), np.ones(shape, np.uint8)) for z in (6.0, 9.0, 12.0)]
    path = write_frames(
        tmp_path / "s.dcm", series, frames, spacing=spacing, thickness=3, between=3, orientation=orientation
    )
    mask, remarks = read_mask(path, scan, wanted())
    assert mask.voxels.sum() == 300 and slices(mask) == [2, 3, 4]
    _, y, x = np.nonzero(mask.voxels)
    world = scan.origin[0] - x * 1.0, scan.origin[1] - y * 1.0  # RAS: x and y run against the patient's
    assert (min(world[0]), max(world[0]), min(world[1]), max(world[1])) == (2, 11, 3, 12)
    on_grid = spacing == (1.0, 1.0) and origin[0] != 2.3
    assert (mask.reading.resampled is None) == on_grid == ("resampled" not in said(remarks))


@pytest.mark.parametrize("normal", ["coronal", "sagittal"])
def test_a_seg_in_planes_across_the_images_slices(normal: str, series: Path, scan: Scan, tmp_path: Path) -> None:
    orientation = (1, 0, 0, 0, 0, -1) if normal == "coronal" else (0, 1, 0, 0, 0, -1)
    box = np.ones((6, 8), np.uint8)  # 18 mm of three millimetres each by 8 mm
    frames = [(1, (3.0, place, 21.0) if normal == "coronal" else (place, 3.0, 21.0), box) for place in (4.0, 5.0, 6.0)]
    path = write_frames(
        tmp_path / "s.dcm", series, frames, spacing=(3, 1), thickness=1, between=1, orientation=orientation
    )
    mask, remarks = read_mask(path, scan, wanted())
    assert mask.voxels.sum() == 6 * 8 * 3 and slices(mask) == [2, 3, 4, 5, 6, 7] and not remarks


@pytest.mark.reads("DICOM mask: a SEG of fractions")
@pytest.mark.parametrize(("level", "inside"), [(255, True), (200, True), (128, True), (127, False), (1, False)])
def test_half_of_a_fraction_is_inside(level: int, inside: bool, series: Path, scan: Scan, tmp_path: Path) -> None:
    pixels = FILLED * 255
    pixels[5, 3] = level
    path = write_frames(
        tmp_path / "s.dcm", series, at(6, 9, pixels=pixels), spacing=(1, 1), thickness=3, kind="FRACTIONAL"
    )
    mask, remarks = read_mask(path, scan, wanted())
    assert mask.voxels.sum() == 2 * (20 if inside else 19)
    assert ("probabilities" in said(remarks)) == (level < 255)
    assert mask.reading.format == "DICOM SEG, fractional" and mask.reading.structures == "'prostate' is prostate"


@pytest.mark.reads("DICOM mask: a SEG or structure set that reaches beyond its image")
def test_what_is_beyond_the_image_is_cut_off_and_said(series: Path, scan: Scan, tmp_path: Path) -> None:
    path = write_frames(tmp_path / "s.dcm", series, at(-6, -3, 0, 3), spacing=(1, 1), thickness=3, between=3)
    mask, (remark,) = read_mask(path, scan, wanted())
    assert mask.voxels.sum() == 40 and "0.12 of 0.24 ml of 'prostate'" in remark.what


@pytest.mark.reads("DICOM mask: a SEG or structure set wholly beside its image")
def test_a_mask_of_another_place_is_refused(series: Path, scan: Scan, tmp_path: Path) -> None:
    path = write_frames(tmp_path / "s.dcm", series, at(-60, -57), spacing=(1, 1), thickness=3, between=3)
    with raises("mask-elsewhere", naming="'prostate'"):
        read_mask(path, scan, wanted())


@pytest.mark.reads("DICOM mask: a SEG with several frames of a segment at one place, as of several times")
def test_frames_of_several_times_are_refused_and_copies_read(series: Path, scan: Scan, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"spacing": (1, 1), "thickness": 3, "between": 3}
    copies = write_frames(tmp_path / "copies.dcm", series, [*at(6, 9), *at(9, 12)], **sizes)
    assert slices(read_mask(copies, scan, wanted())[0]) == [2, 3, 4]
    later = np.roll(FILLED, 2, 1)
    both = write_frames(tmp_path / "both.dcm", series, [*at(6, 9), *at(6, 9, pixels=later)], **sizes)
    with raises("mask-frames", naming=("both.dcm", "'prostate'")):
        read_mask(both, scan, wanted())


@pytest.mark.reads("DICOM mask: a SEG off its image's voxels and of another frame of reference")
def test_nothing_is_resampled_from_another_frame_of_reference(series: Path, tmp_path: Path) -> None:
    def elsewhere(made: pydicom.Dataset) -> None:
        made.FrameOfReferenceUID = "1.2.3"

    for number, (place, errors) in enumerate(((6.0, 0), (7.0, 1))):
        path = write_frames(
            tmp_path / f"{number}.dcm", series, at(place), spacing=(1, 1), thickness=3, between=3, change=elsewhere
        )
        _, findings = read_case(CaseFiles("c", (series,), path, labels=wanted()))
        assert sum(finding.level == "error" for finding in findings) == errors
        assert any(finding.code == "mask-of-other-image" for finding in findings)


@pytest.mark.reads("DICOM mask: two classes in one voxel")
def test_segments_may_overlap_unless_both_are_classes(series: Path, scan: Scan, tmp_path: Path) -> None:
    frames = [*at(6, 9), *at(9, 12, segment=2)]
    path = write_frames(
        tmp_path / "s.dcm", series, frames, spacing=(1, 1), thickness=3, between=3, names=("prostate", "lesion")
    )
    assert slices(read_mask(path, scan, wanted())[0]) == [2, 3]
    assert slices(read_mask(path, scan, wanted("lesion"))[0]) == [3, 4]
    with raises("mask-overlap", naming="'lesion'"):
        read_mask(path, scan, wanted("prostate", "lesion"))


@pytest.mark.reads("DICOM mask: a label map whose background is another number than 0")
@pytest.mark.parametrize(
    ("numbers", "names", "padding", "structures"),
    [
        ((0, 1), ("prostate", "lesion"), 7, ("prostate", "lesion")),
        ((0, 1, 7), ("prostate", "lesion", "rest"), 7, ("prostate", "lesion")),
        ((0, 1, 7), ("prostate", "lesion", "bone"), None, ("prostate", "lesion", "bone")),
        ((1, 0, 7), ("prostate", "Background", "bone"), None, ("prostate", "bone")),
        ((1, 0, 7), ("prostate", "air", "bone"), 0, ("prostate", "bone")),
    ],
)
def test_the_background_of_a_label_map_is_what_it_says(
    numbers: tuple[int, ...],
    names: tuple[str, ...],
    padding: int | None,
    structures: tuple[str, ...],
    series: Path,
    scan: Scan,
    tmp_path: Path,
) -> None:
    def renumber(made: pydicom.Dataset) -> None:
        for segment, number in zip(made.SegmentSequence, numbers, strict=True):
            segment.SegmentNumber = number
        if padding is not None:
            made.add_new("PixelPaddingValue", "US", padding)

    pixels = np.where(FILLED > 0, numbers[0], 7)
    path = write_frames(
        tmp_path / "s.dcm", series, at(6, 9, pixels=pixels), spacing=(1, 1), thickness=3, kind="LABELMAP", names=names,
        change=renumber,
    )  # fmt: skip
    mask, _ = read_mask(path, scan, wanted())
    assert slices(mask) == [2, 3] and np.count_nonzero(mask.voxels) == 40
    assert structures_in(path) == structures


@pytest.mark.reads("DICOM mask: a deflated SEG or structure set")
def test_a_deflated_file_is_found_and_read(series: Path, scan: Scan, tmp_path: Path) -> None:
    path = write_frames(tmp_path / "s.dcm", series, at(6, 9), spacing=(1, 1), thickness=3, between=3, syntax=DEFLATED)
    content = pydicom.dcmread(path)
    identity = identify(path)
    assert identity is not None and is_dicom_mask(path)
    assert (identity.sop_class, identity.instance, identity.series) == (
        content.SOPClassUID, content.SOPInstanceUID, content.SeriesInstanceUID
    )  # fmt: skip
    mask, _ = read_mask(path, scan, wanted())
    assert mask.voxels.sum() == 40 and (mask.reading.transfer_syntax or "").startswith("Deflated")


def test_a_deflated_file_is_not_inflated_beyond_a_limit(
    series: Path, scan: Scan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_frames(tmp_path / "s.dcm", series, at(6, 9), spacing=(1, 1), thickness=3, syntax=DEFLATED)
    monkeypatch.setattr(dicom, "MOST_WHOLE", 1000)
    with raises("too-large", naming="s.dcm"):
        read_mask(path, scan, wanted())
    monkeypatch.undo()
    monkeypatch.setattr(segmentations, "MOST_PIXELS", 100)
    with raises("too-large", naming="448"):
        read_mask(path, scan, wanted())


@pytest.mark.reads("DICOM mask: a SEG in RLE, JPEG 2000 or another compression that can be decoded")
def test_a_compressed_seg_is_read(series: Path, scan: Scan, tmp_path: Path) -> None:
    path = write_frames(tmp_path / "s.dcm", series, at(6, 9), spacing=(1, 1), thickness=3, kind="LABELMAP")
    content = pydicom.dcmread(path)
    content.compress(RLELossless)
    content.save_as(path)
    mask, _ = read_mask(path, scan, wanted())
    assert mask.voxels.sum() == 40 and mask.reading.transfer_syntax == "RLE Lossless"


@pytest.mark.reads("DICOM mask: a SEG in a compression without decoder")
def test_a_compression_without_decoder_is_named(series: Path, scan: Scan, tmp_path: Path) -> None:
    path = write_frames(tmp_path / "s.dcm", series, at(6, 9), spacing=(1, 1), thickness=3, kind="LABELMAP")
    content = pydicom.dcmread(path)
    content.PixelData = pydicom.encaps.encapsulate([b"\0\0"] * 2)
    content["PixelData"].is_undefined_length = True
    content.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.4.95"
    content.save_as(path)
    # pydicom does not write the syntax that is meant
    path.write_bytes(path.read_bytes().replace(b"1.2.840.10008.1.2.4.95", b"1.2.840.10008.1.2.8.1\0"))
    with raises("mask-compression", naming="Compression"):
        read_mask(path, scan, wanted())


def _tiled(made: pydicom.Dataset) -> None:
    made.TotalPixelMatrixColumns = made.TotalPixelMatrixRows = 1000
    made.DimensionOrganizationType = "TILED_FULL"


def _crooked(made: pydicom.Dataset) -> None:
    made.SharedFunctionalGroupsSequence[0].PlaneOrientationSequence[0].ImageOrientationPatient = [1, 0, 0, 0.5, 1, 0]


def _without_places(made: pydicom.Dataset) -> None:
    del made.PerFrameFunctionalGroupsSequence[0].PlanePositionSequence


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(
            _tiled, ("mask-of-slides", "s.dcm"), marks=pytest.mark.reads("DICOM mask: a SEG of slides, in tiles")
        ),
        (_crooked, ("mask-frames", "s.dcm")),
        pytest.param(
            _without_places,
            ("mask-unreadable", "DICOM"),
            marks=pytest.mark.reads("DICOM mask: a SEG whose frames lack their place"),
        ),
    ],
)
def test_what_has_no_place_in_the_scan_is_refused(
    change: Any, words: tuple[str, str], series: Path, scan: Scan, tmp_path: Path
) -> None:
    path = write_frames(tmp_path / "s.dcm", series, at(6, 9), spacing=(1, 1), thickness=3, change=change)
    with raises(words[0], naming=words[1]):
        read_mask(path, scan, wanted())


def test_a_retired_code_is_the_code_that_follows_it(series: Path, tmp_path: Path) -> None:
    from pydicom.sr.coding import Code

    from fedshift.federation.resolve import resolve

    mask = np.zeros(SIZE[::-1], bool)
    mask[2:5, 5:9, 3:8] = True
    path = draw_segmentation(tmp_path / "s.dcm", series, {"ROI 7": mask}, codes={"ROI 7": Code("T-92000", "SRT", "P")})
    labels = settle_labels(
        classes=("background", "prostate"), codes=resolve("prostate", "fedavg").task.codes, named=True
    )
    assert read_mask(path, read_scan(series), labels)[0].voxels.sum() == 60
