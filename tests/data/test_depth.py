"""Pictures of 16 bits of which fewer are used have the range of the site's pictures, in training and in prediction."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import small_image_job
from dicompictures import write_dicom
from errors import raises
from inference.conftest import save_model
from picturefiles import TREE, pixels, write_tree
from PIL import Image

from data_prep.dealing import BY_CONTENT
from data_prep.pictures import Plan, write_pictures
from data_prep.trees import find_pictures
from fedshift.cli import main
from fedshift.data.arrays import open_images
from fedshift.data.depth import DEPTHS, DeepPicture, Depth
from fedshift.inference.classify import depth_of, read_input
from fedshift.inference.model import open_model
from fedshift.schema.manifest import read_manifest
from fedshift.tasks.kinds.classification import DataSpec, Images


def grey(seed: int = 0, *, top: int = 255) -> np.ndarray:
    """Smooth greys whose largest value is ``top``."""
    levels = pixels(seed, channels=1)[..., 0].astype(float)
    return np.rint((levels - levels.min()) / np.ptp(levels) * top)


def deepen(file: Path, *, top: int) -> np.ndarray:
    """Replace a picture by one of 16 bits; returns its values."""
    values = grey(int(file.stem[-4:]), top=top).astype(np.uint16)
    Image.fromarray(values).save(file)
    return values


def prepared(tree: Path, **options: object) -> list[Path]:
    plan = Plan(TREE, find_pictures(tree, TREE), (20,), BY_CONTENT)
    return write_pictures(plan, tree.parent / "out", **options)  # type: ignore[arg-type]


@pytest.mark.reads("picture: grey of 16 bits, of which fewer may be used")
@pytest.mark.parametrize("bits", DEPTHS)
def test_all_grey_levels_are_there_whatever_bits_are_used(bits: int) -> None:
    values = np.arange(1 << bits, dtype=np.uint16)[None]
    depth = Depth([lambda: DeepPicture("x", values)])
    shown = np.asarray(depth.shown(DeepPicture("x", values)))
    assert np.array_equal(np.unique(shown), np.arange(256)) and depth.bits == bits
    assert np.abs(shown[0, :, 0] - np.arange(1 << bits) * (255 / ((1 << bits) - 1))).max() <= 0.5


def test_sixteen_bits_are_scaled_as_always() -> None:
    values = np.arange(1 << 16, dtype=np.uint16)[None]
    assert np.array_equal(np.asarray(DeepPicture("x", values).shown(16))[0, :, 0], (values[0].astype(int) + 128) // 257)


def test_a_site_has_one_range_and_its_manifest_says_it(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "raw", TREE.sites, TREE.classes)
    files = sorted((tree / "here").rglob("*.png"))
    tops = [900, 4000, *[2000] * 6]  # the first alone would be taken for 10 bits
    written = {f"{file.parent.name}/{file.name}": deepen(file, top=top) for file, top in zip(files, tops, strict=False)}
    here, there = prepared(tree)
    manifest = read_manifest(here)
    description = (
        "8 grey of 16 bits, largest value 4000: taken as 12 bits, the fewest of 8, 10, 12, 14 and 16 that hold it"
    )
    assert manifest.preparation["depth"] == description and "depth" not in read_manifest(there).preparation
    images = open_images(here, size=20, channels=3).images
    assert images.dtype == np.uint16 and open_images(there, size=20, channels=3).images.dtype == np.uint8
    assert "16-bit RGB" in manifest.preparation["pixels"]
    for row, picture in enumerate(manifest.pictures):
        if picture.id in written:
            levels = Image.fromarray((written[picture.id] / 4095).astype(np.float32))
            expected = np.asarray(levels.resize((20, 20), Image.Resampling.BILINEAR))
            assert np.abs(images[row] / 65535 - expected).max() < 1e-4, "16 bits are kept"
        else:
            with Image.open(tree / "here" / picture.id) as stored:
                plain = np.asarray(stored.resize((20, 20), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
            assert np.array_equal(images[row], plain.astype(np.uint16) * 257), "as at a site of 8 bits"
    assert len(list((here / "arrays" / "20").iterdir())) == 3
    opened = Images(here, DataSpec(size=20), site="here")
    held = Images(here, DataSpec(size=20, cache="device"), site="here")
    held.hold(torch.device("cpu"))
    seeds = torch.zeros(4, dtype=torch.int64)
    assert torch.equal(*(data.train_batch(np.arange(4), seeds=seeds)[0] for data in (opened, held)))
    assert float(opened.images(np.arange(10)).max()) <= 1 and opened.images(np.arange(10)).unique().numel() > 300


@pytest.mark.reads("picture: grey of 16 bits with a larger value than --bits says")
def test_the_bits_can_be_said_and_then_hold(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "raw", TREE.sites, TREE.classes)
    file = tree / "here" / "cup" / "frame_0001.png"
    deepen(file, top=900)
    here, _ = prepared(tree, bits=12)
    assert read_manifest(here).preparation["depth"].endswith("900: taken as 12 bits, as was given")
    with raises("pictures-damaged", naming=(str(file), "900", "511", "--bits")):
        prepared(tree, bits=9)


def test_a_prediction_takes_the_range_of_all_pictures_that_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(tmp_path / "model.pt", small_image_job("fedavg", "data.channels=1", sites=("A", "B")))
    dark, bright, plain = (tmp_path / f"{name}.png" for name in ("dark", "bright", "plain"))
    Image.fromarray(np.full((30, 40), 819, np.uint16)).save(dark)
    Image.fromarray(np.full((30, 40), 4095, np.uint16)).save(bright)
    Image.fromarray(np.full((30, 40), 51, np.uint8)).save(plain)
    assert main(["predict", str(model), *map(str, (dark, bright, plain)), "--out", str(tmp_path / "out")]) == 0
    assert "4095: taken as 12 bits" in capsys.readouterr().out
    images = json.loads((tmp_path / "out" / "predictions.json").read_text(encoding="utf-8"))["images"]
    assert [entry.get("reading", {}).get("bits") for entry in images] == ["12 of 16 bits, unsigned"] * 2 + [None]
    assert images[0]["probability"] == images[2]["probability"], "a fifth of white both"
    opened = open_model(model)
    for bits, level in ((None, 819 / 1023), (12, 0.2), (16, 819 / 65535)):
        x = read_input(dark, opened, depth_of([dark], bits)).x
        assert float(x.mean()) == pytest.approx(level, abs=0.5 / 255)
    scan = ["predict", str(model), str(dark), "--out", str(tmp_path / "few"), "--bits", "9"]
    assert main(scan) == 1 and "511" in capsys.readouterr().err


def test_a_prediction_says_what_to_look_at_in_a_radiograph(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model.pt", small_image_job("fedavg", "data.channels=1", sites=("A", "B")))
    stored = grey(1, top=4000).astype(np.uint16)
    plain = write_dicom(tmp_path / "plain.dcm", stored, WindowCenter=2048, WindowWidth=4096)
    oblong = write_dicom(tmp_path / "oblong.dcm", stored, WindowCenter=2048, WindowWidth=4096, PixelAspectRatio=[2, 1])
    out = tmp_path / "out"
    assert main(["predict", str(model), str(plain), str(oblong), "--out", str(out)]) == 0
    first, second = json.loads((out / "predictions.json").read_text(encoding="utf-8"))["images"]
    assert not first["warnings"] and "PixelAspectRatio" in second["warnings"][0]
    with (out / "predictions.csv").open(newline="", encoding="utf-8") as table:
        assert [row["warnings"] for row in csv.DictReader(table)] == ["", *second["warnings"]]
