"""``cases.csv``: what every layout writes, what people bring themselves, and which rows are refused."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest
import SimpleITK as sitk
from errors import raises
from scanfiles import other_sequence, volume, write_described, write_dicom, write_pair

from data_prep.own_scans import prepare_own
from fedshift.cli import main
from fedshift.data.cases import CaseTable
from fedshift.data.cases_csv import read_cases, write_cases
from fedshift.data.check import check
from fedshift.data.layouts.find import gather
from fedshift.schema.manifest import read_manifest

LABELS = {"ball": (1,)}


def beside(folder: Path) -> Path:
    for k in range(3):
        write_pair(folder, f"P{k}", seed=k)
    return folder


def two_sites(folder: Path) -> Path:
    write_pair(folder / "HK", "P0")
    write_pair(folder / "UCL", "P0", seed=1)
    return folder


def case_folders(folder: Path) -> Path:
    for k in range(3):
        image, mask = volume(k)
        write_dicom(folder / f"P{k}" / "T2", image)
        sitk.WriteImage(other_sequence(image), str(folder / f"P{k}" / "ADC.nii.gz"))
        sitk.WriteImage(mask, str(folder / f"P{k}" / "mask.nii.gz"))
    return folder


def described(folder: Path) -> Path:
    return write_described(folder, sequences=("T2", "ADC"))


def nnunet(folder: Path) -> Path:
    return write_described(folder, sequences=("T2", "ADC"), style="nnunet")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def table(path: Path, *rows: Sequence[str], header: str = "case,image,mask") -> Path:
    path.write_text("\n".join([header, *(",".join(row) for row in rows), ""]), encoding="utf-8")
    return path


def files(tables: Sequence[CaseTable]) -> list[tuple[object, ...]]:
    """What is read of each case."""
    return [
        (table.sequences, case.id, case.images, case.mask, tuple(case.channels) or (case.volume and case.volume - 1,))
        for table in tables
        for case in table.cases
    ]


@pytest.mark.parametrize("make", [beside, two_sites, case_folders, described, nnunet])
def test_a_layout_is_the_same_as_the_table_that_it_writes(make: object, tmp_path: Path) -> None:
    folder = make(tmp_path / "set")  # type: ignore[operator]
    tables = gather(folder)
    for place in (folder / "cases.csv", tmp_path / "other" / "cases.csv"):  # paths from there, and absolute ones
        place.parent.mkdir(exist_ok=True)
        write_cases(tables, place)
        back = read_cases(place)
        assert [(*case[:-1], [c for c in case[-1] if c is not None]) for case in files(back)] == [
            (*case[:-1], [c for c in case[-1] if c is not None]) for case in files(tables)
        ]
        assert not [finding for one in back for finding in one.findings]
    assert rows_of(folder / "cases.csv")[0]["mask"] == str(tables[0].cases[0].mask.relative_to(folder))
    assert [one.site for one in back] == (["HK", "UCL"] if make is two_sites else [""])


def test_a_site_is_prepared_from_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """… with the splits and the subjects that it says, as the same site without them."""
    folder, path = described(tmp_path / "set"), tmp_path / "cases.csv"
    command = ["data", "prepare", "own", "--site", "A", "--dataset", "d", "--out", str(tmp_path / "out")]
    assert main([*command, "--source", str(folder), "--write-cases", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "3 case(s)" in printed and "--label ball=1" in printed and not (tmp_path / "out").exists()
    assert main([*command, "--cases", str(path), "--label", "ball=1"]) == 0
    plain = read_manifest(tmp_path / "out" / "d" / "A")
    assert plain.sequences == ("T2", "ADC") and not any(case.subject for case in plain.cases)
    splits = {"case_0": "test", "case_1": "train", "case_2": "val"}
    lines = [dict(row, split=splits[row["case"]], subject=row["case"].upper()) for row in rows_of(path)]
    table(path, *(tuple(line.values()) for line in lines), header=",".join(lines[0]))
    command[-1] = str(tmp_path / "split")
    assert main([*command, "--cases", str(path), "--label", "ball=1"]) == 0
    manifest = read_manifest(tmp_path / "split" / "d" / "A")
    assert {case.id: case.split for case in manifest.cases} == splits
    assert [case.subject for case in manifest.cases] == ["CASE_0", "CASE_1", "CASE_2"]
    assert [case.sha256_image for case in manifest.cases] == [case.sha256_image for case in plain.cases]
    assert check(path, labels=LABELS) == []
    assert main([*command, "--cases", str(path), "--source", str(folder)]) == 2
    assert main(command[:3] + command[5:] + ["--cases", str(path)]) == 2, "without a site's name"


def test_scans_of_one_subject_are_dealt_together(tmp_path: Path) -> None:
    folder = beside(tmp_path / "set")
    for k in range(3, 12):
        write_pair(folder, f"P{k}", seed=k)
    rows = [(f"P{k}", f"set/P{k}.nii.gz", f"set/P{k}_segmentation.nii.gz", f"S{k // 3}") for k in range(12)]
    path = table(tmp_path / "cases.csv", *rows, header="case,image,mask,subject")
    site = prepare_own(None, None, "A", tmp_path / "out", dataset="d", source=path, labels=LABELS)
    manifest = read_manifest(site)
    splits = {case.subject: {c.split for c in manifest.cases if c.subject == case.subject} for case in manifest.cases}
    assert sorted(splits) == ["S0", "S1", "S2", "S3"] and all(len(each) == 1 for each in splits.values())
    write_pair(folder, "late", seed=20)
    late = ("late", "set/late.nii.gz", "set/late_segmentation.nii.gz", "S2")
    table(path, late, header="case,image,mask,subject")
    prepare_own(None, None, "A", tmp_path / "out", dataset="d", source=path, labels=LABELS)
    assert {case.id: case.split for case in read_manifest(site).cases}["late"] in splits["S2"]
    for split in {"train", "val", "test"} - splits["S2"]:
        table(path, (*late, split), header="case,image,mask,subject,split")
        with raises("split-changed", naming=("late", split)):
            prepare_own(None, None, "A", tmp_path / "out", dataset="d", source=path, labels=LABELS)


def test_a_table_of_several_sites(tmp_path: Path) -> None:
    folder = two_sites(tmp_path / "set")
    path = tmp_path / "cases.csv"
    write_cases(gather(folder), path)
    options = {"dataset": "d", "source": path, "labels": LABELS}
    site = prepare_own(None, None, "UCL", tmp_path / "out", **options)  # type: ignore[arg-type]
    assert [case.id for case in read_manifest(site).cases] == ["P0"]
    with raises("site-unknown", naming="UCL"):
        prepare_own(None, None, "UCI", tmp_path / "out", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "code", "naming"),
    [
        (("P1", "P0.nii.gz", ""), "cell-missing", "column mask"),
        (("", "P0.nii.gz", "P0_segmentation.nii.gz"), "cell-missing", "column case"),
        (("P1", "P1.nii", "P0_segmentation.nii.gz"), "file-missing", "P1.nii is not there"),
        (("p0", "P0.nii.gz", "P0_segmentation.nii.gz"), "case-twice", "line 2"),
        (("P1", "P0.nii.gz", "P0_segmentation.nii.gz", "", "tset"), "table-cell", "'test'"),
        (("P1", "P0.nii.gz", "P0_segmentation.nii.gz", "two"), "table-cell", "column volume"),
        (("P1", "P0.nii.gz", "P0_segmentation.nii.gz", "", "val", "S"), "subject-divided", "line 2"),
        (("P1", "P0.nii.gz", "P0_segmentation.nii.gz", "", "", "", "more"), "table-cell", "last column"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_by_line_and_column(
    row: tuple[str, ...], code: str, naming: str, tmp_path: Path
) -> None:
    write_pair(tmp_path, "P0")
    good = ("P0", "P0.nii.gz", "P0_segmentation.nii.gz", "", "test", "S")
    path = table(tmp_path / "cases.csv", good, row, header="case,image,mask,volume,split,subject")
    (tables,) = read_cases(path)
    (finding,) = tables.findings
    assert (finding.level, finding.code, finding.file) == ("error", code, path)
    assert "line 3, column" in finding.message and naming in finding.message
    assert [case.id for case in tables.cases] == ["P0"]
    assert code in {finding.code for finding in check(path, labels=LABELS)}
    with raises("cases-unmatched", naming="line 3"):
        prepare_own(None, None, "A", tmp_path / "out", dataset="d", source=path, labels=LABELS)


@pytest.mark.parametrize(
    ("content", "code", "naming"),
    [
        ("case,image,maks\nP0,a,b\n", "column-unknown", "did you mean 'mask'?"),
        ("case,image,image,mask\nP0,a,b,c\n", "column-twice", "'image'"),
        ("case,mask\nP0,a\n", "column-missing", "image"),
        ("case,image T2,mask,volume ADC\nP0,a,b,1\n", "column-missing", "volume ADC"),
        ("case,image,mask\n", "table-empty", "cases.csv"),
        ("", "column-missing", "case"),
        (b"case,image,mask\nM\xfcller,a,b\n", "table-encoding", "UTF-8"),
    ],
)
def test_a_file_that_is_no_table_is_refused(content: str | bytes, code: str, naming: str, tmp_path: Path) -> None:
    path = tmp_path / "cases.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with raises(code, naming=naming):
        read_cases(path)
    assert [finding.code for finding in check(path)] == [code]
    path.unlink()
    with raises("file-missing", naming="cases.csv"):
        gather(path)


def test_tables_as_spreadsheets_save_them(tmp_path: Path) -> None:
    """With a byte order mark, semicolons, capitals, empty rows, and names that begin as a formula does."""
    folder = tmp_path / "=set"
    write_pair(folder, "P0")
    (tables,) = gather(folder)
    write_cases([tables], tmp_path / "cases.csv")
    assert "\n=" not in (tmp_path / "cases.csv").read_text(encoding="utf-8").replace(",=", "\n=")
    assert files(read_cases(tmp_path / "cases.csv")) == files([tables])
    text = "\ufeffCase;Image T2;Mask\r\nP0;=set/P0.nii.gz;=set/P0_segmentation.nii.gz\r\n;;\r\n"
    (tmp_path / "excel.csv").write_text(text, encoding="utf-8", newline="")
    (excel,) = read_cases(tmp_path / "excel.csv")
    assert excel.sequences == ("T2",) and excel.cases[0].mask == tables.cases[0].mask and not excel.findings


def table_with_strata(folder: Path, *values: str, column: str = "stratum vendor") -> Path:
    """A table of as many cases, each with a value."""
    lines = [f"case,image,mask,{column}"]
    for k, value in enumerate(values):
        write_pair(folder, f"P{k}", seed=k)
        lines.append(f"P{k},P{k}.nii.gz,P{k}_segmentation.nii.gz,{value}")
    (folder / "cases.csv").write_text("\n".join(lines), encoding="utf-8")
    return folder / "cases.csv"


def test_strata_stay_with_the_cases_through_later_preparations(tmp_path: Path) -> None:
    table = table_with_strata(tmp_path / "scans", "GE", "", "Siemens")
    prepare_own(None, None, "HK", tmp_path / "data", dataset="balls", source=table, labels=LABELS)
    manifest = read_manifest(tmp_path / "data" / "balls" / "HK")
    assert {case.id: case.strata for case in manifest.cases} == {
        "P0": {"vendor": "GE"},
        "P1": {},
        "P2": {"vendor": "Siemens"},
    }
    assert manifest.strata == ("vendor",)
    prepare_own(None, None, "HK", tmp_path / "data", dataset="balls", withdraw=["P1"])
    kept = read_manifest(tmp_path / "data" / "balls" / "HK").cases
    assert {case.id: case.strata for case in kept} == {"P0": {"vendor": "GE"}, "P2": {"vendor": "Siemens"}}
    write_cases(read_cases(table), tmp_path / "again.csv")
    assert [case.strata for case in read_cases(tmp_path / "again.csv")[0].cases] == [
        {"vendor": "GE"},
        {},
        {"vendor": "Siemens"},
    ]


@pytest.mark.parametrize(
    ("column", "values", "code"),
    [
        ("stratum age", [str(60 + k) for k in range(13)], "too-many-strata"),
        ("stratum", ["GE"], "column-unknown"),
        ("stratum of the scanner", ["GE"], "column-unknown"),
    ],
)
def test_columns_that_make_no_groups_are_refused(column: str, values: list[str], code: str, tmp_path: Path) -> None:
    with raises(code):
        read_cases(table_with_strata(tmp_path, *values, column=column))
