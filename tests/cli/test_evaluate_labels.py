"""``fedshift evaluate`` of a classifier: from a table of labels to the scores of each class, and a page."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from conftest import SHAPE_CLASSES, findings, make_image_site, small_image_job
from PIL import Image
from reporting.reports import Page
from sklearn import metrics

from cli.conftest import Refused
from fedshift.cli import main
from fedshift.data.arrays import open_images
from fedshift.federation.in_process import run_in_process
from fedshift.schema.protocol_results import LabelledImages
from fedshift.schema.results import BEST, read_results


def write_pictures(site: Path, folder: Path) -> list[str]:
    folder.mkdir(parents=True)
    names = []
    for number, picture in enumerate(open_images(site, size=16, channels=3).images):
        names.append(f"{number:04d}.png")
        Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0))).save(folder / names[-1])
    return names


@pytest.fixture(scope="module", params=[True, False], ids=["findings", "classes"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    """A run, and the pictures of another site with a table of two hospitals."""
    root, several = tmp_path_factory.mktemp("evaluated"), request.param
    labelled = {"labelled": findings} if several else {}
    data = {site: make_image_site(root, site, images=96, **labelled) for site in "AB"}  # type: ignore[arg-type]
    options = ("data.multi_label=true",) if several else ()
    run_in_process(small_image_job("fedavg", *options, "schedule.rounds=3", sites=("A", "B")), data, root / "run")
    names = write_pictures(make_image_site(root, "C", images=60), root / "pictures")
    lines = [f"file,patient,site,{','.join(SHAPE_CLASSES) if several else 'label'}"]
    for number, name in enumerate(names):
        cells = {key: str(int(has)) for key, has in findings(number, number % 3)["findings"].items()}  # type: ignore[attr-defined]
        values = [cells.get(key, "") for key in SHAPE_CLASSES] if several else [SHAPE_CLASSES[number % 3]]
        lines.append(",".join([name, f"P{number // 2}", "NORTH" if number % 2 else "SOUTH", *values]))
    (root / "labels.csv").write_text("\n".join(lines), encoding="utf-8")
    return root, several


def evaluate(root: Path, out: Path, *words: str) -> int:
    options = ["--table", str(root / "labels.csv"), "--images", str(root / "pictures"), "--out", str(out)]
    return main(["evaluate", str(root / "run" / BEST), *options, *words])


def test_scores_are_those_of_the_cases_in_the_table(
    trained: tuple[Path, bool], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, several = trained
    assert evaluate(root, tmp_path / "out") == 0
    told = LabelledImages.read(tmp_path / "out")
    with (tmp_path / "out" / "scores.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == told.cases == 60 and told.subjects == 30 and told.evaluation.classes is not None
    printed = capsys.readouterr().out
    assert ("thresholds" in printed) == several == bool(told.thresholds)
    if several:
        assert "A, B" in told.thresholds
    else:
        right = np.mean([row["label"] == row["predicted"] for row in rows])
        assert told.evaluation.scores["accuracy"] == pytest.approx(right)
        has = np.array([row["label"] == "disc" for row in rows])
        value = [float(row["probability disc"]) for row in rows]
        one = told.evaluation.classes["disc"]
        assert one.scores["auroc"] == pytest.approx(metrics.roc_auc_score(has, value), abs=1e-4)
        assert (one.positives, one.negatives) == (20, 40)


def test_the_model_is_scored_as_at_a_site(trained: tuple[Path, bool], tmp_path: Path) -> None:
    """On the test pictures of a site that trained: the numbers of the run's own evaluation."""
    root, several = trained
    final = read_results(root / "run").final
    assert final is not None
    pictures = write_pictures(root / "shapes" / "A", tmp_path / "pictures")
    manifest = json.loads((root / "shapes" / "A" / "manifest.json").read_text(encoding="utf-8"))
    lines = [f"file,{','.join(SHAPE_CLASSES) if several else 'label'}"]
    for name, picture in zip(pictures, manifest["pictures"], strict=True):
        if picture["split"] == "test":
            known = picture.get("findings", {})
            values = (
                [str(int(known[k])) if k in known else "" for k in SHAPE_CLASSES] if several else [picture["label"]]
            )
            lines.append(",".join([name, *values]))
    (tmp_path / "labels.csv").write_text("\n".join(lines), encoding="utf-8")
    words = ["--table", str(tmp_path / "labels.csv"), "--images", str(tmp_path / "pictures")]
    assert main(["evaluate", str(root / "run" / BEST), *words, "--site", "A", "--out", str(tmp_path / "out")]) == 0
    told, wanted = LabelledImages.read(tmp_path / "out").evaluation, final.best.evaluations["A"]["test"]
    assert told.scores["accuracy"] == wanted.scores["accuracy"]
    if several:
        assert wanted.classes is not None and told.classes is not None
        assert any("sensitivity" in one.scores for one in wanted.classes.values())
        assert {name: one.scores for name, one in told.classes.items()} == {
            name: one.scores for name, one in wanted.classes.items()
        }


def test_the_page_has_the_classes(trained: tuple[Path, bool], tmp_path: Path) -> None:
    root, _ = trained
    assert evaluate(root, tmp_path / "out") == 0
    assert main(["report", str(tmp_path / "out"), "--out", str(tmp_path / "r.html")]) == 0
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert {"summary", "evaluated", "scores", "classes", "calibration"} <= page.sections.keys()


def test_what_has_no_effect_is_refused(trained: tuple[Path, bool], tmp_path: Path, refused: Refused) -> None:
    root, _ = trained
    model, table = str(root / "run" / BEST), str(root / "labels.csv")
    out = ("--out", str(tmp_path / "out"))
    refused("evaluate", model, *out, code="table-missing")
    refused("evaluate", model, "--table", table, "--masks", str(tmp_path), *out, code="no-effect")
    refused("evaluate", model, "--table", table, "--volume", "1", *out, code="no-effect")
