"""Pictures in nnU-Net's raw layout: channels, labels, regions and what cannot be meant."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from errors import raises
from PIL import Image
from segmentpictures import COLOURS, disc

from data_prep.msd import plan_volumes
from data_prep.own_scans import prepare_own
from data_prep.volumes import write_volumes
from fedshift import cli
from fedshift.data.check import check
from fedshift.data.layouts.find import gather
from fedshift.data.picture_scan import as_picture
from fedshift.data.prepared import read_images, read_labels
from fedshift.runtime.regions import IGNORED
from fedshift.schema.manifest import Manifest, read_manifest

DISC = {"background": 0, "disc": 1}


def write_raw(
    folder: Path,
    *,
    ending: str = ".png",
    channels: Sequence[str] = ("R", "G", "B"),
    labels: Mapping[str, object] = DISC,
    grey: bool = False,
    **more: object,
) -> Path:
    """``Dataset120_Discs`` with four cases; a mask is 1 in the disc, 2 in its upper half, and 3 in the first row."""
    for part in ("imagesTr", "labelsTr"):
        (folder / part).mkdir(parents=True)
    for number in range(4):
        picture, inside = disc(number)
        Image.fromarray(picture[..., 0] if grey else picture).save(folder / "imagesTr" / f"d_{number:03d}_0000{ending}")
        Image.fromarray(mask(inside, values=len(labels) - 1)).save(folder / "labelsTr" / f"d_{number:03d}{ending}")
    named = {str(number): name for number, name in enumerate(channels)}
    description = {"channel_names": named, "labels": labels, "numTraining": 4, "file_ending": ending, **more}
    (folder / "dataset.json").write_text(json.dumps(description), encoding="utf-8")
    return folder


def mask(inside: np.ndarray, *, values: int) -> np.ndarray:
    classes = inside.astype(np.uint8)
    if values > 1:
        upper = np.arange(len(inside))[:, None] < np.nonzero(inside)[0].mean()
        classes[inside & upper] = 2
    if values > 2:
        classes[0] = 3
    return classes


def prepared(source: Path, out: Path, **options: Sequence[str]) -> tuple[Manifest, Path]:
    (site,) = write_volumes(plan_volumes(source, **options), out)
    assert check(site) == []
    return read_manifest(site), site


@pytest.mark.parametrize("ending", [".png", ".tif", ".bmp"])
@pytest.mark.parametrize("channels", [("R", "G", "B"), ("rgb_to_0_1",) * 3])
def test_three_channels_of_one_file_are_its_colours(tmp_path: Path, ending: str, channels: Sequence[str]) -> None:
    manifest, site = prepared(write_raw(tmp_path / "raw", ending=ending, channels=channels), tmp_path)
    assert manifest.sequences == COLOURS and manifest.classes == ("background", "disc") and manifest.pictured
    case = manifest.cases[2]
    picture, inside = disc(2)
    assert case.id == "d_002" and manifest.known_spacing(case) is None
    assert np.array_equal(np.stack([as_picture(p[None, 0]) for p in read_images(site, manifest, case)], -1), picture)
    assert np.array_equal(as_picture(read_labels(site, case, "png")), inside)


def test_one_channel_is_grey_and_own_scans_join_under_a_task(tmp_path: Path) -> None:
    source = write_raw(tmp_path / "raw", channels=("microscope",), grey=True)
    manifest, _ = prepared(source, tmp_path)
    assert manifest.sequences == ()
    site = prepare_own(None, None, "OWN", tmp_path, dataset="discs", source=source, classes=("background", "disc"))
    assert read_manifest(site).sequences == () and len(read_manifest(site).cases) == 4
    coloured = write_raw(tmp_path / "coloured", channels=("microscope",))
    with raises("scans-damaged", naming="d_000_0000.png is a picture in colour"):
        prepared(coloured, tmp_path / "out")


def test_regions_and_a_label_to_ignore_are_grey_values_too(tmp_path: Path) -> None:
    labels = {"background": 0, "disc": [1, 2], "upper": [2], "ignore": 3}
    source = write_raw(tmp_path / "raw", channels=("m",), labels=labels, grey=True, regions_class_order=[1, 2])
    manifest, site = prepared(source, tmp_path)
    assert manifest.classes == ("background", "disc", "upper") and manifest.ignore
    classes = as_picture(read_labels(site, manifest.cases[0], "png"))
    drawn = mask(disc(0)[1], values=3)
    assert np.array_equal(classes == IGNORED, drawn == 3)
    assert np.array_equal(np.where(drawn == 3, IGNORED, drawn), classes)
    (tmp_path / "discs.yaml").write_text(TASK_OF_REGIONS, encoding="utf-8")
    words = ["data", "prepare", "own", "--source", str(source), "--site", "A", "--task", str(tmp_path / "discs.yaml")]
    assert cli.main([*words, "--out", str(tmp_path / "own")]) == 0
    own = tmp_path / "own" / "discs" / "A"
    assert np.array_equal(as_picture(read_labels(own, read_manifest(own).cases[0], "png")), classes)


TASK_OF_REGIONS = """
name: discs
kind: segmentation
dataset: discs
sites: [A, B]
classes: [background, disc, upper]
regions: {disc: [disc, upper], upper: [upper]}
regions_class_order: [disc, upper]
ignore: true
data: {pictures: true, dims: 2, patch: [16, 16], samples_per_case: 4}
network: {name: monai.UNet, options: {channels: [8, 16], strides: [2]}}
loss: {name: monai.DiceCELoss, options: {batch: true}}
optimizer: {name: adam, lr: 0.01}
schedule: {rounds: 2, local_epochs: 1, batch_size: 4, precision: fp32}
"""


def test_a_list_of_pairs_is_followed(tmp_path: Path) -> None:
    source = write_raw(tmp_path / "raw")
    content = json.loads((source / "dataset.json").read_text(encoding="utf-8"))
    content["dataset"] = {
        f"d_{number:03d}": {"images": [f"imagesTr/d_{number:03d}_0000.png"], "label": f"labelsTr/d_{number:03d}.png"}
        for number in range(3)
    }
    content["numTraining"] = 3
    (source / "dataset.json").write_text(json.dumps(content), encoding="utf-8")
    plan = plan_volumes(source)
    assert [case.id for case in plan.sites[0].cases] == ["d_000", "d_001", "d_002"] and plan.sequences == COLOURS
    assert [finding.code for finding in plan.sites[0].findings] == ["list-incomplete"]


def test_what_a_picture_cannot_have_is_refused(tmp_path: Path) -> None:
    with raises("cases-unmatched", naming="names 2 channels"):
        prepared(write_raw(tmp_path / "two", channels=("a", "b")), tmp_path / "out")
    apart = write_raw(tmp_path / "apart", grey=True)
    for file in sorted((apart / "imagesTr").iterdir()):
        for number in (1, 2):
            Image.open(file).save(file.with_name(file.name.replace("_0000", f"_{number:04d}")))
    with raises("several-pictures", naming="apart"):
        plan_volumes(apart)
    lacking = write_raw(tmp_path / "lacking")
    (lacking / "labelsTr" / "d_001.png").unlink()
    with raises("cases-unmatched", naming="d_001_0000.png"):
        prepared(lacking, tmp_path / "out")
    pages = write_raw(tmp_path / "pages", ending=".tif", grey=True, channels=("m",))
    page = Image.fromarray(disc(9)[0][..., 0])
    page.save(pages / "imagesTr" / "d_001_0000.tif", save_all=True, append_images=[page])
    with raises("scans-damaged", naming="d_001_0000.tif"):
        prepared(pages, tmp_path / "out")
    unknown = write_raw(tmp_path / "unknown")
    Image.fromarray(np.full((24, 32), 7, np.uint8)).save(unknown / "labelsTr" / "d_001.png")
    with raises("scans-damaged", naming="unknown label"):
        prepared(unknown, tmp_path / "out")


def write_folders(root: Path, names: Mapping[str, str]) -> Path:
    """A folder for each of four cases, with these files: a name, in which {} is the case, and what it holds."""
    for number in range(4):
        picture, inside = disc(number)
        held = {"picture": picture, "grey": picture[..., 0], "mask": np.uint8(255) * inside}
        held |= {"none": np.zeros_like(held["mask"])}
        for name, what in names.items():
            file = root / f"P{number}" / name.format(f"P{number}")
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(held[what]).save(file)
    return root


@pytest.mark.parametrize(
    "names",
    [
        {"photo.png": "picture", "mask.png": "mask"},
        {"{}.png": "picture", "{}_mask.png": "mask"},
        {"image.bmp": "picture", "disc_mask.png": "mask", "cup_mask.png": "none"},
        {"{}.png": "picture", "masks/disc.png": "mask", "masks/cup.png": "none"},
    ],
)
def test_a_folder_for_each_picture(tmp_path: Path, names: Mapping[str, str]) -> None:
    source = write_folders(tmp_path / "clinic", names)
    classes = ("background", "disc", "cup") if len(names) > 2 else ("background", "disc")
    site = prepare_own(
        None, None, "A", tmp_path, dataset="discs", source=source, classes=classes, wanted=COLOURS, empty=True
    )
    manifest = read_manifest(site)
    assert [case.id for case in manifest.cases] == ["P0", "P1", "P2", "P3"] and manifest.sequences == COLOURS
    assert np.array_equal(as_picture(read_labels(site, manifest.cases[3], "png")), disc(3)[1])


def test_several_pictures_in_the_folder_of_a_case_are_refused(tmp_path: Path) -> None:
    source = write_folders(tmp_path / "clinic", {"T1.png": "grey", "T2.png": "grey", "mask.png": "mask"})
    with raises("several-pictures", naming="T1, T2"):
        prepare_own(None, None, "A", tmp_path, dataset="discs", source=source, classes=("background", "disc"))


def test_a_folder_for_each_site_stays_one(tmp_path: Path) -> None:
    for site in ("NORTH", "SOUTH"):
        names = {
            f"{number}{end}.png": what for number in range(3) for end, what in (("", "picture"), ("_mask", "mask"))
        }
        write_folders(tmp_path / "in" / site, names)
    counts = {table.name: len(table.cases) for table in gather(tmp_path / "in" / "NORTH")}
    assert counts == {"P0": 3, "P1": 3, "P2": 3, "P3": 3}
