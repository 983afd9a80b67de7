"""Models of pictures predict masks of pictures in their size, and are scored in pixels."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scanfiles import write_pair
from segmentpictures import TASK, disc, prepare_discs, write_discs

from fedshift import cli
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.inference.model import open_model
from fedshift.reporting.known_scores import SCORES
from fedshift.runtime.monai_run import ScanInferer, segment_pictures
from fedshift.tasks.evaluation.by_class import PICTURE_RANGES, RANGES, scores_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the discs of two sites."""
    root = tmp_path_factory.mktemp("discs")
    sites = {site: prepare_discs(root / site, root, site, seed=k) for k, site in enumerate("AB")}
    (root / "discs.yaml").write_text(TASK, encoding="utf-8")
    job = resolve(str(root / "discs.yaml"), "fedavg", options=["schedule.rounds=4", "data.samples_per_case=8"], seed=1)
    run_in_process(job, sites, root / "run", device="cpu")
    return root / "run" / "best_global_model.pt"


def predict(model: Path, images: Path, out: Path, *options: str) -> list[dict[str, str]]:
    assert cli.main(["predict", str(model), str(images), "--out", str(out), *options]) == 0
    with (out / "predictions.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_mask_has_the_pictures_size_and_lies_on_it(model: Path, tmp_path: Path) -> None:
    source = write_discs(tmp_path / "new", cases=2, seed=5, suffix=".bmp")
    rows = predict(model, source / "images", tmp_path / "out", "--overlay")
    for number, row in enumerate(rows):
        inside = disc(500 + number)[1]
        mask = np.asarray(Image.open(tmp_path / "out" / f"p{number}_mask.png"))
        assert mask.shape == inside.shape and set(np.unique(mask)) == {0, 255}
        found = mask > 0
        assert (found & inside).sum() > 0.9 * inside.sum() and found.sum() < 0.4 * found.size
        assert int(row["pixels"]) == found.sum() and row["area_mm2"] == "" and "volume_ml" not in row
        overlay = Image.open(tmp_path / "out" / f"p{number}_overlay.png")
        assert overlay.width >= 32 and overlay.height >= 24
    record = json.loads((tmp_path / "out" / "predictions.json").read_text(encoding="utf-8"))
    assert record["images"][0]["reading"]["image"]["format"] == "BMP picture"


def test_a_picture_that_a_tag_turns_gets_an_upright_mask(model: Path, tmp_path: Path) -> None:
    picture, _ = disc(7)
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "in").mkdir()
    Image.fromarray(picture).save(tmp_path / "in" / "turned.png", exif=exif)
    Image.fromarray(np.rot90(picture, -1).copy()).save(tmp_path / "in" / "upright.png")
    predict(model, tmp_path / "in", tmp_path / "out")
    turned, upright = (np.asarray(Image.open(tmp_path / "out" / f"{n}_mask.png")) for n in ("turned", "upright"))
    np.testing.assert_array_equal(turned, upright)


def test_volumes_and_pictures_in_the_wrong_colours_are_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, _ = write_pair(tmp_path / "scans", "P1")
    assert cli.main(["predict", str(model), str(image), "--out", str(tmp_path / "out")]) == 2
    assert str(image) in capsys.readouterr().err
    assert cli.main(["predict", str(model), str(image.parent), "--out", str(tmp_path / "out")]) == 2
    (tmp_path / "one.png").write_bytes(b"")
    assert cli.main(["predict", str(model), str(tmp_path / "one.png"), "--out", str(tmp_path / "out")]) == 1
    assert "one.png" in capsys.readouterr().err


def test_evaluate_scores_pixels(model: Path, tmp_path: Path) -> None:
    source = write_discs(tmp_path / "new", cases=5, seed=5)
    out = tmp_path / "out"
    assert cli.main(["evaluate", str(model), "--source", str(source), "--out", str(out)]) == 0
    record = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))
    assert (
        record["scores"]["dice"]["mean"] > 0.7
        and {"hd95_px", "asd_px", "area_difference_px"} <= record["scores"].keys()
    )
    assert not {"hd95", "volume_difference"} & record["scores"].keys() and record["without_spacing"] == []
    assert cli.main(["report", str(out), "--out", str(out / "report.html")]) == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "HD95 (px)" in page and " ml" not in page and "Volume difference" not in page


def test_both_eyes_are_one_person_if_it_is_said_and_warned_of_if_not(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_discs(tmp_path / "new", cases=4, seed=5)
    for number in range(4):
        for folder in ("images", "masks"):
            file = source / folder / f"p{number}.png"
            file.rename(file.with_name(f"p{number // 2}_{'LR'[number % 2]}.png"))
    for k, (words, subjects) in enumerate((([], 4), (["--subject", "*_?"], 2))):
        out = tmp_path / str(k)
        assert cli.main(["evaluate", str(model), "--source", str(source), "--out", str(out), *words]) == 0
        assert ("look like two sides of one person" in capsys.readouterr().out) is (subjects == 4)
        assert json.loads((out / "evaluation.json").read_text(encoding="utf-8"))["subjects"] == subjects
    words = ["adapt", str(model), "--source", str(source), "--out", str(tmp_path / "a.pt"), "--part", "norm"]
    assert cli.main(words) == 2
    assert "look like two sides of one person" in capsys.readouterr().out


def test_areas_are_in_square_millimetres_where_the_size_is_known() -> None:
    one, other = np.zeros((2, 1, 20, 20), bool)
    one[0, 5:15, 5:15] = other[0, 5:15, 6:16] = True
    other[0, 15, 6:16] = True
    in_pixels, in_mm = (scores_of(one, other, spacing, tolerance=1.0) for spacing in (None, (1.0, 0.5, 0.5)))
    assert in_pixels["area_difference_px"] == 10 and in_mm["area_difference_mm2"] == 2.5
    assert in_mm["hd95"] == pytest.approx(in_pixels["hd95_px"] / 2)
    nothing = np.zeros_like(one)
    assert scores_of(one, nothing, None, tolerance=1.0) == {"false_positives_px": 100}
    assert scores_of(one, nothing, (1.0, 0.5, 0.5), tolerance=1.0) == {"false_positives_mm2": 25}
    assert {*in_pixels, *in_mm} < PICTURE_RANGES.keys() and {*PICTURE_RANGES, *RANGES} <= SCORES.keys()


def test_a_bundle_makes_the_same_masks_and_names_what_it_takes(model: Path, tmp_path: Path) -> None:
    source = write_discs(tmp_path / "new", cases=2, seed=5)
    predict(model, source / "images", tmp_path / "out")
    assert cli.main(["export", str(model), "--bundle", str(tmp_path / "bundle")]) == 0
    config = json.loads((tmp_path / "bundle" / "configs" / "inference.json").read_text(encoding="utf-8"))
    metadata = json.loads((tmp_path / "bundle" / "configs" / "metadata.json").read_text(encoding="utf-8"))
    assert "segment_pictures" in config["run"][0] and list(metadata["required_packages_version"]) == ["pillow"]
    network = torch.jit.load(str(tmp_path / "bundle" / "models" / "model.ts"))
    spec = open_model(model).spec
    assert spec is not None
    inferer = ScanInferer(spec=spec, precision="fp32", sequences=3)
    files = [str(file) for file in sorted((source / "images").iterdir())]
    segment_pictures(files, network.eval(), inferer, str(tmp_path / "by"), torch.device("cpu"), colours=[0, 1, 2])
    for number in range(2):
        ours, theirs = (np.asarray(Image.open(tmp_path / name / f"p{number}_mask.png")) for name in ("out", "by"))
        np.testing.assert_array_equal(ours, theirs)
