"""A model card: made from a model's file and its run's results, and of no other run's."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from volumesites import blob_job, make_volume_site

from fedshift.cli import main
from fedshift.federation.in_process import run_in_process
from fedshift.reporting import card
from fedshift.schema.results import BEST, Results, read_results
from reporting.reports import Page


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("card")
    sites = {
        "A": make_volume_site(root, "A", cases=7, val=3),
        "B": make_volume_site(root, "B", cases=7, val=3, gain=2.0, spacing=(3.0, 1.0, 1.0)),
    }
    options = ("evaluation.reference=true", "evaluation.mirror=true", "evaluation.largest_component=true")
    run_in_process(blob_job(root, *options, "schedule.rounds=2"), sites, root / "run")
    return root / "run"


def made(tmp_path: Path, *words: object) -> tuple[str, dict]:
    out = tmp_path / "card.html"
    assert main(["card", *map(str, words), "--out", str(out)]) == 0
    return out.read_text(encoding="utf-8"), json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))


def test_the_card_says_what_the_records_say(run: Path, tmp_path: Path) -> None:
    page, record = made(tmp_path, run / BEST)
    results = read_results(run)
    assert results.final is not None
    assert record["model"]["sha256"] == hashlib.sha256((run / BEST).read_bytes()).hexdigest()
    assert record["model"]["sha256"] in page
    assert record["data"]["cases"] == {site: {"test": 1, "train": 3, "val": 3} for site in ("A", "B")}
    assert record["scores"] == results.final.best.model_dump(mode="json")
    assert record["versions"] == results.versions and results.versions["torch"] in page
    assert record["trained"]["classes"] == ["background", "left", "right"]
    (spacing,) = record["shift"]["spacing"]
    assert spacing["sites"] == ["A", "B"] and spacing["distance"] == pytest.approx(0.195, abs=0.01)
    for text in ("Intended use", "Scores of every site", "Shift between the sites", "Privacy", "Model card"):
        assert text in page
    predictions = Page(page).facts["Predictions take"]
    assert "mirror images" in predictions and "largest part" in predictions
    assert str(run) not in page and str(run) not in json.dumps(record), "no path of this machine"


def test_a_phantom_says_so_on_top(run: Path, tmp_path: Path) -> None:
    page, record = made(tmp_path, run / BEST)
    assert record["phantom"] is True and record["research_use_only"] == card.RESEARCH
    assert page.index("PHANTOM") < page.index("What it is")
    assert record["limits"][0] == card.PHANTOM and card.RESEARCH in page
    assert page.count(card.PHANTOM) == 1


def test_without_results_it_has_no_test_scores_and_says_so(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = tmp_path / "alone" / "model.pt"
    alone.parent.mkdir()
    alone.write_bytes((run / BEST).read_bytes())
    page, record = made(tmp_path, alone)
    assert record["data"]["cases"] == {site: {"test": 1, "train": 3, "val": 3} for site in ("A", "B")}
    assert "without test scores" in capsys.readouterr().out
    assert record["scores"] == {} and "card_without_results" in Page(page).passages
    page, record = made(tmp_path, alone, run)
    assert record["scores"]


def test_results_of_another_run_are_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other: Results = read_results(run)
    other.job.seed += 1
    other.write(tmp_path)
    assert main(["card", str(run / BEST), str(tmp_path), "--out", str(tmp_path / "card.html")]) == 2
    assert "[other-run]" in capsys.readouterr().err
    other = read_results(run)
    other.job.settings["optimizer"]["lr"] *= 10
    other.write(tmp_path)
    assert main(["card", str(run / BEST), str(tmp_path), "--out", str(tmp_path / "card.html")]) == 2
    assert "[other-run]" in capsys.readouterr().err
    other.job.settings = {}  # a record of an earlier version
    other.write(tmp_path)
    assert main(["card", str(run / BEST), str(tmp_path), "--out", str(tmp_path / "card.html")]) == 0
    assert main(["card", str(run / BEST), "--out", str(tmp_path / "card.txt")]) == 2
    assert "ends in .html" in capsys.readouterr().err
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["card", str(run / BEST), "--out", str(tmp_path / "file" / "card.html")]) == 2
    error = capsys.readouterr().err
    assert "[file-unwritable]" in error and "card.html" in error
