"""``fedshift predict`` by a model of findings: every probability, what is said to be there, and by whose threshold."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SHAPE_CLASSES, findings, make_image_site, small_image_job
from PIL import Image

from fedshift.cli import main
from fedshift.cli.predict_table import RECORD, TABLE
from fedshift.data.arrays import open_images
from fedshift.federation.in_process import run_in_process
from fedshift.inference.classify import thresholds_of
from fedshift.inference.model import open_model
from fedshift.inference.ready import Choice
from fedshift.schema.results import BEST, read_results


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("findings")
    data = {site: make_image_site(root, site, images=n, labelled=findings) for site, n in (("A", 120), ("B", 96))}
    job = small_image_job("fedavg", "data.multi_label=true", "schedule.rounds=3", sites=("A", "B"))
    run_in_process(job, data, root / "run")
    images = open_images(data["A"], size=16, channels=3).images
    for number in range(3):
        Image.fromarray(np.ascontiguousarray(images[number].transpose(1, 2, 0))).save(root / f"{number}.png")
    return root


def predict(run: Path, out: Path, *words: str) -> tuple[list[dict[str, str]], dict[str, Any]]:
    files = [str(run / f"{number}.png") for number in range(3)]
    assert main(["predict", str(run / "run" / BEST), *files, "--out", str(out), *words]) == 0
    with (out / TABLE).open(encoding="utf-8") as file:
        return list(csv.DictReader(file)), json.loads((out / RECORD).read_text(encoding="utf-8"))


def test_findings_are_decided_by_the_thresholds_of_validation(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    final = read_results(run / "run").final
    assert final is not None
    chosen = {
        site: {name: one.threshold for name, one in (parts["test"].classes or {}).items()}
        for site, parts in final.best.evaluations.items()
    }
    model = open_model(run / "run" / BEST)
    assert model.header.thresholds == chosen
    table, record = predict(run, tmp_path / "all")
    values = record["thresholds"]["values"]
    assert "median" in record["thresholds"]["from"] and "A, B" in record["thresholds"]["from"]
    assert record["thresholds"]["from"] in capsys.readouterr().out
    for row, entry in zip(table, record["images"], strict=True):
        shares = {name: float(row[f"probability {name}"]) for name in SHAPE_CLASSES}
        assert entry["probabilities"] == shares
        expected = [name for name in SHAPE_CLASSES if shares[name] >= values[name]]
        assert row["findings"] == " | ".join(expected) and entry["findings"] == expected
    _, of_one = predict(run, tmp_path / "one", "--site", "B")
    assert of_one["thresholds"]["values"] == pytest.approx(chosen["B"], abs=1e-4)
    assert "B" in of_one["thresholds"]["from"] and "A" not in of_one["thresholds"]["from"]
    state = Choice(state=run / "run" / "site_state" / "A")
    assert thresholds_of(model, state).values == pytest.approx(chosen["A"])


def test_what_nobody_has_chosen_is_said(run: Path) -> None:
    model = open_model(run / "run" / BEST)
    some = model.header.model_copy(update={"thresholds": {"A": {"disc": 0.3}, "B": {"disc": 0.2}}})
    none = model.header.model_copy(update={"thresholds": {}})
    thresholds = {
        name: thresholds_of(type(model)(model.path, h, model.task, {}, {}), Choice())
        for name, h in (("some", some), ("none", none))
    }
    assert (
        thresholds["some"].values == {"disc": 0.2, "square": 0.5, "bar": 0.5}
        and "square, bar" in thresholds["some"].source
    )
    assert set(thresholds["none"].values.values()) == {0.5}


def test_an_overlay_shows_what_speaks_for_a_finding(run: Path, tmp_path: Path) -> None:
    _, record = predict(run, tmp_path / "out", "--overlay")
    written = [entry["written"]["saliency"] for entry in record["images"]]
    assert written == ["0_saliency.png", "1_saliency.png", "2_saliency.png"]
    pairs = []
    for name in written:
        with Image.open(tmp_path / "out" / name) as picture:
            pairs.append([np.asarray(picture.crop((x, 60, x + 300, 360)), float) for x in (8, 336)])
    assert all(np.ptp(left, axis=2).max() > 0 for left, _ in pairs)
    assert not all(np.array_equal(left, right) for left, right in pairs), "of a class that some place speaks for"
