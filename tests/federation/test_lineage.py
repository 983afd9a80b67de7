"""A model names the sites that trained it and what it started from, and no report calls such a site new."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import SHAPES, make_image_site

from fedshift.cli import main
from fedshift.federation.model_files import header_of, read_model_file
from fedshift.reporting.report.runs import Run
from fedshift.reporting.report.section import Findings
from fedshift.reporting.report.summary import summary
from fedshift.reporting.table import scores_table
from fedshift.schema.results import LAST, Results, read_results

MARK = "took part in training the starting weights"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for site, gain in (("A", 1.0), ("B", 0.5), ("C", 1.4)):
        make_image_site(tmp_path / "fedshift" / "phantom", site, gain=gain)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for name in ("FEDSHIFT_DATA", "FEDSHIFT_WEIGHTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(name: str, *words: str, methods: str = "fedavg") -> Results:
    job = ["job", methods, str(SHAPES), "--name", name, *words, "--set", "schedule.rounds=1"]
    assert main(job) == 0
    assert main(["run", f"jobs/{name}", "--in-process"]) == 0
    return read_results(Path("runs") / name)


def sentences(results: Results) -> str:
    (block,) = summary(Run(Path("results.json"), results)).blocks
    assert isinstance(block, Findings)
    return "\n".join(finding.sentence.text for finding in block.findings)


def test_a_site_that_trained_the_starting_weights_is_not_called_new(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train("first", "--held-out", "C")
    assert first.job.lineage == {} and first.job.dataset == "shapes"
    assert "At C, which" in sentences(first)

    second = train("second", "--held-out", "B", "--weights", f"runs/first/{LAST}")
    assert second.job.lineage == {"shapes": ("A", "B")} and second.job.trained_before(["B", "C"]) == ["B"]
    out = capsys.readouterr().out
    assert f"held out: B {MARK}" in out, "when the job is made"
    assert f"B {MARK}: not new" in " ".join(out.split()), "below the table"
    text = sentences(second)
    assert f"At B, which {MARK}, it reaches" in text and "never trained" not in text
    assert json.loads((home / "runs" / "second" / "results.json").read_text(encoding="utf-8"))["job"]["lineage"] == {
        "shapes": ["A", "B"]
    }


def test_lineage_goes_through_weights_of_weights(home: Path) -> None:
    train("first", "--sites", "A,B")
    train("second", "--sites", "B,C", "--weights", f"runs/first/{LAST}")
    path = Path("runs") / "second" / LAST
    header = header_of(read_model_file(path), where=str(path))
    assert header.sites == ("B", "C") and header.lineage == {"shapes": ("A", "B")}
    third = train("third", "--held-out", "A", "--weights", str(path))
    assert third.job.lineage == {"shapes": ("A", "B", "C")} and MARK in sentences(third)


def test_a_run_that_goes_on_keeps_its_lineage(home: Path) -> None:
    train("first", "--sites", "A,B")
    second = train("second", "--sites", "A,C", "--weights", f"runs/first/{LAST}")
    (home / "runs" / "second" / "results.json").unlink()
    assert main(["run", "jobs/second", "--in-process", "--resume"]) == 0
    assert read_results(home / "runs" / "second").job.lineage == second.job.lineage == {"shapes": ("A", "B")}


def test_every_site_of_leave_one_out_is_named_that_the_weights_knew(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train("first", "--sites", "A,B")
    words = ["leave-one-out", "fedavg", str(SHAPES), "--weights", f"runs/first/{LAST}", "-w", "loo"]
    assert main([*words, "--set", "schedule.rounds=1"]) == 0
    assert f"A, B {MARK}: not new" in " ".join(capsys.readouterr().out.split())
    assert main(["report", "loo", "--out", "loo.html"]) == 0
    assert f"A and B {MARK}" in (home / "loo.html").read_text(encoding="utf-8")


def test_an_own_model_of_cross_site_comes_from_all_sites_that_were_combined(home: Path) -> None:
    for methods, others in (("fedavg", {"shapes": ("A", "B", "C")}), ("single", {})):
        words = ["cross-site", str(SHAPES), "--methods", methods, "--keep-models", "-w", methods]
        assert main([*words, "--set", "schedule.rounds=2"]) == 0
        path = home / methods / "own_models" / "B.pt"
        header = header_of(read_model_file(path), where="B.pt")
        assert header.sites == ("B",) and header.lineage == others


def test_the_table_says_nothing_of_sites_that_are_new(home: Path) -> None:
    first = train("first", "--held-out", "C")
    assert MARK not in str(scores_table(first).caption)
