"""Masks whose structures overlap become classes of a task with regions, and voxels to ignore are kept as such."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK as sitk
from dicomstudies import draw_segmentation, write_slices
from errors import raises
from scanfiles import volume
from slicerfiles import segment, write_segments

from data_prep.own_scans import prepare_own
from fedshift.cli import main
from fedshift.data.check import check
from fedshift.data.labels import Labels
from fedshift.data.prepared import read_labels
from fedshift.runtime.regions import IGNORED
from fedshift.schema.manifest import Manifest, read_manifest
from fedshift.schema.regions import make_regions, overlapping

CLASSES = ("background", "edema", "core")
NESTED = {"whole": ("edema", "core"), "core": ("core",)}
OVERLAPPING = overlapping(["liver", "vessel"])


def of_task(
    classes: tuple[str, ...] = CLASSES, regions: dict[str, tuple[str, ...]] = NESTED, **more: Any
) -> dict[str, Any]:
    return {"classes": classes, "regions": make_regions(regions, classes), "ignore": False, **more}


def boxes() -> tuple[sitk.Image, np.ndarray, np.ndarray]:
    """An image, a box in it and one inside of that."""
    image, _ = volume(0)
    large = np.zeros(sitk.GetArrayFromImage(image).shape, bool)
    small = large.copy()
    large[2:7, 4:15, 5:18], small[3:5, 6:10, 8:12] = True, True
    return image, large, small


def slicer_case(folder: Path, layers: list[np.ndarray], *names: str) -> Path:
    """Two cases with the same segments."""
    folder.mkdir(exist_ok=True)
    for seed, case in enumerate(("P1", "P2")):
        image, _ = volume(seed)
        (folder / "images").mkdir(exist_ok=True)
        sitk.WriteImage(image, str(folder / "images" / f"{case}.nii.gz"))
        segments = [segment(name, layer=number) for number, name in enumerate(names)]
        write_segments(
            folder / "masks" / f"{case}.seg.nrrd", image, [layer.astype(np.uint8) for layer in layers], segments
        )
    return folder


def prepared(folder: Path, out: Path, **options: Any) -> tuple[Manifest, np.ndarray]:
    site = prepare_own(None, None, "A", out, dataset="d", source=folder, **options)
    manifest = read_manifest(site)
    return manifest, read_labels(site, manifest.cases[0])


def test_layers_that_overlap_are_the_class_of_their_regions(tmp_path: Path) -> None:
    _, large, small = boxes()
    folder = slicer_case(tmp_path / "in", [large, small], "whole", "core")
    _, labels = prepared(folder, tmp_path / "out", **of_task())
    assert (labels == 1).sum() == (large & ~small).sum() and (labels == 2).sum() == small.sum()
    with raises("scans-damaged", naming="'regions'"):
        prepared(folder, tmp_path / "other", classes=("background", "whole", "core"))


def test_names_of_classes_that_are_regions_too_are_classes_where_they_do_not_overlap(tmp_path: Path) -> None:
    _, large, small = boxes()
    regions = {"whole": ("whole", "core"), "core": ("core",)}
    same = ("background", "whole", "core")
    for number, layers in enumerate(([large, small], [large & ~small, small])):
        folder = slicer_case(tmp_path / f"in{number}", layers, "whole", "core")
        _, labels = prepared(folder, tmp_path / f"out{number}", **of_task(same, regions))
        assert (labels == 1).sum() == (large & ~small).sum() and (labels == 2).sum() == small.sum()


def test_a_part_outside_of_its_region_is_no_class(tmp_path: Path) -> None:
    _, large, small = boxes()
    outside = np.roll(small, 9, axis=2)
    folder = slicer_case(tmp_path / "in", [large, outside], "whole", "core")
    with raises("scans-damaged", naming="core"):
        prepared(folder, tmp_path / "out", **of_task())
    with raises("scans-damaged", naming=("edema", "whole")):
        prepared(slicer_case(tmp_path / "mixed", [large, small], "whole", "edema"), tmp_path / "out", **of_task())


def test_structures_that_overlap_in_any_way_keep_all_their_voxels(tmp_path: Path) -> None:
    _, large, small = boxes()
    moved = np.roll(small, 7, axis=2)
    assert (moved & large).any() and (moved & ~large).any()
    folder = slicer_case(tmp_path / "in", [large, moved], "liver", "vessel")
    classes, regions = OVERLAPPING
    manifest, labels = prepared(folder, tmp_path / "out", **of_task(classes, regions))
    np.testing.assert_array_equal(
        np.bincount(labels.ravel(), minlength=4)[1:],
        [(large & ~moved).sum(), (moved & ~large).sum(), (large & moved).sum()],
    )
    assert manifest.classes == ("background", "liver", "vessel", "liver+vessel")
    some, labels = prepared(folder, tmp_path / "some", annotated=["liver"], **of_task(classes, regions))
    assert some.annotated == ("liver", "liver+vessel") and (labels == 1).sum() == large.sum()


def test_segments_of_dicom_that_overlap_are_regions(tmp_path: Path) -> None:
    image, large, small = boxes()
    series = write_slices(tmp_path / "in" / "P1" / "t2", image)
    draw_segmentation(tmp_path / "in" / "P1" / "seg.dcm", series, {"Whole tumour": large, "core": small})
    _, labels = prepared(
        tmp_path / "in", tmp_path / "out", labels={"whole": ["Whole tumour"], "core": ["core"]}, **of_task()
    )
    assert (labels == 1).sum() == (large & ~small).sum() and (labels == 2).sum() == small.sum()


@pytest.mark.parametrize(
    "name", ["segmentations/{1}", "masks/{0}_{1}", "{1}_mask", "{0}_{1}_seg", "mask_{1}", "{0}_label_{1}"]
)
@pytest.mark.reads("list: a mask for each structure in the folder of a case")
def test_a_mask_for_each_structure_in_the_folder_of_a_case(tmp_path: Path, name: str) -> None:
    _, large, small = boxes()
    moved = np.roll(small, 7, axis=2)
    classes, regions = OVERLAPPING
    for seed, case in enumerate(("P1", "P2")):
        image, _ = volume(seed)
        for file, voxels in (("T1", None), (name.format(case, "liver"), large), (name.format(case, "vessel"), moved)):
            path = tmp_path / "in" / case / f"{file}.nii.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            made = image if voxels is None else sitk.GetImageFromArray(voxels.astype(np.uint8) * 255)
            made.CopyInformation(image)
            sitk.WriteImage(made, str(path))
    manifest, labels = prepared(tmp_path / "in", tmp_path / "out", **of_task(classes, regions))
    assert len(manifest.cases) == 2 and (labels == 3).sum() == (large & moved).sum() > 0
    assert (labels == 1).sum() + (labels == 3).sum() == large.sum()
    with raises("scans-damaged", naming="'liver', 'vessel'"):
        prepared(tmp_path / "in", tmp_path / "other", classes=("background", "spleen"))
    with raises("scans-damaged", naming="'regions'"):
        prepared(tmp_path / "in", tmp_path / "other", classes=("background", "liver", "vessel"))
    broken = tmp_path / "in" / "P2" / f"{name.format('P2', 'vessel')}.nii.gz"
    sitk.WriteImage(volume(1, size=(20, 20, 9))[1], str(broken))
    with raises("scans-damaged", naming=broken.name):
        prepared(tmp_path / "in", tmp_path / "other", **of_task(classes, regions))


def nnunet(folder: Path, values: np.ndarray, **said: Any) -> Path:
    image, _, _ = boxes()
    for name in ("imagesTr", "labelsTr"):
        (folder / name).mkdir(parents=True)
    sitk.WriteImage(image, str(folder / "imagesTr" / "P1_0000.nii.gz"))
    mask = sitk.GetImageFromArray(values.astype(np.uint8))
    mask.CopyInformation(image)
    sitk.WriteImage(mask, str(folder / "labelsTr" / "P1.nii.gz"))
    content = {"channel_names": {"0": "T1"}, "file_ending": ".nii.gz", **said}
    (folder / "dataset.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


REGIONS_OF_NNUNET = {
    "labels": {"background": 0, "whole": [1, 2], "core": 2, "ignore": 3},
    "regions_class_order": [1, 2],
}


def values() -> np.ndarray:
    _, large, small = boxes()
    made = large + small.astype(int)
    made[7:] = 3
    return made


@pytest.mark.reads("list: labels that are regions, or ignored")
def test_nnunets_regions_are_read_as_such(tmp_path: Path) -> None:
    folder = nnunet(tmp_path / "in", values(), **REGIONS_OF_NNUNET)
    alone, labels = prepared(folder, tmp_path / "alone")
    assert alone.classes == ("background", "whole", "core") and alone.ignore
    np.testing.assert_array_equal(np.unique(labels), [0, 1, 2, IGNORED])
    again = prepared(folder, tmp_path / "alone")[0]
    assert (again.classes, again.preparation) == (alone.classes, alone.preparation), "the site knows them"
    swapped = ("background", "core", "edema")
    manifest, labels = prepared(folder, tmp_path / "task", **of_task(swapped, NESTED, ignore=True))
    assert manifest.classes == swapped and (labels == 1).sum() == (values() == 2).sum()
    with raises("regions-unknown", naming="whole"):
        prepared(folder, tmp_path / "none", classes=CLASSES, ignore=True)
    with raises("ignore-unknown"):
        prepared(folder, tmp_path / "none", **of_task())


def test_lists_of_one_value_are_classes_as_nnunet_has_them(tmp_path: Path) -> None:
    description = {"labels": {"background": [0], "large": [1], "small": [2], "rest": [3]}}
    manifest, labels = prepared(nnunet(tmp_path / "in", values(), **description), tmp_path / "out")
    assert manifest.classes == ("background", "large", "small", "rest") and "regions" not in manifest.preparation
    np.testing.assert_array_equal(np.unique(labels), [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("change", "naming"),
    [
        ({"regions_class_order": [2, 1]}, "regions_class_order is 2, 1, and the regions are whole, core"),
        ({"regions_class_order": [1]}, "regions_class_order is 1, and"),
        ({"labels": {"background": 0, "core": 2, "whole": [1, 2]}, "regions_class_order": [2, 1]}, "hides it"),
        ({"labels": {"background": 0, "whole": [1, 2], "core": []}, "regions_class_order": []}, "'core' has no class"),
    ],
    ids=["not its own", "too few", "hidden", "empty"],
)
def test_regions_that_contradict_themselves_are_refused(tmp_path: Path, change: dict[str, Any], naming: str) -> None:
    folder = nnunet(tmp_path / "in", values(), **{**REGIONS_OF_NNUNET, **change})
    with raises("labels-unusable", naming=naming):
        prepared(folder, tmp_path / "out")


def test_a_value_that_is_no_whole_number_is_refused(tmp_path: Path) -> None:
    folder = nnunet(tmp_path / "in", values(), labels={"background": 0, "core": 1.5})
    with raises("description-broken", naming="'core' has the value 1.5"):
        prepared(folder, tmp_path / "out")


def test_values_to_ignore_are_named(tmp_path: Path) -> None:
    folder = nnunet(tmp_path / "in", values(), labels={"background": 0})
    said = {"edema": [1], "core": [2], "ignore": [3]}
    manifest, labels = prepared(folder, tmp_path / "out", labels=said, **of_task(ignore=True))
    assert manifest.ignore and (labels == IGNORED).sum() == (values() == 3).sum()
    assert check(tmp_path / "out" / "d" / "A") == [] or all(
        finding.level == "warning" for finding in check(tmp_path / "out" / "d" / "A")
    )
    regions = {"whole": [1, 2], "core": [2], "ignore": [3]}
    _, of_regions = prepared(folder, tmp_path / "regions", labels=regions, **of_task(ignore=True))
    np.testing.assert_array_equal(of_regions, labels)
    with raises("label-shared", naming="3"):
        Labels.named({"a": [1, 3], "ignore": [3]})


def test_annotated_may_name_regions_that_tell_their_classes_apart(tmp_path: Path) -> None:
    folder = nnunet(tmp_path / "in", values(), labels={"background": 0})
    labels = {"core": [2], "background": [1, 3]}
    manifest, _ = prepared(folder, tmp_path / "out", labels=labels, annotated=["core"], **of_task())
    assert manifest.annotated == ("core",)
    with raises("regions-partial", naming="core"):
        prepared(folder, tmp_path / "no", labels={"edema": [1], "core": [2]}, annotated=["whole"], **of_task())


def test_a_task_file_says_what_overlaps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, large, small = boxes()
    folder = slicer_case(tmp_path / "in", [large, np.roll(small, 7, axis=2)], "liver", "vessel")
    task = tmp_path / "task.yaml"
    task.write_text("dataset: d\nsites: [A]\noverlapping: [liver, vessel]\n", encoding="utf-8")
    words = ["--task", str(task), "--site", "A", "--out", str(tmp_path / "out")]
    assert main(["data", "prepare", "own", "--source", str(folder), *words]) == 0
    assert read_manifest(tmp_path / "out" / "d" / "A").classes == OVERLAPPING[0]
    assert main(["data", "check", str(folder), "--task", str(task)]) == 0
    assert "no mask with a voxel of" not in capsys.readouterr().out
