"""A table of labels says what is known of each picture; what it cannot mean is refused with its row and column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dicompictures import write_dicom
from errors import raises
from picturefiles import write_picture
from PIL import Image

from fedshift.data.label_check import check_table
from fedshift.data.label_table import LabelTable, read_labels

CLASSES = ("Effusion", "Lung Opacity", "No Finding")


def table(folder: Path, text: str, **options: object) -> LabelTable:
    for k in range(4):
        write_picture(folder / "images" / f"p{k}.png", k)
    (folder / "labels.csv").write_text(text, encoding="utf-8")
    return read_labels(folder / "labels.csv", images=folder / "images", **options)  # type: ignore[arg-type]


def test_findings_are_true_false_or_unknown_and_names_are_the_tasks(tmp_path: Path) -> None:
    read = table(
        tmp_path,
        "Path;Patient;effusion;lung_opacity;age\np0.png;A;1.0;0;70\np1.png;A;;-1;71\np2.png;B;0;;9\np3.png;C;-1.0;1;5\n",
        classes=CLASSES,
        findings=True,
    )
    assert [dict(row.findings) for row in read.rows] == [
        {"Effusion": True, "Lung Opacity": False},
        {"Effusion": False},
        {"Lung Opacity": True},
    ]
    assert [row.subject for row in read.rows] == ["A", "B", "C"] and read.rows[0].files[0].name == "p0.png"
    assert read.without_column == ("No Finding",) and read.uncertain == 2 and read.unlabelled == 1
    assert [fault.code for fault in read.faults] == ["label-missing", "finding-unknown", "image-unlabelled"]
    assert "p1.png" in read.faults[2].message and not read.errors


def test_one_label_each_by_id_with_splits(tmp_path: Path) -> None:
    read = table(tmp_path, "id,label,split\np0,EFFUSION,Train\nP1,no finding,\n", classes=CLASSES, findings=False)
    assert [(row.label, row.split, row.files[0].name) for row in read.rows] == [
        ("Effusion", "train", "p0.png"),
        ("No Finding", None, "p1.png"),
    ]
    alone = table(tmp_path, "id,label\np0,b\np1,a\n")
    assert alone.classes == ("a", "b") and not alone.has_findings
    assert table(tmp_path, "id,x,y\np0,1,0\n").classes == ("x", "y")


@pytest.mark.parametrize(
    ("text", "findings", "code", "naming"),
    [
        ("id,effusion\np9,1\n", True, "file-missing", "line 2: p9"),
        ("file,effusion\nq/p0.png,1\n", True, "file-missing", "q/p0.png"),
        ("file,effusion\nq/P0.JPG,1\n", True, "file-missing", "/p0.png"),
        ("id,effusion\np0,1\np1,2\n", True, "table-cell", "line 3, column Effusion: '2'"),
        ("id,label\np0,Efusion\n", False, "table-cell", "did you mean 'Effusion'"),
        ("id,label\np0,\n", False, "cell-missing", "line 2, column label"),
        ("id,effusion\np0,1\np0,1\n", True, "case-twice", "line 3: p0"),
        ("id,efusion,no finding\np0,1,0\n", True, "column-unknown", "did you mean 'Effusion'"),
        ("id,effusion,split\np0,1,tset\n", True, "table-cell", "'tset'"),
        ("id,effusion,split,subject\np0,1,test,A\np1,1,train,A\n", True, "subject-divided", "line 3: A"),
        ("id,weight,effusion,no finding\np0,70,1,0,1\n", True, "table-cell", "line 2 has 5 cells, and there are 4"),
        ('"file","effusion"\n"1","p0.png",1\n', True, "table-cell", "line 2 has 3 cells, and there are 2"),
        ("file,effusion\np0.png,1\n./p0.png,0\n", True, "case-twice", "line 3: ./p0.png is the same file as in line 2"),
        ("id,effusion,site\np0,1,\np1,1,NORTH\n", True, "cell-missing", "has rows without a site"),
    ],
)
def test_what_cannot_be_meant_is_an_error(text: str, findings: bool, code: str, naming: str, tmp_path: Path) -> None:
    (error,) = table(tmp_path, text, classes=CLASSES, findings=findings).errors
    assert error.code == code and naming in error.sentence()


def test_the_rows_of_an_error_are_counted_and_the_first_are_named_with_their_cells(tmp_path: Path) -> None:
    rows = "".join(f"q{k},a\n" for k in range(5000))
    (error,) = table(tmp_path, f"id,label\n{rows}").errors
    assert "4999 more row(s), line 3 (q1), line 4 (q2)" in error.message and "4993 more" in error.message
    same = table(tmp_path, "id,label\np0,x\np1,x\np2,x\n", classes=CLASSES, findings=False).errors
    assert [error.message.rpartition("; ")[2] for error in same] == ["the same in 2 more row(s), line 3, line 4"]


@pytest.mark.parametrize(
    ("text", "options", "namings"),
    [
        (
            "id,effusion\n" + "".join(f"p0,{cell}\n" for cell in ("yes", "no", *["yes"] * 5000)),
            {"classes": CLASSES, "findings": True},
            ["line 2, column Effusion: 'yes'", "line 3, column Effusion: 'no'", "line 3: p0 is in line 2"],
        ),
        (
            "id,effusion\n" + "".join(f"p{k},0.{k:04}\n" for k in range(5000)),
            {"classes": CLASSES, "findings": True},
            [*(f"line {k + 2}, column Effusion: '0.{k:04}'" for k in range(12)), "line 14, column", "line 6: p4"],
        ),
        ("id,label\n" + "".join(f"q{k},a\n" for k in range(5000)), {}, ["line 2: q0"]),
        ("file,label\n" + "".join(f"q{k}.png,a\n" for k in range(5000)), {}, ["line 2, column file: q0.png"]),
        ("file,label\n" + ",a\n" * 5000, {}, ["line 2, column file", "line 3:"]),
        ("file,label\n" + "p0.png,a,b\n" * 5000, {}, ["line 2 has 3 cells"]),
    ],
)
def test_an_error_of_many_rows_is_said_once_with_the_rows(
    text: str, options: dict[str, object], namings: list[str], tmp_path: Path
) -> None:
    errors = table(tmp_path, text, **options).errors
    assert len(errors) == len(namings)
    for naming in namings:
        assert any(naming in error.sentence() for error in errors), naming
    several = [error.sentence() for error in errors if "more row(s)" in error.message]
    assert several and all(len(sentence) < 1000 and "line " in sentence for sentence in several)


@pytest.mark.parametrize(
    ("text", "options", "code", "naming"),
    [
        ("id,age\np0,1\n", {"classes": CLASSES, "findings": True}, "column-missing", "age"),
        ("id,effusion\np0,1\n", {"classes": CLASSES, "findings": False}, "column-missing", "'label'"),
        ("name,label\np0,a\n", {}, "column-missing", "name, label"),
        ("id,label,Label\np0,a,b\n", {}, "column-twice", "label"),
        ("id,label\n", {}, "table-empty", "labels.csv"),
        ("id,label,site\np0,a,NORTH\n", {"site": "SOUTH"}, "site-unknown", "NORTH"),
    ],
)
def test_a_table_without_what_it_needs_is_refused(
    text: str, options: dict[str, object], code: str, naming: str, tmp_path: Path
) -> None:
    with raises(code, naming=naming):
        table(tmp_path, text, **options)


def test_values_that_r_and_pandas_write_are_read(tmp_path: Path) -> None:
    text = '"","file","Unnamed: 0","effusion","no finding"\n"1","p0.png",0,TRUE,NA\n"2","p1.png",1,False,nan\n'
    read = table(tmp_path, text)
    assert read.classes == ("effusion", "no finding") and not read.errors
    assert [dict(row.findings) for row in read.rows] == [{"effusion": True}, {"effusion": False}]
    labels = table(tmp_path, "id,label\np0,a\np1,nan\n")
    assert [error.code for error in labels.errors] == ["cell-missing"]


@pytest.mark.parametrize(
    ("subjects", "code"),
    [
        (("A", "", "B"), "subject-missing"),
        (("A", "NA", "B"), "subject-missing"),
        (("007", "7", "8"), "subject-spelling"),
        (("7", "7.0", "8"), "subject-spelling"),
        (("a1", "A1", "B"), "subject-spelling"),
        (("10", "100", "1"), None),
        (("", "", ""), None),
    ],
)
def test_people_who_may_be_one_are_warned_of(tmp_path: Path, subjects: tuple[str, ...], code: str | None) -> None:
    rows = "".join(f"p{k},1,{subject}\n" for k, subject in enumerate([*subjects, subjects[0]]))
    read = table(tmp_path, f"id,effusion,patient\n{rows}", classes=CLASSES[:1], findings=True)
    assert [fault.code for fault in read.faults] == [code] * (code is not None)


def test_a_site_is_found_in_any_spelling_and_text_in_cells_is_no_row(tmp_path: Path) -> None:
    text = 'id,note,label,site\np0,"one\ntwo",a,North\np1,one\x0btwo,b,NORTH\np2,,a,SOUTH\n'
    read = table(tmp_path, text, site="north")
    assert [(row.id, row.line) for row in read.rows] == [("p0", 3), ("p1", 4)]
    with raises("table-quotes", naming="line 3"):
        table(tmp_path, 'id,note,label\np0,"one,a\np1,two,b\n')


def test_a_picture_of_one_colour_is_warned_of(tmp_path: Path) -> None:
    table(tmp_path, "id,label\np0,a\np1,b\n")
    Image.new("RGB", (20, 20), "black").save(tmp_path / "images" / "p1.png")
    warnings = check_table(tmp_path / "labels.csv", tmp_path / "images")
    assert [(each.code, each.file.name) for each in warnings if each.code != "image-unlabelled"] == [
        ("scan-empty", "p1.png")
    ]


def test_remarks_of_readers_are_said_once_for_all_pictures(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for k in range(9):
        pixels = np.random.default_rng(k).integers(1, 4000, (16, 16)).astype(np.uint16)
        write_dicom(tmp_path / "images" / f"p{k}.dcm", pixels, **({"PixelAspectRatio": [4, 3]} if k else {}))
    (tmp_path / "labels.csv").write_text("id,label\n" + "".join(f"p{k},{'ab'[k % 2]}\n" for k in range(9)))
    (warning,) = check_table(tmp_path / "labels.csv", tmp_path / "images")
    assert warning.level == "warning" and warning.code == "scan-remark" and warning.file.name == "p1.dcm"
    assert "PixelAspectRatio" in warning.message
    assert "the same in 7 more file(s), p2.dcm, p3.dcm" in warning.message and "and 1 more" in warning.message


def test_both_eyes_of_a_person_without_a_subject_are_warned_of(tmp_path: Path) -> None:
    for k in range(4):
        write_picture(tmp_path / "images" / f"q{k // 2}_{'LR'[k % 2]}.png", k)
    rows = [f"q{k // 2}_{'LR'[k % 2]}.png" for k in range(4)]
    said = table(tmp_path, "file,label\n" + "".join(f"{row},a\n" for row in rows)).faults[0]
    assert said.code == "subject-unsaid" and "2 pair(s)" in said.message and "column 'subject'" in said.remedy
    named = table(tmp_path, "file,label,subject\n" + "".join(f"{row},a,{row[:2]}\n" for row in rows))
    assert [fault.code for fault in named.faults] == ["image-unlabelled"]


def class_folders(root: Path, *names: str) -> Path:
    for k, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        write_picture(root / name, k)
    return root


def test_a_folder_for_each_class_is_a_table(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "x", "effusion/P1_a.png", "effusion/P1_b.png", "no_finding/.hidden/c.png")
    class_folders(folder, "No_Finding/deeper/P2_a.PNG")
    read = read_labels(folder, classes=CLASSES, findings=False)
    assert [(row.id, row.label) for row in read.rows] == [
        ("No_Finding/deeper/P2_a.PNG", "No Finding"),
        ("effusion/P1_a.png", "Effusion"),
        ("effusion/P1_b.png", "Effusion"),
    ]
    assert [fault.code for fault in read.faults] == ["subject-missing"], "nothing says whose the pictures are"
    of_people = read_labels(folder, subject="(?:.*/)?(P[0-9])_.")
    assert [row.subject for row in of_people.rows] == ["P2", "P1", "P1"] and not of_people.faults
    write_picture(folder / "effusion" / "__P3_a.png", 3)
    write_picture(folder / "__MACOSX" / "effusion" / "P1_a.png", 4)
    assert "effusion/__P3_a.png" in [row.id for row in read_labels(folder).rows]
    assert len(read_labels(folder).rows) == 4, "what macOS adds to an archive is no class"
    assert of_people.classes == ("No_Finding", "effusion")
    with raises("subject-unmatched", naming="P2_a.PNG"):
        read_labels(folder, subject="P*_?")


def test_folders_of_splits_have_the_folders_of_classes(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "x", "train/a/P1_0.png", "Valid/b/P1_1.png", "test/a/P2_0.png")
    read = read_labels(folder, subject="*_?")
    assert [(row.label, row.split) for row in read.rows] == [("b", "val"), ("a", "test"), ("a", "train")]
    assert [fault.code for fault in read.errors] == ["subject-divided"]
    classes = read_labels(folder, classes=("train", "Valid", "test"), findings=False)
    assert [row.label for row in classes.rows] == ["Valid", "test", "train"], "classes may be called so"


@pytest.mark.parametrize(
    ("names", "options", "code", "naming"),
    [
        (("effusion/a.png", "b.png"), {}, "layout-unknown", "b.png"),
        (("train/a/a.png", "test/b.png"), {}, "layout-unknown", "test/b.png"),
        (("efusion/a.png",), {"classes": CLASSES, "findings": False}, "layout-unknown", "Effusion"),
        (("effusion/a.png",), {"classes": CLASSES, "findings": True}, "layout-unknown", "several findings"),
        (("effusion/a.txt",), {}, "no-cases", "no image"),
        (("effusion/a.png",), {"images": Path("elsewhere")}, "no-effect", "--images"),
    ],
)
def test_folders_that_say_no_class_of_each_image_are_refused(
    names: tuple[str, ...], options: dict[str, object], code: str, naming: str, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / name).write_bytes(b"")
    with raises(code, naming=naming):
        read_labels(tmp_path / "x", **options)  # type: ignore[arg-type]


def test_a_picture_in_the_folders_of_two_classes_is_warned_of(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "x", "a/0.png", "b/1.png")
    (folder / "b" / "1.png").write_bytes((folder / "a" / "0.png").read_bytes())
    findings = check_table(folder, folder, subject="*")
    assert [fault.code for fault in findings] == ["labels-differ"] and "a/0.png" in findings[0].message
