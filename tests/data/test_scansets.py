"""The layouts that scans come in: which files become which sequence of which case."""

from __future__ import annotations

import json
import re
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import SimpleITK as sitk
from errors import raises
from scanfiles import other_sequence, volume, write_described, write_dicom, write_pair, zones

from data_prep.msd import plan_volumes
from data_prep.own_scans import prepare_own
from data_prep.volumes import write_volumes
from fedshift.data.cases import CaseTable, parse_sequences
from fedshift.data.check import check
from fedshift.data.layouts.find import find_sets, gather
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.manifest import read_manifest


def save(path: Path, image: sitk.Image) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    sitk.WriteImage(image, str(path))
    return path


def describe(folder: Path, **changed: object) -> Path:
    """Change what ``dataset.json`` says."""
    content = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
    (folder / "dataset.json").write_text(json.dumps(content | changed), encoding="utf-8")
    return folder


def files(found: CaseTable) -> dict[str, list[str]]:
    """Case -> its files below the set's folder, the mask last."""
    return {
        case.id: [str(file.relative_to(found.folder)) for file in (*case.images, case.mask)] for case in found.cases
    }


def test_decathlon(tmp_path: Path) -> None:
    folder = write_described(tmp_path / "Task99_Ball", sequences=("T2", "ADC"), classes=("PZ", "TZ"))
    (sets,) = find_sets(tmp_path)
    assert (sets.name, sets.sequences, sets.licence) == ("Ball", ("T2", "ADC"), "CC-BY-SA 4.0")
    assert sets.labels is not None and sets.labels.values == {"PZ": [1], "TZ": [2]}
    assert [case.channels for case in sets.cases] == [(0, 1)] * 3
    assert files(sets)["case_1"] == ["imagesTr/case_1.nii.gz", "imagesTr/case_1.nii.gz", "labelsTr/case_1.nii.gz"]
    (folder / "dataset.json").unlink()
    (bare,) = find_sets(tmp_path)
    assert bare.sequences == ("0000", "0001") and bare.labels is None, "counted in the files"
    assert bare.with_sequences(["T2", "ADC"]).cases[0].sequences == ("T2", "ADC")


def test_scans_in_formats_that_are_not_read_are_a_warning_of_their_folder(tmp_path: Path) -> None:
    image, mask = write_pair(tmp_path / "beside", "Case00")
    for folder in ("images", "masks", "cases/P1"):
        (tmp_path / folder).mkdir(parents=True)
    for file, folder, name in (
        (image, "images", "P1"),
        (mask, "masks", "P1"),
        (image, "cases/P1", "T2"),
        (mask, "cases/P1", "mask"),
    ):
        shutil.copyfile(file, tmp_path / folder / f"{name}.nii.gz")
    for folder in ("beside", "images", "masks", "cases/P1"):
        for number in range(8):
            (tmp_path / folder / f"k{number}.hdr").write_bytes(b"")
    message = "has scans that are not read: k0.hdr, k1.hdr, k2.hdr, k3.hdr, k4.hdr, k5.hdr and 2 more"
    for tables, folders in (
        (gather(tmp_path / "beside"), ["beside"]),
        (gather(None, images=tmp_path / "images", masks=tmp_path / "masks"), ["images", "masks"]),
        (gather(tmp_path / "cases"), ["cases/P1"]),
    ):
        (one,) = tables
        assert len(one.cases) == 1
        assert [(of.level, of.file, of.message) for of in one.findings] == [
            ("warning", tmp_path / folder, message) for folder in folders
        ]


@pytest.mark.reads("list: imagesTr and labelsTr without a list")
def test_nnunet(tmp_path: Path) -> None:
    folder = write_described(tmp_path / "Dataset099", sequences=("T2", "ADC"), classes=("PZ", "TZ"), style="nnunet")
    (sets,) = find_sets(folder)
    assert sets.sequences == ("T2", "ADC") and sets.labels is not None
    assert sets.labels.classes == ("background", "PZ", "TZ")
    wanted = ["imagesTr/case_2_0000.nii.gz", "imagesTr/case_2_0001.nii.gz", "labelsTr/case_2.nii.gz"]
    assert files(sets)["case_2"] == wanted
    adc = sets.with_sequences(["adc"])
    assert adc.sequences == ("ADC",) and adc.cases[2].images == (folder / "imagesTr" / "case_2_0001.nii.gz",)


def test_nnunet_with_one_sequence(tmp_path: Path) -> None:
    folder = write_described(tmp_path / "set", style="nnunet")
    (sets,) = find_sets(folder)
    assert sets.sequences == ("MRI",) and files(sets)["case_0"][0] == "imagesTr/case_0_0000.nii.gz"
    assert check(folder) == []


def test_nnunet_that_lacks_a_whole_sequence(tmp_path: Path) -> None:
    folder = write_described(tmp_path / "set", sequences=("T2", "ADC"), style="nnunet")
    for file in (folder / "imagesTr").glob("*_0001.nii.gz"):
        file.unlink()
    findings = check(folder)
    assert len(findings) == 3 and all(
        finding.code == "sequence-missing" and "ADC" in finding.message for finding in findings
    )


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"background": 0, "a": 1, "ignore": 1}, "is to be ignored"),
        ({"background": 0, "=cmd": 1}, "cannot be the name of a class"),
        ([1, 2], "cannot be parsed"),
    ],
)
def test_descriptions_that_are_not_read(tmp_path: Path, labels: object, words: str) -> None:
    folder = describe(write_described(tmp_path / "set", style="nnunet"), labels=labels)
    with pytest.raises(DataError, match=rf"dataset\.json .*{words}"):
        plan_volumes(folder)
    (finding,) = check(folder)
    assert finding.level == "error" and re.search(words, finding.sentence())


@pytest.mark.parametrize("labels", [{"PZ": 1, "TZ": 1}, {"PZ": 1, "ignore": 1}, {"=cmd": 1}])
def test_labels_of_the_command_take_the_place_of_those_that_are_not_read(tmp_path: Path, labels: object) -> None:
    folder = describe(write_described(tmp_path / "set", classes=("PZ", "TZ"), style="nnunet"), labels=labels)
    assert plan_volumes(folder, label=["gland=1,2"]).labels.values == {"gland": [1, 2]}
    assert check(folder, labels={"gland": [1, 2]}) == []
    site = prepare_own(None, None, "A", tmp_path / "out", dataset="d", source=folder, labels={"gland": [1, 2]})
    assert site == prepare_own(None, None, "A", tmp_path / "out", dataset="d", source=folder), "the site knows them"
    assert read_manifest(site).classes == ("background", "gland")
    with pytest.raises(DataError, match=r"dataset\.json has .*--label"):
        prepare_own(None, None, "B", tmp_path / "out", dataset="d", source=folder)


def test_nnunet_1_lists_a_case_without_the_number_of_its_sequence(tmp_path: Path) -> None:
    folder = write_described(tmp_path / "set", sequences=("T2", "ADC"), style="nnunet")
    describe(folder, training=[{"image": f"./imagesTr/case_{k}.nii.gz", "label": ""} for k in range(3)])
    assert check(folder) == []
    (folder / "imagesTr" / "case_1_0001.nii.gz").unlink()
    (finding,) = check(folder)
    assert finding.code == "sequence-missing" and "ADC" in finding.message
    describe(folder, training=[{"image": "./imagesTr/case_7.nii.gz"}])
    assert "file-missing" in {finding.code for finding in check(folder)}


@pytest.mark.parametrize("names", [["MRI"], ["T2", "ADC"]])
@pytest.mark.reads("list: more volumes than names")
def test_more_volumes_than_names(tmp_path: Path, names: list[str]) -> None:
    folder = write_described(tmp_path / "set", sequences=names)
    described = rf"names {len(names)} sequence\(s\) \({', '.join(names)}\)"
    for k in (1, 0, 2):
        path = folder / "imagesTr" / f"case_{k}.nii.gz"
        image = volume(k)[0]
        save(path, sitk.JoinSeries([image, other_sequence(image), image]))
        if k == 1:
            (finding,) = check(folder)
            assert finding.file == path and re.match(rf"has 3 volumes, and dataset\.json {described}", finding.message)
            assert len(read_manifest(write_volumes(plan_volumes(folder), tmp_path, skip_damaged=True)[0]).cases) == 2
    (finding,) = check(folder)
    assert finding.file == folder / "dataset.json"
    with pytest.raises(DataError, match=rf"dataset\.json {described}, .* case_0\.nii\.gz"):
        write_volumes(plan_volumes(folder), tmp_path, skip_damaged=True)


def test_more_volumes_than_the_command_names(tmp_path: Path) -> None:
    """Only of the file that has more; the volumes of the others are read in the order of the names."""
    for k in range(3):
        image, mask = volume(k)
        several = [image, other_sequence(image), sitk.Cast(image // 2, sitk.sitkInt16)]
        for folder in ("images", "masks"):
            (tmp_path / folder).mkdir(exist_ok=True)
        save(tmp_path / "images" / f"P{k}.nii.gz", sitk.JoinSeries(several[: 3 if k == 1 else 2]))
        save(tmp_path / "masks" / f"P{k}.nii.gz", mask)
    findings = check(tmp_path / "images", masks=tmp_path / "masks", sequences={"T2": "", "ADC": ""})
    assert [(each.level, each.file.name) for each in findings] == [("error", "P1.nii.gz")], findings
    assert findings[0].code == "volumes-extra" and "(T2, ADC)" in findings[0].message
    images, masks, out = tmp_path / "images", tmp_path / "masks", tmp_path / "out"
    words = {"dataset": "x", "labels": {"ball": (1,)}, "sequences": {"T2": "", "ADC": ""}}
    with raises("cases-unmatched", naming="--sequence"):
        prepare_own(images, masks, "A", out, **words)  # type: ignore[arg-type]


@pytest.mark.parametrize("style", ["nnunet", "msd"])
@pytest.mark.reads("list: several sequences of one name")
def test_several_sequences_of_one_name_have_to_be_named(tmp_path: Path, style: str) -> None:
    folder = write_described(tmp_path / "set", sequences=("noNorm", "nonorm"), style=style)
    (finding,) = check(folder)
    assert finding.code == "sequence-twice" and "--sequence NAME1,NAME2" in finding.remedy
    with raises("sequence-twice", naming="dataset.json"):
        plan_volumes(folder)
    assert plan_volumes(folder, sequence=["T2,ADC"]).sequences == ("T2", "ADC")
    assert check(folder, sequences={"T2": "", "ADC": ""}) == []


def test_one_volume_of_files_whose_volumes_nothing_names(tmp_path: Path) -> None:
    folder = describe(write_described(tmp_path / "set", sequences=("T2", "ADC")), modality={})
    (tables,) = gather(folder, volume=2)
    assert tables.sequences == () and {case.channels for case in tables.cases} == {(1,)}
    assert check(folder, volume=2) == []
    with pytest.raises(ConfigError, match="--volume 3"):
        gather(folder, volume=3)


@pytest.mark.reads("list: a folder for each case")
def test_a_folder_for_each_case(tmp_path: Path) -> None:
    for k, case in enumerate(("P1", "P2", "P3")):
        image, mask = volume(k)
        save(tmp_path / case / ("T2.nii.gz" if k else f"{case}_T2.nii.gz"), image)
        if k < 2:
            save(tmp_path / case / ("adc.nii.gz" if k else f"{case}_ADC.nii.gz"), other_sequence(image))
        else:
            write_dicom(tmp_path / case / "ADC", other_sequence(image))
        save(tmp_path / case / ("mask.nii.gz" if k else f"{case}_seg.nii.gz"), zones(mask))
    (tables,) = find_sets(tmp_path)
    assert tables.layout == "case folders" and tables.sequences == ("ADC", "T2")
    assert files(tables)["P1"] == ["P1/P1_ADC.nii.gz", "P1/P1_T2.nii.gz", "P1/P1_seg.nii.gz"]
    assert files(tables)["P3"] == ["P3/ADC", "P3/T2.nii.gz", "P3/mask.nii.gz"]
    assert check(tmp_path, labels={"a": [1], "b": [2]}) == []
    (tables,) = gather(tmp_path, sequences={"T2": "", "ADC": ""})
    assert tables.sequences == ("T2", "ADC") and files(tables)["P3"][:2] == ["P3/T2.nii.gz", "P3/ADC"]
    (tmp_path / "P2" / "adc.nii.gz").unlink()
    (finding,) = check(tmp_path, labels={"a": [1], "b": [2]})
    assert finding.level == "error" and finding.code == "sequence-missing" and "P2" in finding.message
    assert check(tmp_path, labels={"a": [1], "b": [2]}, sequences={"T2": ""}) == []


@pytest.mark.parametrize("name", ["mask_reader2", "P{}_seg", "Label 2", "prostate mask", "P{}_mask_reader2"])
@pytest.mark.parametrize("cases", [1, 2])
@pytest.mark.reads("list: two masks in the folder of a case")
def test_a_second_mask_in_a_case_folder_is_no_sequence(tmp_path: Path, name: str, cases: int) -> None:
    """… whether all cases have one or some."""
    for k in range(2):
        image, mask = volume(k)
        save(tmp_path / f"P{k}" / "T2.nii.gz", image)
        save(tmp_path / f"P{k}" / "mask.nii.gz", mask)
        if k < cases:
            save(tmp_path / f"P{k}" / f"{name.format(k)}.nii.gz", mask)
    (sets,) = find_sets(tmp_path)
    assert sets.layout == "case folders" and [case.id for case in sets.cases] == ["P1"][cases - 1 :]
    assert [finding.file.name for finding in sets.findings] == ["P0", "P1"][:cases]
    assert all(finding.code == "masks-several" for finding in sets.findings)


def test_case_folders_may_be_called_like_masks(tmp_path: Path) -> None:
    for k in range(2):
        image, mask = volume(k)
        save(tmp_path / f"seg_{k}" / f"seg_{k}_T2.nii.gz", image)
        save(tmp_path / f"seg_{k}" / f"seg_{k}_mask.nii.gz", mask)
    (sets,) = find_sets(tmp_path)
    assert [case.sequences for case in sets.cases] == [("T2",)] * 2 and not sets.findings


def test_a_folder_for_each_site_is_no_folder_for_each_case(tmp_path: Path) -> None:
    write_pair(tmp_path / "HK", "Case00")
    write_pair(tmp_path / "UCL", "Case00", seed=1)
    assert [(table.layout, table.name) for table in find_sets(tmp_path)] == [("beside", "HK"), ("beside", "UCL")]


def bids(root: Path, *, session: bool = False) -> Path:
    for k in (1, 2, 3):
        image, mask = volume(k)
        inner, name = (Path("ses-a"), f"sub-{k:02d}_ses-a") if session else (Path(), f"sub-{k:02d}")
        save(root / f"sub-{k:02d}" / inner / "anat" / f"{name}_T2w.nii.gz", image)
        save(root / f"sub-{k:02d}" / inner / "dwi" / f"{name}_adc.nii.gz", other_sequence(image))
        save(root / "derivatives" / "radiologist" / f"sub-{k:02d}" / inner / "anat" / f"{name}_mask.nii.gz", mask)
    return root


@pytest.mark.reads("list: patterns")
def test_bids_by_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bids(tmp_path))
    masks = Path("derivatives/**/sub-*_mask.nii.gz")
    (tables,) = gather(None, images=Path("sub-*/anat/*_T2w.nii.gz"), masks=masks)
    assert tables.sequences == () and [case.id for case in tables.cases] == ["sub-01", "sub-02", "sub-03"]
    assert not tables.findings
    sequences = parse_sequences(["T2=sub-*/anat/*_T2w.nii.gz", "ADC=sub-*/dwi/*_adc.nii.gz"])
    (tables,) = gather(tmp_path, masks=masks, sequences=sequences)
    assert tables.sequences == ("T2", "ADC")
    wanted = ["sub-02/anat/sub-02_T2w.nii.gz", "sub-02/dwi/sub-02_adc.nii.gz"]
    assert files(tables)["sub-02"][:2] == wanted
    assert check(Path("sub-*/anat/*_T2w.nii.gz"), masks=masks) == []
    assert check(tmp_path, masks=masks, sequences=sequences) == []
    save(Path("sub-02/anat/sub-02_run-2_T2w.nii.gz"), volume(9)[0])
    (finding,) = check(Path("sub-*/anat/*_T2w.nii.gz"), masks=masks)
    assert finding.level == "error" and finding.code == "case-twice" and "sub-02" in finding.message


def test_bids_with_sessions_and_absolute_patterns(tmp_path: Path) -> None:
    bids(tmp_path, session=True)
    (tables,) = gather(
        None, images=tmp_path / "sub-*/*/anat/*_T2w.nii.gz", masks=tmp_path / "derivatives/**/*_mask.nii.gz"
    )
    assert [case.id for case in tables.cases] == ["sub-01_ses-a", "sub-02_ses-a", "sub-03_ses-a"]


SUBJECTS = {
    "letters of other languages": (("Jörg", "Jürgen", "山田"), "{}_mask"),
    "numbers of a centre": (("NORTH_01", "NORTH_02", "SOUTH_01"), "{}_mask"),
    "numbers alone": (("NORTH_01", "NORTH_02"), "{}"),
    "letters in folders": (("NORTH_A", "NORTH_B"), "{}/mask"),
    "sequences with numbers": (("01", "02"), "{}_0000"),
    "an acquisition": (("01", "02"), "{}_desc-prostate_mask"),
}


@pytest.mark.parametrize("kind", SUBJECTS)
def test_subjects_are_told_apart_by_their_whole_name(tmp_path: Path, kind: str) -> None:
    names, drawn = SUBJECTS[kind]
    for k, name in enumerate(names):
        image, mask = volume(k)
        save(tmp_path / f"sub-{name}" / "anat" / f"sub-{name}_T2w.nii.gz", image)
        save(tmp_path / "drawn" / f"{drawn.format(f'sub-{name}')}.nii.gz", mask)
    (tables,) = gather(tmp_path, images=Path("sub-*/anat/*_T2w.nii.gz"), masks=Path("drawn/**/*.nii.gz"))
    assert sorted(case.id for case in tables.cases) == sorted(f"sub-{name}" for name in names) and not tables.findings


@pytest.mark.parametrize("images", ["sub-*_T2w/scan.nii.gz", "*_T2w/*.nii.gz"])
def test_what_a_pattern_says_itself_is_no_part_of_a_subject(tmp_path: Path, images: str) -> None:
    for k in range(2):
        image, mask = volume(k)
        save(tmp_path / f"sub-C_{k}_T2w" / "scan.nii.gz", image)
        save(tmp_path / "drawn" / f"sub-C_{k}_mask.nii.gz", mask)
    (tables,) = gather(tmp_path, images=Path(images), masks=Path("drawn/sub-*_mask.nii.gz"))
    assert [case.id for case in tables.cases] == ["sub-C_0", "sub-C_1"] and not tables.findings


def test_scans_of_one_subject_and_masks_of_another_are_no_case(tmp_path: Path) -> None:
    save(tmp_path / "sub-Jörg" / "anat" / "sub-Jörg_T2w.nii.gz", volume(0)[0])
    save(tmp_path / "drawn" / "sub-Jürgen_mask.nii.gz", volume(0)[1])
    (tables,) = gather(tmp_path, images=Path("sub-*/anat/*_T2w.nii.gz"), masks=Path("drawn/*.nii.gz"))
    assert not tables.cases and [finding.code for finding in tables.findings] == ["mask-missing", "image-missing"]
    assert "sub-Jürgen" in tables.findings[1].message


@pytest.mark.parametrize("inside", [True, False])
def test_a_patient_s_number_is_no_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool) -> None:
    """… so that a case's id is the same from wherever the command is run."""
    for k in range(2):
        image, mask = volume(k)
        save(tmp_path / f"100{k}" / "T2.nii.gz", image)
        save(tmp_path / f"100{k}" / "prostate.nii.gz", mask)
    if inside:
        monkeypatch.chdir(tmp_path)
    start = Path() if inside else tmp_path
    (tables,) = gather(None, images=start / "*" / "T2.nii.gz", masks=start / "*" / "prostate.nii.gz")
    assert [case.id for case in tables.cases] == ["1000", "1001"]


def test_other_patterns_name_the_case_by_their_star(tmp_path: Path) -> None:
    for k in range(2):
        image, mask = volume(k)
        save(tmp_path / "scans" / f"P{k}" / "t2.nii.gz", image)
        save(tmp_path / "drawn" / f"P{k}.nii.gz", mask)
    (tables,) = gather(tmp_path, images=Path("scans/*/t2.nii.gz"), masks=Path("drawn/*.nii.gz"))
    assert [case.id for case in tables.cases] == ["P0", "P1"]


def test_a_pattern_names_the_scans_whose_format_is_not_read(tmp_path: Path) -> None:
    image, mask = volume(0)
    save(tmp_path / "scans" / "P0" / "t2.nii.gz", image)
    save(tmp_path / "drawn" / "P0.nii.gz", mask)
    (tmp_path / "scans" / "P1").mkdir()
    (tmp_path / "scans" / "P1" / "t2.mgz").write_bytes(b"")
    (tables,) = gather(tmp_path, images=Path("scans/*/t2.*"), masks=Path("drawn/*.nii.gz"))
    assert [case.id for case in tables.cases] == ["P0"]
    (finding,) = tables.findings
    assert (finding.level, finding.code) == ("warning", "format-not-read")
    assert finding.file == tmp_path / "scans" / "P1" and "t2.mgz" in finding.message
    with raises("pattern-empty", naming="t2.mgz"):
        gather(tmp_path, images=Path("scans/*/t2.mgz"), masks=Path("drawn/*.nii.gz"))


PLACES = {
    "beside the working folder": "",
    "below a hidden folder": ".cache",
    "below a name like a subject": "sub-study",
}


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_folders_before_the_first_wildcard_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, absolute: bool
) -> None:
    for k in range(2):
        image, mask = volume(k)
        save(tmp_path / place / "i" / f"P{k}.nii.gz", image)
        save(tmp_path / place / "m" / f"P{k}_seg.nii.gz", mask)
    save(tmp_path / place / "i" / "._P0.nii.gz", volume(0)[0])
    save(tmp_path / place / "i" / ".old" / "P0.nii.gz", volume(0)[0])
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    start = (tmp_path if absolute else Path("..")) / place
    (tables,) = gather(None, images=start / "i" / "**" / "*.nii.gz", masks=start / "m" / "*_seg.nii.gz")
    assert [case.id for case in tables.cases] == ["P0", "P1"] and not tables.findings


def test_a_subject_whose_folder_has_no_wildcard_is_named_by_its_files(tmp_path: Path) -> None:
    bids(tmp_path, session=True)
    masks = Path("derivatives/radiologist/sub-02/ses-a/anat/*")
    for images in ("sub-02/ses-a/anat/*", "sub-02/ses-a/anat/*.nii.gz", "sub-02/*/anat/*_T2w.nii.gz"):
        (tables,) = gather(tmp_path, images=Path(images), masks=masks)
        assert [case.id for case in tables.cases] == ["sub-02_ses-a"]
    (tables,) = gather(tmp_path, images=Path("sub-02/ses-a/anat/*"), masks=masks.with_name("sub-02_ses-a_mask.nii.gz"))
    assert [case.id for case in tables.cases] == ["sub-02_ses-a"], "a file's own name, without a wildcard"


@pytest.mark.parametrize("masks", [".", "/", "masks"])
def test_a_pattern_beside_a_folder_is_refused(tmp_path: Path, masks: str) -> None:
    write_pair(tmp_path, "P1")
    (tmp_path / "masks").mkdir()
    with raises("pattern-form", naming=f"'{masks}'"):
        gather(tmp_path, images=Path("*.nii.gz"), masks=Path(masks))


def unnamed(folder: Path) -> None:
    (folder / "dataset.json").unlink()


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (None, {"sequences": {"T1": ""}}, ("sequence-unknown", "'T1'")),
        (unnamed, {"sequences": {"T2": ""}}, ("sequence-count", "set")),
        (None, {"images": Path(), "masks": Path(), "sequences": {"T2": "*.nii.gz"}}, ("options-clash", "--images")),
        (None, {"images": Path("imagesTr/*.mha"), "masks": Path("labelsTr/*.nii.gz")}, ("pattern-empty", "imagesTr")),
        (None, {"images": Path("imagesTr/case_?.nii.gz"), "masks": Path("labelsTr/*.nii.gz")}, ("pattern-form", "")),
    ],
    ids=["not there", "no names", "two ways", "no scan", "no star"],
)
def test_what_is_asked_for_does_not_fit_the_files(
    change: Callable[[Path], None] | None, options: dict[str, Any], words: tuple[str, str], tmp_path: Path
) -> None:
    folder = write_described(tmp_path / "set", sequences=("T2", "ADC"))
    if change:
        change(folder)
    with raises(words[0], naming=words[1]):
        gather(folder, **options)


def test_a_sequence_named_twice() -> None:
    with pytest.raises(ConfigError, match="names T2 twice"):
        parse_sequences(["T2,ADC", "T2"])


@pytest.mark.parametrize("images", ["images", "Scans"])
@pytest.mark.parametrize("masks", ["masks", "Labels"])
def test_images_and_masks_in_folders_of_usual_names(tmp_path: Path, images: str, masks: str) -> None:
    in_two_folders(tmp_path, images, masks)
    (sets,) = find_sets(tmp_path)
    assert [case.id for case in sets.cases] == ["P0", "P1"]
    assert check(tmp_path, labels={"ball": [1]}) == []


@pytest.mark.parametrize("several", [False, True])
def test_masks_in_folders_are_named(tmp_path: Path, several: bool) -> None:
    for k in range(2):
        image, mask = volume(k)
        save(tmp_path / "images" / (f"P{k}_0000.nii.gz" if several else f"P{k}.nii.gz"), image)
        if several:
            save(tmp_path / "images" / f"P{k}_0001.nii.gz", other_sequence(image))
        save(tmp_path / "masks" / (f"P{k}/mask.nii.gz" if k else "P0.nii.gz"), mask)
    (tmp_path / "masks" / "old").mkdir()
    (sets,) = find_sets(tmp_path)
    assert [case.id for case in sets.cases] == ["P0"]
    (finding,) = sets.findings
    assert (finding.code, finding.file) == ("mask-is-folder", tmp_path / "masks" / "P1")


def test_a_folder_with_a_scan_in_place_of_slices_is_named(tmp_path: Path) -> None:
    for k in range(2):
        image, mask = volume(k)
        save(tmp_path / "images" / f"P{k}" / f"P{k}.nii.gz", image)
        save(tmp_path / "masks" / f"P{k}.nii.gz", mask)
    first, _ = check(tmp_path)
    assert (first.file.name, first.code) == ("P0", "series-missing") and "P0.nii.gz" in first.message
    pattern = str(tmp_path / "images" / "*" / "*.nii.gz")
    assert f"'{pattern}'" in first.remedy
    assert check(Path(pattern), masks=tmp_path / "masks" / "*.nii.gz") == []


def test_loose_slices_in_a_case_folder_are_named(tmp_path: Path) -> None:
    image, mask = volume()
    write_dicom(tmp_path / "P0", image)
    save(tmp_path / "P0" / "mask.nii.gz", mask)
    (finding,) = check(tmp_path)
    wanted = "holds loose DICOM slices: put them into a folder with the sequence's name, such as T2"
    assert finding.sentence() == f"{tmp_path / 'P0'} {wanted}"
    (tmp_path / "P0" / "T2").mkdir()
    for file in (tmp_path / "P0").glob("*.dcm"):
        file.rename(tmp_path / "P0" / "T2" / file.name)
    assert check(tmp_path) == []


@pytest.mark.parametrize("mask", ["P{}.seg", "P{}-label", "mask_P{}", "Seg-P{}", "P{}_Segmentation"])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("folders", [("images", "masks"), ("all", "all")], ids=["two folders", "beside"])
def test_names_of_masks(tmp_path: Path, mask: str, several: bool, folders: tuple[str, str]) -> None:
    """… such as those of 3D Slicer."""
    for k in range(2):
        image, drawn = volume(k)
        save(tmp_path / folders[0] / (f"P{k}_0000.nrrd" if several else f"P{k}.nrrd"), image)
        if several:
            save(tmp_path / folders[0] / f"P{k}_0001.nrrd", other_sequence(image))
        save(tmp_path / folders[1] / f"{mask.format(k)}.nrrd", drawn)
    (sets,) = find_sets(tmp_path)
    assert [case.id for case in sets.cases] == ["P0", "P1"] and not sets.findings


def test_scans_that_are_called_like_masks(tmp_path: Path) -> None:
    for k in range(2):
        write_pair(tmp_path, f"label_{k}", k)
    (sets,) = find_sets(tmp_path)
    assert [case.id for case in sets.cases] == ["label_0", "label_1"] and not sets.findings


def in_two_folders(folder: Path, images: str, masks: str) -> None:
    for k in range(2):
        image, mask = volume(k)
        save(folder / images / f"P{k}.nii.gz", image)
        save(folder / masks / f"P{k}.nii.gz", mask)


def test_two_folders_that_do_not_say_which_has_the_masks(tmp_path: Path) -> None:
    in_two_folders(tmp_path, "mri", "drawn")
    (finding,) = check(tmp_path)
    assert finding.code == "masks-unclear" and "drawn and mri" in finding.message
    assert f"--images {tmp_path / 'drawn'} --masks {tmp_path / 'mri'}" in finding.remedy
    with raises("masks-unclear", naming="drawn"):
        prepare_own(None, None, "A", tmp_path / "out", dataset="d", source=tmp_path, labels={"ball": [1]})


def test_the_folder_of_one_case_is_no_folder_of_cases(tmp_path: Path) -> None:
    image, mask = volume()
    for name, content in (("T2", image), ("ADC", other_sequence(image)), ("mask", mask)):
        save(tmp_path / "P1" / f"{name}.nii.gz", content)
    (finding,) = check(tmp_path / "P1")
    assert finding.code == "one-case"
    assert check(tmp_path, labels={"ball": [1]}) == []


def test_a_pattern_that_finds_nothing_says_what_is_there(tmp_path: Path) -> None:
    bids(tmp_path, session=True)
    masks = Path("derivatives/**/*_mask.nii.gz")
    for images, there in (
        ("sub-*/anat/*_T2w.nii.gz", f"in {tmp_path / 'sub-01'}: found ses-a/"),
        ("sub-*/*/anat/*_T1w.nii.gz", f"in {tmp_path / 'sub-01' / 'ses-a' / 'anat'}: found sub-01_ses-a_T2w.nii.gz"),
        ("subject-*/*.nii.gz", "found derivatives/, sub-01/, sub-02/, sub-03/"),
        ("raw/*.nii.gz", "which does not exist"),
    ):
        with pytest.raises(DataError, match=rf"finds no scan .*\({re.escape(there)}\): correct the pattern"):
            gather(tmp_path, images=Path(images), masks=masks)


NAMES = {form: unicodedata.normalize(form, "Mü") for form in ("NFC", "NFD")}
"""As most systems write a name, and as macOS does: of another length, and the same to read."""


@pytest.mark.parametrize(("image", "mask"), [("NFC", "NFD"), ("NFD", "NFC"), ("NFD", "NFD")])
def test_names_match_in_whichever_form_their_letters_are(tmp_path: Path, image: str, mask: str) -> None:
    one, other = NAMES[image], NAMES[mask]
    scan, drawn = volume(1)
    save(tmp_path / "two" / "images" / f"{one}.nii.gz", scan)
    save(tmp_path / "two" / "masks" / f"{other.upper()}_seg.nii.gz", drawn)
    save(tmp_path / "numbered" / "imagesTr" / f"{one}_0000.nii.gz", scan)
    save(tmp_path / "numbered" / "imagesTr" / f"{one}_0001.nii.gz", other_sequence(scan))
    save(tmp_path / "numbered" / "labelsTr" / f"{other}.nii.gz", drawn)
    save(tmp_path / "cases" / one / f"{other}_T2.nii.gz", scan)
    save(tmp_path / "cases" / one / f"{other}_seg.nii.gz", drawn)
    save(tmp_path / "patterns" / one / "t2.nii.gz", scan)
    save(tmp_path / "patterns" / "drawn" / f"{other}.nii.gz", drawn)
    by_pattern = gather(tmp_path / "patterns", images=Path("*/t2.nii.gz"), masks=Path("drawn/*.nii.gz"))
    for (found,) in (*(find_sets(tmp_path / layout) for layout in ("two", "numbered", "cases")), by_pattern):
        assert [case.id for case in found.cases] == [NAMES["NFC"]] and not found.findings
    (found,) = find_sets(tmp_path / "cases")
    assert found.sequences == ("T2",)
    options: dict[str, Any] = {"dataset": "d", "labels": {"ball": [1]}}
    save(tmp_path / "two" / "images" / "P2.nii.gz", volume(2)[0])
    save(tmp_path / "two" / "masks" / "P2.nii.gz", volume(2)[1])
    site = prepare_own(tmp_path / "two" / "images", tmp_path / "two" / "masks", "A", tmp_path / "out", **options)
    prepare_own(None, None, "A", tmp_path / "out", dataset="d", withdraw=[NAMES["NFD"]])
    assert [case.id for case in read_manifest(site).cases] == ["P2"]
