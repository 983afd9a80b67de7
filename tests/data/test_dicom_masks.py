"""DICOM SEG and RT Structure Sets as masks: found by name or code, and on their image's voxels or not at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from dicomstudies import PROSTATE, draw_segmentation, draw_structures, write_enhanced, write_slices
from errors import raises
from forbidding import forbid
from pydicom.sr.coding import Code
from scanfiles import rotation, volume

from data_prep.own_scans import prepare_own
from fedshift.cli import main
from fedshift.data.case_check import read_case
from fedshift.data.cases import CaseFiles
from fedshift.data.check import check
from fedshift.data.labels import Labels, settle_labels
from fedshift.data.layouts.find import gather
from fedshift.data.named_masks import read_mask
from fedshift.data.prepared import read_labels
from fedshift.data.scan_file import ScanError
from fedshift.data.scans import read_scan
from fedshift.data.structures import Remark
from fedshift.federation.resolve import resolve
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import read_manifest

OBLIQUE = rotation(20, 0)
Outline = tuple[int, np.ndarray, str]
"""Slice, points (column, row), kind."""
BLADDER = Code("89837001", "SCT", "Bladder")


def labels(**given: tuple[str, ...]) -> Labels:
    codes = resolve("prostate", "fedavg").task.codes
    settled = settle_labels(label_values=given, classes=("background", "prostate"), codes=codes, named=True)
    assert settled is not None
    return settled


def drawn(mask: sitk.Image) -> np.ndarray:
    return sitk.GetArrayFromImage(mask) > 0


def said(remarks: Sequence[Remark]) -> list[str]:
    return [remark.what for remark in remarks]


def in_ras(mask: sitk.Image) -> np.ndarray:
    return sitk.GetArrayFromImage(sitk.DICOMOrient(mask, "RAS"))


def study(folder: Path, number: int, *, slices: int = 9) -> None:
    """A patient's folder with two series, and a mask of the first right in it."""
    image, mask = volume(number)
    series = write_slices(folder / "t2", image, seed=f"{number}")
    write_slices(folder / "other", volume(number + 50)[0][:, :, :slices], seed=f"other {number}")
    draw_segmentation(folder / "seg.dcm", series, {"prostate": drawn(mask)})


@pytest.mark.parametrize("slices", [9, 6])
def test_a_mask_right_in_the_patients_folder_says_its_series(slices: int, tmp_path: Path) -> None:
    """… as one in a folder of its own does: the other series are passed over, unless they are asked for."""
    for number in range(3):
        study(tmp_path / "in" / f"P{number}", number, slices=slices)
    (tables,) = gather(tmp_path / "in")
    assert (tables.layout, tables.sequences) == ("studies", ())
    assert [(case.id, case.image.name) for case in tables.cases] == [(f"P{number}", "t2") for number in range(3)]
    options = {"dataset": "prostate", "classes": ("background", "prostate"), "source": tmp_path / "in"}
    site = prepare_own(None, None, "A", tmp_path / "out", **options)  # type: ignore[arg-type]
    manifest = read_manifest(site)
    image, mask = volume(0)
    np.testing.assert_array_equal(read_labels(site, manifest.cases[0]), in_ras(mask))
    assert manifest.sequences == () and manifest.cases[0].shape == image.GetSize()[::-1]
    prepare_own(None, None, "B", tmp_path / "out", sequences={"CT": ""}, **options)  # type: ignore[arg-type]
    assert read_manifest(tmp_path / "out" / "prostate" / "B").sequences == ("CT",), "a name for what is there"
    (tables,) = gather(tmp_path / "in", sequences={"T2": "", "OTHER": ""})
    assert (tables.layout, tables.sequences) == ("case folders", ("T2", "OTHER"))
    (tables,) = gather(tmp_path / "in", sequences={"Other": ""})
    assert [case.image.name for case in tables.cases] == ["other"] * 3


@pytest.mark.parametrize("sequences", [{}, {"T2": ""}])
def test_a_second_mask_of_a_patient_is_an_error(sequences: dict[str, str], tmp_path: Path) -> None:
    for number in range(2):
        study(tmp_path / f"P{number}", number)
    second = tmp_path / "P1" / "seg2.dcm"
    draw_segmentation(second, tmp_path / "P1" / "t2", {"prostate": np.ones_like(drawn(volume(1)[1]))})
    (finding,) = (each for each in gather(tmp_path, sequences=sequences)[0].findings if each.level == "error")
    assert finding.file == tmp_path / "P1" and re.match(
        r"holds 2 (DICOM )?masks \(seg\.dcm, seg2\.dcm\)", finding.message
    )


@pytest.mark.reads("DICOM image: scans of one sequence in several units, such as PET in BQML and in counts")
def test_cases_in_several_units_are_warned_of(tmp_path: Path) -> None:
    for number, unit in enumerate(("BQML", "BQML", "CNTS")):
        image, mask = volume(number)

        def as_pet(made: pydicom.Dataset, _: int, unit: str = unit) -> None:
            made.SOPClassUID, made.Modality, made.Units = "1.2.840.10008.5.1.4.1.1.128", "PT", unit
            made.RescaleSlope, made.RescaleIntercept = "2", "0"

        series = write_slices(tmp_path / f"P{number}" / "pet", image, seed=f"{number}", change=as_pet)
        draw_segmentation(tmp_path / f"P{number}" / "seg.dcm", series, {"prostate": drawn(mask)})
    (finding,) = check(tmp_path, labels={"prostate": ("prostate",)})
    assert (finding.level, finding.code) == ("warning", "units-differ")
    assert "BQML in P0, P1" in finding.message and "CNTS in P2" in finding.message


def test_ct_of_dicom_is_to_be_called_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """… also where the scan is of the inside of the body, without air."""
    image, mask = volume()

    def as_ct(made: pydicom.Dataset, _: int) -> None:
        made.SOPClassUID, made.Modality = "1.2.840.10008.5.1.4.1.1.2", "CT"
        made.RescaleSlope, made.RescaleIntercept = "1", "0"

    series = write_slices(tmp_path / "in" / "P0" / "head", image, change=as_ct)
    draw_segmentation(tmp_path / "in" / "P0" / "seg.dcm", series, {"prostate": drawn(mask)})
    words = {"prostate": ("Prostate",)}
    (finding,) = check(tmp_path / "in", labels=words)
    assert finding.level == "warning" and finding.code == "looks-like-ct"
    assert finding.code == "looks-like-ct" and "--sequence CT" in finding.remedy
    prepare_own(None, None, "A", tmp_path / "out", dataset="d", source=tmp_path / "in", labels=words)
    assert "is CT by" in caplog.text
    assert check(tmp_path / "in", labels=words, sequences={"CT": ""}) == []


def test_a_number_for_a_structure_is_not_looked_at_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study(tmp_path / "in" / "P0", 0)
    (finding,) = check(tmp_path / "in", labels={"prostate": (2,)})
    assert finding.level == "warning" and finding.code == "label-number" and "prostate=2" in finding.message
    assert check(tmp_path / "in", labels={"prostate": ("Prostate",)}) == []
    prepare_own(None, None, "A", tmp_path / "out", dataset="d", source=tmp_path / "in", labels={"prostate": (2,)})
    assert "--label prostate=2 " in caplog.text


@pytest.mark.parametrize("direction", [(1, 0, 0, 0, 1, 0, 0, 0, 1), OBLIQUE, (0, 0, -1, 1, 0, 0, 0, -1, 0)])
@pytest.mark.parametrize("kind", ["BINARY", "LABELMAP", "FRACTIONAL"])
def test_a_readers_segment_is_the_mask_whatever_its_number(
    direction: tuple[float, ...], kind: str, tmp_path: Path
) -> None:
    image, mask = volume(direction=direction)
    series = write_slices(tmp_path / "s", image, reverse=True)
    other = drawn(mask) & False
    other[2, 3:5, 3:5] = True
    seg = draw_segmentation(
        tmp_path / "seg.dcm", series, {"Bladder": other, "Prostate": drawn(mask)}, codes={"Bladder": BLADDER}, kind=kind
    )
    read, remarks = read_mask(seg, read_scan(series), labels())
    np.testing.assert_array_equal(read.voxels, in_ras(mask))
    assert len(remarks) == 1 and "'Bladder'" in remarks[0].what


@pytest.mark.reads("DICOM mask: a structure by its name, then by its code")
@pytest.mark.reads("DICOM mask: structures that are no class")
@pytest.mark.reads("DICOM mask: two structures of one class")
def test_names_codes_and_what_the_command_says(tmp_path: Path) -> None:
    image, mask = volume()
    series = write_slices(tmp_path / "s", image)
    scan = read_scan(series)
    half = drawn(mask).copy()
    half[:, :, :12] = False
    rest = drawn(mask) & ~half

    def seg(name: str, masks: dict[str, np.ndarray], **codes: Code) -> Path:
        named = {key: codes.get(key.split()[0], BLADDER) for key in masks}
        return draw_segmentation(tmp_path / f"{name}.dcm", series, masks, codes=named)

    by_code = seg("code", {"ROI 1": half, "Gland": drawn(mask)}, Gland=PROSTATE)
    np.testing.assert_array_equal(read_mask(by_code, scan, labels())[0].voxels, in_ras(mask))
    parts = seg("parts", {"inner": half, "outer": rest})
    both, _ = read_mask(parts, scan, labels(prostate=("Inner", "outer")))
    np.testing.assert_array_equal(both.voxels, in_ras(mask))
    _, remarks = read_mask(seg("odd", {"prostate": half}), scan, labels())
    assert len(remarks) == 1 and "'Bladder', not 'Prostate'" in remarks[0].what
    zones = settle_labels(classes=("background", "inner", "outer"), named=True)
    assert zones is not None
    np.testing.assert_array_equal(np.unique(read_mask(parts, scan, zones)[0].voxels), [0, 1, 2])
    for path, wanted, words in (
        (parts, labels(), "'inner', 'outer', none of which is prostate: .*prostate='inner'"),
        (seg("two", {"prostate": half, "Prostate": rest}), labels(), "prostate, 'prostate' and 'Prostate'"),
        (seg("over", {"inner": half, "outer": drawn(mask)}), zones, "'outer' that are of another class too"),
    ):
        with pytest.raises(ScanError, match=words):
            read_mask(path, scan, wanted)


@pytest.mark.reads("DICOM mask: structures of one name that --label gives to a class")
def test_structures_of_one_name_are_warned_of_where_a_person_has_named_it(tmp_path: Path) -> None:
    image, mask = volume()
    series = write_slices(tmp_path / "s", image)
    scan, inside = read_scan(series), drawn(mask)
    half = inside.copy()
    half[:, :, :12] = False
    readers = draw_segmentation(tmp_path / "readers.dcm", series, {"GTV": half, "gtv": inside})
    both, remarks = read_mask(readers, scan, labels(prostate=("gtv",)))
    np.testing.assert_array_equal(both.voxels, in_ras(mask))
    (warning,) = remarks
    assert "2 structures of one name, 'GTV', 'gtv'" in warning.what and f"{half.sum()} voxel(s)" in warning.what
    parts = draw_segmentation(tmp_path / "parts.dcm", series, {"GTV": half, "gtv": inside & ~half})
    assert "more than one" not in "".join(said(read_mask(parts, scan, labels(prostate=("gtv",)))[1]))
    named = draw_segmentation(tmp_path / "named.dcm", series, {"PZ": half, "TZ": inside})
    merged, remarks = read_mask(named, scan, labels(prostate=("PZ", "TZ")))
    assert not remarks and merged.reading.structures == "'PZ' is prostate, 'TZ' is prostate"


@pytest.mark.reads("DICOM mask: a mask of another series than its image")
def test_a_mask_beside_its_image_is_refused_and_one_of_another_series_warned_of(tmp_path: Path) -> None:
    image, mask = volume()
    series = write_slices(tmp_path / "s", image)
    seg = draw_segmentation(tmp_path / "seg.dcm", series, {"prostate": drawn(mask)})
    moved, flipped = sitk.Image(image), sitk.Flip(image, (False, True, False))
    moved.SetOrigin([value + 300 for value in image.GetOrigin()])
    scan = read_scan(write_slices(tmp_path / "moved", moved, seed="moved"))
    with raises("mask-elsewhere", naming="'prostate'"):
        read_mask(seg, scan, labels())
    # Stored the other way round in memory, the same places: nothing is flipped.
    sitk.WriteImage(flipped, tmp_path / "flipped.nii.gz")
    there, _ = read_mask(seg, read_scan(tmp_path / "flipped.nii.gz"), labels())
    np.testing.assert_array_equal(there.voxels, in_ras(mask))
    twin = write_slices(tmp_path / "twin", image, seed="another")
    read, findings = read_case(CaseFiles("c", (twin,), seg, labels=labels()))
    assert read is not None
    assert [finding.code for finding in findings] == ["mask-of-other-image"]


def studies(root: Path, cases: int = 3, *, start: int = 0) -> Path:
    """Studies as an archive exports them: a folder for each patient, with other series, a mask and a report."""
    for number in range(start, start + cases):
        image, mask = volume(number, direction=OBLIQUE if number % 2 else (1, 0, 0, 0, 1, 0, 0, 0, 1))
        patient = root / f"P{number}"
        series = write_slices(patient / "t2", image, seed=f"{number}")
        write_slices(patient / "other", image, seed=f"{number} other")
        draw_segmentation(patient / "drawn" / "1.2.3.dcm", series, {"Prostate": drawn(mask)})
    return root


def test_a_site_from_studies_with_segmentations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = studies(tmp_path / "studies")
    assert main(["data", "check", str(root)]) == 0
    words = ["--task", "prostate", "--site", "HK", "--source", str(root), "--out", str(tmp_path / "data")]
    assert main(["data", "prepare", "own", *words]) == 0, capsys.readouterr().err
    site = tmp_path / "data" / "prostate" / "HK"
    assert check(site) == []
    manifest = read_manifest(site)
    assert [case.id for case in manifest.cases] == ["P0", "P1", "P2"]
    for case in manifest.cases:
        number = int(case.id[1:])
        _, mask = volume(number, direction=OBLIQUE if number % 2 else (1, 0, 0, 0, 1, 0, 0, 0, 1))
        np.testing.assert_array_equal(read_labels(site, case), in_ras(mask))
    text = (site / "manifest.json").read_text(encoding="utf-8")
    assert "Doe" not in text and "PID" not in text


def test_what_is_wrong_with_studies_is_said(tmp_path: Path) -> None:
    root = studies(tmp_path / "studies", 2)
    (root / "P0" / "drawn" / "1.2.3.dcm").rename(root / "P1" / "drawn" / "again.dcm")
    table = gather(root)[0]
    assert [case.id for case in table.cases] == ["P0", "P1"], "a mask's folder does not matter"
    twice = root / "P1" / "drawn" / "second.dcm"
    twice.write_bytes((root / "P1" / "drawn" / "1.2.3.dcm").read_bytes())
    for file in (root / "P0" / "t2").iterdir():
        file.unlink()
    sentences = [finding.sentence() for finding in gather(root)[0].findings]
    assert len(sentences) == 3 and "(1.2.3.dcm, second.dcm)" in sentences[1]
    assert "again.dcm" in sentences[0] and "P0" in sentences[2]
    with raises("labels-missing", naming="drawn"):
        prepare_own(None, None, "A", tmp_path / "out", dataset="x", source=studies(tmp_path / "again", 1))


@pytest.mark.parametrize("folder", ["t2", "drawn"])
def test_a_study_that_may_not_be_read_is_named_and_can_be_left_out(
    tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = studies(tmp_path / "studies", 2)
    file = sorted((root / "P0" / folder).iterdir())[0]
    forbid(file, monkeypatch)
    sentences = [finding.sentence() for finding in gather(root)[0].findings]
    assert sum(sentence.startswith(f"{file} cannot be read (Permission denied): ") for sentence in sentences) == 1
    options = {"dataset": "x", "source": root, "labels": {"prostate": ["Prostate"]}, "skip_damaged": True}
    site = prepare_own(None, None, "A", tmp_path / "out", **options)  # type: ignore[arg-type]
    assert [case.id for case in read_manifest(site).cases] == ["P1"]


def test_masks_in_a_folder_of_their_own_and_structure_sets(tmp_path: Path) -> None:
    """A structure set of predict is the mask again; here of an enhanced image, and named by the command."""
    from inference.conftest import brightness_model

    image, _ = volume(size=(50, 45, 13), radius=11.0, direction=OBLIQUE)
    write_enhanced(tmp_path / "scans" / "P1" / "image.dcm", image, order=[12, *range(12)])
    model = brightness_model(tmp_path / "model.pt")
    words = ["--format", "rtstruct", "--format", "mask", "--out", str(tmp_path / "out")]
    assert main(["predict", str(model), str(tmp_path / "scans"), *words]) == 0
    for file in (tmp_path / "out").glob("*"):
        folder = tmp_path / ("masks" if file.suffix == ".dcm" else "rest")
        folder.mkdir(exist_ok=True)
        file.rename(folder / file.name)
    site = prepare_own(
        tmp_path / "scans",
        tmp_path / "masks",
        "A",
        tmp_path / "data",
        dataset="prostate",
        classes=("background", "gland"),
        labels={"gland": ("Prostate",)},
    )
    case = read_manifest(site).cases[0]
    expected = read_scan(tmp_path / "rest" / "image_mask.nii.gz")
    np.testing.assert_array_equal(read_labels(site, case), expected.voxels)
    dataset = pydicom.dcmread(next((tmp_path / "masks").iterdir()))
    dataset.ROIContourSequence[0].ContourSequence[0].ContourGeometricType = "OPEN_PLANAR"
    dataset.save_as(tmp_path / "open.dcm")
    with raises("contours-not-closed", naming="open.dcm"):
        read_mask(tmp_path / "open.dcm", expected, labels())
    with pytest.raises(DataError):
        prepare_own(
            tmp_path / "scans", tmp_path / "masks", "B", tmp_path / "data", dataset="y", labels={"gland": ("Nobody",)}
        )


def square(k: int, left: float, top: float, right: float, bottom: float, kind: str = "CLOSED_PLANAR") -> Outline:
    return k, np.array([[left, top], [right, top], [right, bottom], [left, bottom]]), kind


GLAND = [square(k, 4.5, 5.5, 11.5, 13.5) for k in range(3, 7)]
BODY = [square(k, 0.5, 0.5, 22.5, 18.5) for k in range(9)]
POINT: list[Outline] = [(4, np.array([[8.0, 9.0]]), "POINT")]
TWICE = [square(k, 8.5, 8.5, 15.5, 16.5) for k in range(3, 7)]


def test_contours_that_are_doubled_overlap_or_say_xor(tmp_path: Path) -> None:
    image, _ = volume()
    series = write_slices(tmp_path / "s", image)
    for number, (outlines, voxels) in enumerate(
        (
            (GLAND, 4 * 56),
            ([*GLAND, GLAND[1]], 4 * 56),
            ([*GLAND, *TWICE], 4 * (56 + 56 - 15)),
            ([(k, points, "CLOSEDPLANAR_XOR") for k, points, _ in (*GLAND, *TWICE)], 4 * (56 + 56 - 30)),
        )
    ):
        path = draw_structures(tmp_path / f"{number}.dcm", series, [(7, "Prostate", outlines)])
        assert np.count_nonzero(read_mask(path, read_scan(series), labels())[0].voxels) == voxels


def test_a_segmentation_that_lacks_the_places_of_frames_is_refused(tmp_path: Path) -> None:
    image, mask = volume()
    series = write_slices(tmp_path / "s", image)
    path = draw_segmentation(tmp_path / "seg.dcm", series, {"prostate": drawn(mask)})
    content = pydicom.dcmread(path)
    frames = int(content.NumberOfFrames)
    content.PerFrameFunctionalGroupsSequence = content.PerFrameFunctionalGroupsSequence[:-1]
    content.save_as(path)
    with raises("mask-frames", naming=(str(frames), str(frames - 1))):
        read_mask(path, read_scan(series), labels())


@pytest.mark.parametrize("number", [0, 300, 70000])
def test_check_of_structures_that_no_class_is_given_for(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is no class has no errors, whatever its number; with the task, check says what preparation says."""
    for case in range(2):
        image, _ = volume(case)
        series = write_slices(tmp_path / "in" / f"P{case}" / "t2", image, seed=f"{case}")
        gland = GLAND if case else GLAND[1:]
        draw_structures(
            tmp_path / "in" / f"P{case}" / "rs.dcm",
            series,
            [(number + 2, "BODY", BODY), (number, "Prostate", gland), (number + 1, "iso", POINT)],
        )
    words = [str(tmp_path / "in")]
    assert main(["data", "check", *words]) == 0
    printed = capsys.readouterr().out
    assert "'BODY' (2), 'Prostate' (2), 'iso' (2)" in printed
    assert "--task" in printed and "NAME=" not in printed and "0 error(s), 3 warning(s)" in printed
    assert main(["data", "check", *words, "--task", "prostate"]) == 0
    printed = capsys.readouterr().out
    assert "left out: 'BODY', 'iso'" in printed and "nothing says which" not in printed
    into = ["--site", "A", "--source", *words, "--out", str(tmp_path / "out")]
    assert main(["data", "prepare", "own", "--task", "prostate", *into]) == 0
    assert main(["data", "check", *words, "--task", "no_such_task"]) == 2
    assert "'no_such_task'" in capsys.readouterr().err


def test_check_with_the_task_finds_a_mask_without_its_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image, _ = volume()
    series = write_slices(tmp_path / "in" / "P0" / "t2", image)
    draw_structures(tmp_path / "in" / "P0" / "rs.dcm", series, [(1, "Bladder", GLAND)])
    assert main(["data", "check", str(tmp_path / "in"), "--task", "prostate"]) == 1
    assert "'Bladder', none of which" in capsys.readouterr().out


def test_without_classes_a_mask_that_cannot_be_drawn_at_all_is_an_error(tmp_path: Path) -> None:
    image, _ = volume()
    series = write_slices(tmp_path / "s", image)
    path = draw_structures(tmp_path / "rs.dcm", series, [(1, "iso", POINT)])
    with raises("contours-not-closed", naming="'iso'"):
        read_mask(path, read_scan(series), None)


def _without_series(made: pydicom.Dataset) -> None:
    del made.ReferencedSeriesSequence


def _without_derivation(made: pydicom.Dataset) -> None:
    _without_series(made)
    for group in made.PerFrameFunctionalGroupsSequence:
        del group.DerivationImageSequence
    made.pop("SourceImageSequence", None)


def _top_level_sources(made: pydicom.Dataset) -> None:
    sources = [one for group in made.PerFrameFunctionalGroupsSequence for one in group.DerivationImageSequence]
    _without_derivation(made)
    made.SourceImageSequence = [image for one in sources for image in one.SourceImageSequence]


def _instances_of_a_series(made: pydicom.Dataset) -> None:
    listed = made.ReferencedSeriesSequence[0].ReferencedInstanceSequence
    _without_derivation(made)
    made.ReferencedInstanceSequence = listed


def _renamed_series(made: pydicom.Dataset) -> None:
    made.ReferencedSeriesSequence[0].SeriesInstanceUID = "1.2.3"


def _unknown_images(made: pydicom.Dataset) -> None:
    _without_derivation(made)
    other = pydicom.Dataset()
    other.ReferencedSOPInstanceUID = "1.2.3"
    made.SourceImageSequence = [other]


@pytest.mark.parametrize(
    ("change", "same_frame", "words"),
    [
        pytest.param(_without_series, True, None, marks=pytest.mark.reads("DICOM mask: images named, and no series")),
        (_top_level_sources, True, None),
        (_instances_of_a_series, True, None),
        (_renamed_series, True, None),
        pytest.param(
            _without_derivation,
            False,
            None,
            marks=pytest.mark.reads("DICOM mask: a frame of reference named, and neither series nor images"),
        ),
        (_without_derivation, True, "refers to 2 series by its frame of reference alone"),
        (_unknown_images, False, "refers to a series that is not there"),
    ],
)
@pytest.mark.parametrize("deflate", [False, True])
def test_the_series_of_a_mask_is_found_by_what_it_says(
    deflate: bool, change: Callable[[pydicom.Dataset], None], same_frame: bool, words: str | None, tmp_path: Path
) -> None:
    """A study has two series, which may have one frame of reference; the mask lies among them."""
    image, mask = volume()
    series = write_slices(tmp_path / "P0" / "t2", image)
    frame = pydicom.dcmread(next(series.iterdir())).FrameOfReferenceUID

    def in_frame(made: pydicom.Dataset, _: int) -> None:
        made.FrameOfReferenceUID = frame if same_frame else made.FrameOfReferenceUID

    write_slices(tmp_path / "P0" / "other", image, seed="other", change=in_frame)
    path = draw_segmentation(tmp_path / "P0" / "m" / "seg.dcm", series, {"prostate": drawn(mask)})
    content = pydicom.dcmread(path)
    change(content)
    if deflate:
        content.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.1.99"
    content.save_as(path)
    (tables,) = gather(tmp_path)
    assert [finding.message for finding in tables.findings if finding.file == path] == (
        [] if words is None else [words]
    )
    if words is None:
        (case,) = tables.cases
        assert case.image == series
        decoded, findings = read_case(replace(case, labels=labels()))
        assert decoded is not None
        assert [one.message for one in findings] == ["refers to another series than that of its image"] * (
            change is _renamed_series
        )
        np.testing.assert_array_equal(decoded.mask.voxels, in_ras(mask))


def test_a_structure_set_names_the_images_of_its_contours(tmp_path: Path) -> None:
    image, _ = volume()
    series = write_slices(tmp_path / "P0" / "t2", image)
    write_slices(tmp_path / "P0" / "other", image, seed="other")
    path = draw_structures(tmp_path / "P0" / "m" / "rs.dcm", series, [(1, "Prostate", GLAND)])
    content = pydicom.dcmread(path)
    del content.ReferencedFrameOfReferenceSequence[0].RTReferencedStudySequence
    of_slice = pydicom.Dataset()
    of_slice.ReferencedSOPInstanceUID = pydicom.dcmread(next(series.iterdir())).SOPInstanceUID
    content.ROIContourSequence[0].ContourSequence[0].ContourImageSequence = [of_slice]
    content.save_as(path)
    (case,) = gather(tmp_path)[0].cases
    assert case.image == series
