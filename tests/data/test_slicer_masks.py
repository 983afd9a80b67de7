"""3D Slicer's segmentations: classes by name and code, layers, cut to their extent, and what contradicts itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK as sitk
from errors import raises
from scanfiles import rotation, volume
from slicerfiles import PROSTATE, segment, write_segments

from data_prep.own_scans import prepare_own
from fedshift.cli import main
from fedshift.data.case_check import read_case
from fedshift.data.cases import CaseFiles
from fedshift.data.labels import Labels, settle_labels
from fedshift.data.named_masks import names_structures, read_mask, structures_in
from fedshift.data.prepared import read_labels
from fedshift.data.scans import Scan, read_scan
from fedshift.federation.resolve import resolve
from fedshift.schema.manifest import read_manifest

OBLIQUE = rotation(20, 0)


def wanted(*classes: str, **given: tuple[int | str, ...]) -> Labels:
    labels = settle_labels(
        label_values=given,
        classes=("background", *(classes or ("prostate",))),
        codes=resolve("prostate", "fedavg").task.codes,
        named=True,
    )
    assert labels is not None
    return labels


class Case:
    """An image with a ball and a box, on disk."""

    def __init__(self, folder: Path, *, seed: int = 0, direction: tuple[float, ...] = OBLIQUE) -> None:
        self.image, mask = volume(seed, direction=direction)
        self.file, self.mask = folder / "scan.nii.gz", folder / "mask.seg.nrrd"
        sitk.WriteImage(self.image, str(self.file))
        self.scan: Scan = read_scan(self.file)
        self.ball = sitk.GetArrayFromImage(mask) > 0
        self.box = np.zeros_like(self.ball)
        self.box[1:3, 2:5, 3:7] = True

    def write(self, layers: Sequence[np.ndarray], segments: Sequence[Mapping[str, object]], **options: Any) -> Path:
        return write_segments(self.mask, self.image, layers, segments, **options)

    def in_ras(self, mask: np.ndarray) -> np.ndarray:
        image = sitk.GetImageFromArray(mask.astype(np.uint8))
        image.CopyInformation(self.image)
        return sitk.GetArrayFromImage(sitk.DICOMOrient(image, "RAS"))


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@pytest.mark.reads(".seg.nrrd: segments with names, whatever their values")
@pytest.mark.parametrize("values", [(1, 2), (2, 1), (7, 3)])
def test_a_class_is_the_segment_of_its_name(values: tuple[int, int], case: Case) -> None:
    ball, box = values
    path = case.write([ball * case.ball + box * case.box], [segment("Prostate", ball), segment("bladder", box)])
    assert names_structures(path) and structures_in(path) == ("Prostate", "bladder")
    mask, remarks = read_mask(path, case.scan, wanted())
    np.testing.assert_array_equal(mask.voxels, case.in_ras(case.ball))
    assert len(remarks) == 1 and "'bladder'" in remarks[0].what
    both, _ = read_mask(path, case.scan, wanted("bladder", "prostate"))
    np.testing.assert_array_equal(both.voxels, case.in_ras(2 * case.ball + case.box))
    merged, _ = read_mask(path, case.scan, wanted(prostate=("PROSTATE", "bladder")))
    np.testing.assert_array_equal(merged.voxels, case.in_ras(case.ball | case.box))
    assert mask.reading.format == "3D Slicer segmentation (.seg.nrrd)"
    assert both.reading.structures == ", ".join(["'Prostate' is prostate", "'bladder' is bladder"])


@pytest.mark.reads(".seg.nrrd: segments of one name that --label gives to a class")
def test_segments_of_one_name_are_warned_of_where_a_person_has_named_it(case: Case) -> None:
    path = case.write([case.ball + 2 * case.box], [segment("Lesion", 1), segment("Lesion", 2)])
    mask, (warning,) = read_mask(path, case.scan, wanted(prostate=("lesion",)))
    np.testing.assert_array_equal(mask.voxels, case.in_ras(case.ball | case.box))
    assert "2 structures of one name, 'Lesion', 'Lesion', which are all taken as prostate" in warning.what


@pytest.mark.reads(".seg.nrrd: segments with a code")
@pytest.mark.parametrize("tags", [PROSTATE, PROSTATE.replace("SCT^41216001", "SRT^T-92000")], ids=["SCT", "SRT"])
def test_a_class_is_the_segment_of_its_code(tags: str, case: Case) -> None:
    path = case.write([case.ball + 2 * case.box], [segment("Segment_1", 1, tags=tags), segment("Segment_2", 2)])
    mask, _ = read_mask(path, case.scan, wanted())
    np.testing.assert_array_equal(mask.voxels, case.in_ras(case.ball))


@pytest.mark.reads(".seg.nrrd: layers of segments that overlap")
def test_layers_are_read_and_two_classes_in_one_voxel_are_not(case: Case) -> None:
    segments = [segment("prostate", 1, 0), segment("bladder", 2, 0), segment("lesion", 1, 1)]
    lesion = np.roll(case.ball, 1, 2)
    path = case.write([case.ball + 2 * case.box, lesion], segments)
    for name, mask in (("prostate", case.ball), ("bladder", case.box), ("lesion", lesion)):
        read, _ = read_mask(path, case.scan, wanted(name))
        np.testing.assert_array_equal(read.voxels, case.in_ras(mask))
    with raises("mask-overlap", naming="'lesion'"):
        read_mask(path, case.scan, wanted("prostate", "lesion"))


def test_layers_of_versions_before_they_had_numbers(case: Case) -> None:
    """… each segment is a layer of its own, with the value 1."""
    segments = [{"Name": "bladder"}, {"Name": "prostate"}]
    path = case.write([case.box, case.ball], segments)
    mask, _ = read_mask(path, case.scan, wanted())
    np.testing.assert_array_equal(mask.voxels, case.in_ras(case.ball))


@pytest.mark.reads(".seg.nrrd: voxels cut to the segments' extent")
@pytest.mark.parametrize("direction", [(1, 0, 0, 0, 1, 0, 0, 0, 1), OBLIQUE, (0, 0, -1, 1, 0, 0, 0, -1, 0)])
def test_what_slicer_has_cut_is_placed_on_the_image(direction: tuple[float, ...], tmp_path: Path) -> None:
    case = Case(tmp_path, direction=direction)
    z, y, x = (slice(int(k.min()), int(k.max()) + 1) for k in np.nonzero(case.ball))
    path = case.write([case.ball[z, y, x]], [segment("prostate")], start=(x.start, y.start, z.start))
    decoded, findings = read_case(CaseFiles("c", (case.file,), path, labels=wanted()))
    assert decoded is not None and not [finding for finding in findings if finding.file == path]
    np.testing.assert_array_equal(decoded.mask.voxels, case.in_ras(case.ball))
    assert decoded.mask.reading.resampled is None and "placed among" in (decoded.mask.reading.geometry or "")


@pytest.mark.reads(".seg.nrrd: other voxels than the image's")
def test_a_mask_drawn_in_another_geometry_keeps_its_volume(case: Case) -> None:
    fine = sitk.Resample(
        _like(case.image, case.ball),
        [48, 40, 27],
        sitk.Transform(),
        sitk.sitkNearestNeighbor,
        case.image.TransformContinuousIndexToPhysicalPoint((-0.25, -0.25, -1 / 3)),
        [0.35, 0.4, 1.0],
        case.image.GetDirection(),
    )
    path = write_segments(case.mask, fine, [sitk.GetArrayFromImage(fine)], [segment("prostate")])
    mask, (remark,) = read_mask(path, case.scan, wanted())
    np.testing.assert_array_equal(mask.voxels, case.in_ras(case.ball))
    assert "0.35 x 0.4 x 1 mm" in remark.what


def _like(image: sitk.Image, mask: np.ndarray) -> sitk.Image:
    stored = sitk.GetImageFromArray(mask.astype(np.uint8))
    stored.CopyInformation(image)
    return stored


@pytest.mark.reads(".seg.nrrd: segments beyond the image")
def test_what_is_beyond_the_image_is_cut_off_and_said(case: Case) -> None:
    box = np.ones((2, 4, 4), bool)
    path = case.write([box], [segment("prostate")], start=(-2, 3, 3))
    mask, (remark,) = read_mask(path, case.scan, wanted())
    assert mask.voxels.sum() == 16 and "0.0269 of 0.0538 ml of 'prostate'" in remark.what
    path = case.write([box], [segment("prostate")], start=(-200, 3, 3))
    with raises("mask-elsewhere", naming="'prostate'"):
        read_mask(path, case.scan, wanted())


@pytest.mark.parametrize(
    ("segments", "given", "words"),
    [
        ([segment("bladder")], {}, ("structure-missing", "'bladder'")),
        pytest.param(
            [segment("bladder")],
            {"prostate": (1,)},
            ("structure-code", "'bladder'"),
            marks=pytest.mark.reads(".seg.nrrd: a name that is no class, and a value that is said to be one"),
        ),
        pytest.param(
            [segment("other", 2)],
            {},
            ("mask-values", "mask.seg.nrrd"),
            marks=pytest.mark.reads(".seg.nrrd: values that no segment has"),
        ),
        pytest.param(
            [segment("prostate", 1), segment("bladder", 1)],
            {},
            ("segment-twice", "'bladder'"),
            marks=pytest.mark.reads(".seg.nrrd: two segments with one value, or one name"),
        ),
        ([segment("prostate", 1), segment("Prostate", 2)], {}, ("structure-twice", "'prostate'")),
        ([segment("prostate", 1, 3)], {}, ("segment-value", "layer 3")),
        ([{"Name": "prostate", "LabelValue": "x"}], {}, ("segment-number", "mask.seg.nrrd")),
        ([segment("bladder", tags=PROSTATE), segment("prostate", 2)], {}, ("structure-twice", "mask.seg.nrrd")),
    ],
)
def test_a_file_that_contradicts_itself_or_the_command_is_refused(
    segments: list[dict[str, object]], given: dict[str, tuple[int, ...]], words: tuple[str, str], case: Case
) -> None:
    path = case.write([case.ball], segments)
    with raises(words[0], naming=words[1]):
        read_mask(path, case.scan, wanted(**given))


@pytest.mark.reads(".seg.nrrd: a name that is one class, and a value that is said to be another")
def test_names_are_followed_where_the_values_of_one_case_are_swapped(case: Case) -> None:
    path = case.write([2 * case.ball + case.box], [segment("prostate", 2), segment("bladder", 1)])
    classes = ("background", "prostate", "bladder")
    labels = settle_labels(label_values={"prostate": (1,), "bladder": (2,)}, classes=classes, named=True)
    mask, remarks = read_mask(path, case.scan, labels)
    np.testing.assert_array_equal(mask.voxels == 1, case.in_ras(case.ball))
    assert len(remarks) == 2 and "value 2 'prostate'" in remarks[0].what and "value 1 'bladder'" in remarks[1].what


@pytest.mark.reads(".seg.nrrd: segments that nobody has named")
@pytest.mark.parametrize(("name", "taken"), [("Segment_1", True), ("Label 1", True), ("1", True), ("bladder", False)])
def test_a_value_counts_where_the_name_says_nothing(name: str, taken: bool, case: Case) -> None:
    path = case.write([case.ball], [segment(name)])
    with raises("structure-missing", naming="mask.seg.nrrd"):
        read_mask(path, case.scan, wanted())
    if taken:
        mask, _ = read_mask(path, case.scan, wanted(prostate=(1,)))
        np.testing.assert_array_equal(mask.voxels, case.in_ras(case.ball))


@pytest.mark.reads(".seg.nrrd: no names")
def test_a_file_without_names_is_read_by_its_values(case: Case) -> None:
    path = case.write([3 * case.ball], [])
    assert not names_structures(path)
    labels = settle_labels(label_values={"prostate": (3,)}, classes=("background", "prostate"))
    decoded, _ = read_case(CaseFiles("c", (case.file,), path, labels=labels))
    assert decoded is not None
    np.testing.assert_array_equal(decoded.mask.voxels, case.in_ras(case.ball))


@pytest.mark.reads(".seg.nrrd: layers without names")
def test_layers_without_names_are_refused(case: Case) -> None:
    path = case.write([case.ball, case.box], [])
    _, (finding,) = read_case(CaseFiles("c", (case.file,), path, labels=wanted()))
    assert finding.code == "mask-layers"


def test_trust_voxels_takes_the_images_geometry(case: Case) -> None:
    moved = sitk.Image(case.image)
    moved.SetOrigin((0, 0, 0))
    path = write_segments(case.mask, moved, [case.ball], [segment("prostate")])
    decoded, _ = read_case(CaseFiles("c", (case.file,), path, labels=wanted(), trust_voxels=True))
    assert decoded is not None
    np.testing.assert_array_equal(decoded.mask.voxels, case.in_ras(case.ball))


def site(folder: Path) -> None:
    """Three cases, the last with its values swapped, and all cut to their extent."""
    for number in range(3):
        image, mask = volume(number)
        ball, box = sitk.GetArrayFromImage(mask) > 0, np.zeros(mask.GetSize()[::-1], bool)
        box[1:3, 2:5, 3:7] = True
        p, b = (1, 2) if number < 2 else (2, 1)
        (folder / "scans").mkdir(parents=True, exist_ok=True)
        sitk.WriteImage(image, str(folder / "scans" / f"P{number}.nrrd"))
        write_segments(
            folder / "masks" / f"P{number}.seg.nrrd",
            image,
            [(p * ball + b * box)[1:, 2:, 3:]],
            [segment("prostate", p), segment("bladder", b)],
            start=(3, 2, 1),
        )


def test_a_site_whose_values_are_swapped_in_one_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site(tmp_path / "in")
    options = {"dataset": "two", "classes": ("background", "prostate", "bladder"), "source": tmp_path / "in"}
    values = {"prostate": (1,), "bladder": (2,)}
    for labels in ({}, {}, values):  # the second time with what the first has recorded
        folder = prepare_own(None, None, "A", tmp_path / "out", labels=labels, **options)  # type: ignore[arg-type]
        for number, case in enumerate(read_manifest(folder).cases):
            mask = read_labels(folder, case)
            ball = sitk.GetArrayFromImage(sitk.DICOMOrient(volume(number)[1], "RAS")) > 0
            np.testing.assert_array_equal(mask == 1, ball)
            assert np.count_nonzero(mask == 2) == 24
    assert main(["data", "check", str(tmp_path / "in")]) == 0
    assert "'prostate' (3), 'bladder' (3)" in capsys.readouterr().out
