"""Masks of pictures with a file for each structure, and polygons and run lengths of COCO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from segmentpictures import disc, write_discs

from data_prep.own_scans import prepare_own
from fedshift.data.cases_csv import read_cases, write_cases
from fedshift.data.check import check
from fedshift.data.layouts.find import gather
from fedshift.data.picture_scan import as_picture
from fedshift.data.picture_structures import Entry, _filled
from fedshift.data.prepared import read_labels
from fedshift.schema.manifest import read_manifest

CLASSES = ("background", "upper", "lower")
UPPER = np.arange(24)[:, None] < 10


def expected(case: str) -> np.ndarray:
    inside = disc(int(case[1:]))[1]
    return np.where(inside, np.where(UPPER, 1, 2), 0)


def write_apart(source: Path, layout: str) -> Path:
    """Two masks for each case of `write_discs`; returns the folder."""
    for number in range(6):
        (source / "masks" / f"p{number}.png").unlink()
        for name, part in (("upper", UPPER), ("Lower", ~UPPER)):
            folder = source / "masks" / name if layout == "folders" else source / "masks"
            folder.mkdir(exist_ok=True)
            ending = "" if layout == "folders" else f"_{name}"
            Image.fromarray(np.uint8(255) * (disc(number)[1] & part)).save(folder / f"p{number}{ending}.png")
    return source


def prepare(source: Path, root: Path, **options: Any) -> dict[str, np.ndarray]:
    """Case -> its prepared mask."""
    site = prepare_own(None, None, "A", root, dataset="d", source=source, classes=CLASSES, **options)
    return {case.id: as_picture(read_labels(site, case, "png")) for case in read_manifest(site).cases}


@pytest.mark.parametrize("layout", ["folders", "suffixes"])
def test_a_file_for_each_structure(tmp_path: Path, layout: str) -> None:
    source = write_apart(write_discs(tmp_path / "raw"), layout)
    assert check(source, classes=CLASSES) == []
    for case, mask in prepare(source, tmp_path).items():
        np.testing.assert_array_equal(mask, expected(case))
    write_cases(gather(source), tmp_path / "cases.csv")
    (table,) = read_cases(tmp_path / "cases.csv")
    assert len(table.cases) == 6 and check(tmp_path / "cases.csv", classes=CLASSES) == []


def test_a_structure_that_lacks_for_one_picture_is_told_and_so_are_overlaps(tmp_path: Path) -> None:
    source = write_apart(write_discs(tmp_path / "raw"), "folders")
    (source / "masks" / "upper" / "p0.png").unlink()
    assert {finding.code for finding in check(source, classes=CLASSES)} == {"mask-missing"}
    both = source / "masks" / "Lower" / "p0.png"
    (source / "masks" / "upper" / "p0.png").write_bytes(both.read_bytes())
    assert {finding.code for finding in check(source, classes=CLASSES)} == {"mask-overlap"}


@pytest.mark.reads("picture to segment: two files of one structure, or two categories of one name")
@pytest.mark.parametrize("layout", ["folders", "suffixes", "coco"])
def test_a_structure_that_is_there_twice_is_refused(tmp_path: Path, layout: str) -> None:
    source = write_discs(tmp_path / "raw")
    if layout == "coco":
        file = write_coco(source, "run lengths") / "annotations.json"
        content = json.loads(file.read_text())
        content["categories"][2]["name"] = "upper"
        file.write_text(json.dumps(content))
        assert {finding.code for finding in check(source, classes=CLASSES)} == {"mask-unreadable"}
        return
    write_apart(source, layout)
    first = source / "masks" / ("upper/p0.png" if layout == "folders" else "p0_upper.png")
    first.with_suffix(".tif").write_bytes(first.read_bytes())
    errors = [finding for finding in check(source, classes=CLASSES) if finding.level == "error"]
    assert errors and all("p0" in finding.sentence() for finding in errors)


# --- COCO -------------------------------------------------------------------------------------------------------------


def runs(mask: np.ndarray) -> list[int]:
    """Run lengths down the columns, of which the first is outside."""
    flat = mask.T.ravel()
    ends = np.flatnonzero(np.diff(flat)) + 1
    lengths = np.diff(np.concatenate([[0], ends, [flat.size]])).tolist()
    return [0, *lengths] if flat[0] else lengths


def compressed(lengths: list[int]) -> str:
    """As `pycocotools` writes run lengths."""
    text = ""
    for k, length in enumerate(lengths):
        value = length - lengths[k - 2] if k > 2 else length
        while True:
            bits, value = value & 31, value >> 5
            more = value != (-1 if bits & 16 else 0)
            text += chr(48 + bits + (32 if more else 0))
            if not more:
                break
    return text


def write_coco(source: Path, form: str) -> Path:
    """Shapes in place of the masks of `write_discs`; polygons follow the corners of pixels."""
    for file in (source / "masks").iterdir():
        file.unlink()
    (source / "masks").rmdir()
    annotations = []
    for number in range(6):
        for category, value in ((7, 1), (3, 2)):
            part = expected(f"p{number}") == value
            size = list(part.shape)
            shape: Any = {"size": size, "counts": runs(part)}
            if form == "compressed":
                shape["counts"] = compressed(shape["counts"])
            if form == "polygons":  # a rectangle for each row of the part
                shape = []
                for y in np.flatnonzero(part.any(1)).tolist():
                    x0, x1 = np.flatnonzero(part[y])[[0, -1]].tolist()
                    shape.append([x0, y, x1 + 1, y, x1 + 1, y + 1, x0, y + 1])
            annotations.append(
                {"id": len(annotations), "image_id": number, "category_id": category, "segmentation": shape}
            )
    content = {
        "images": [{"id": k, "file_name": f"p{k}.png", "width": 32, "height": 24} for k in range(6)],
        "categories": [{"id": 7, "name": "upper"}, {"id": 3, "name": "lower"}, {"id": 9, "name": "other"}],
        "annotations": annotations,
    }
    (source / "annotations.json").write_text(json.dumps(content), encoding="utf-8")
    return source


@pytest.mark.reads("picture to segment: a file for each structure, or COCO's polygons and run lengths")
@pytest.mark.parametrize("form", ["polygons", "run lengths", "compressed"])
def test_shapes_of_coco_are_drawn_pixel_for_pixel(tmp_path: Path, form: str) -> None:
    source = write_coco(write_discs(tmp_path / "raw"), form)
    assert check(source, classes=CLASSES) == []
    for case, mask in prepare(source, tmp_path).items():
        np.testing.assert_array_equal(mask, expected(case))


def test_the_file_can_be_named_as_the_masks(tmp_path: Path) -> None:
    source = write_coco(write_discs(tmp_path / "raw"), "polygons")
    assert check(source / "images", masks=source / "annotations.json", classes=CLASSES) == []
    write_cases(gather(source), tmp_path / "cases.csv")
    assert check(tmp_path / "cases.csv", classes=CLASSES) == []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda content: content["images"][0].update(width=30), "mask-grid"),
        (lambda content: content["images"].pop(), "mask-unreadable"),
        (
            lambda content: content["images"].append({"id": 9, "file_name": "q.png", "width": 9, "height": 9}),
            "image-missing",
        ),
        (lambda content: content["annotations"][0].update(segmentation=[[1, 2, 3]]), "mask-unreadable"),
        (lambda content: content["annotations"][0].update(segmentation=[], bbox=[1, 2, 3, 4]), "mask-unreadable"),
        (lambda content: content["annotations"][0].update(image_id="0"), "mask-unreadable"),
        (lambda content: content["images"].append({**content["images"][0], "id": 9}), "mask-unreadable"),
        (lambda content: content["images"].append({**content["images"][0], "file_name": "q.png"}), "mask-unreadable"),
        (lambda content: content["categories"].append({"id": 7, "name": "lower"}), "mask-unreadable"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, change: Any, code: str) -> None:
    source = write_coco(write_discs(tmp_path / "raw"), "polygons")
    content = json.loads((source / "annotations.json").read_text(encoding="utf-8"))
    change(content)
    (source / "annotations.json").write_text(json.dumps(content), encoding="utf-8")
    assert {finding.code for finding in check(source, classes=CLASSES)} == {code}


@pytest.mark.parametrize(
    ("polygons", "said"),
    [
        ([[0.1, 0.1, 0.4, 0.1, 0.4, 0.3]], "no pixel in the picture"),
        ([[2, 2, 90, 2, 90, 5, 2, 5]], "corners beyond the picture"),
        ([[2, 1, 20, 1, 20, 9, 2, 9], [5, 3, 9, 3, 9, 7, 5, 7]], "a polygon within another, which is filled"),
        ([[-0.4, 1, 20, 1, 20, 9, -0.4, 9], [22, 3, 29, 3, 29, 7, 22, 7]], None),
    ],
    ids=["parts of 1", "beyond", "hole", "as meant"],
)
def test_shapes_that_are_drawn_otherwise_than_they_look_are_warned_of(
    tmp_path: Path, polygons: list[list[float]], said: str | None
) -> None:
    source = write_coco(write_discs(tmp_path / "raw"), "polygons")
    content = json.loads((source / "annotations.json").read_text(encoding="utf-8"))
    content["annotations"][0].update(segmentation=polygons)
    content["annotations"][1].update(segmentation=[[2, 12, 20, 12, 20, 20, 2, 20]])
    (source / "annotations.json").write_text(json.dumps(content), encoding="utf-8")
    findings = check(source, classes=CLASSES)
    assert [finding.code for finding in findings] == ["mask-remark"] * (said is not None)
    assert said is None or f"1 shape(s) of 'upper' with {said}" in findings[0].message


def test_names_of_pictures_are_those_of_any_system(tmp_path: Path) -> None:
    source = write_coco(write_discs(tmp_path / "raw"), "polygons")
    content = json.loads((source / "annotations.json").read_text(encoding="utf-8"))
    for entry, before in zip(content["images"], ("/home/me/", "D:\\set\\images\\", "images/", "", "", ""), strict=True):
        entry["file_name"] = before + entry["file_name"]
    (source / "annotations.json").write_text(json.dumps(content), encoding="utf-8-sig")
    assert check(source, classes=CLASSES) == []
    for case, mask in prepare(source, tmp_path).items():
        np.testing.assert_array_equal(mask, expected(case))


def test_shapes_are_those_of_the_formats_own_library() -> None:
    """Texts and counts that pycocotools 2.0.10 gives, of pictures of 20 x 20."""
    mask = np.zeros((20, 20), bool)
    mask[3:8, 3:8], mask[10:18, 5] = True, True
    text = "o15?000C33M:0]7"
    assert compressed(runs(mask)) == text
    entry = Entry(20, 20, {})
    np.testing.assert_array_equal(_filled({"size": [20, 20], "counts": text}, entry), mask)
    triangle = _filled({"size": [20, 20], "counts": "P21c02O1N2N3M2N2NN3M2N2N2O1N\\2"}, entry)
    drawn = _filled([[3.2, 4.1, 15.7, 6.3, 9.4, 17.8]], entry)
    assert triangle.sum() == 80 and (drawn ^ triangle).sum() <= 6  # pycocotools rounds corners to fifths of a pixel
