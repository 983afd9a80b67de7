"""``fedshift pooled``: a centralised reference from the command line, and where it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import SHAPES, make_image_site

from fedshift import cli, methods
from fedshift.reporting.results import read_results


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An $XDG_DATA_HOME with the three sites of the tests' own task; also the working directory."""
    for site in "ABC":
        make_image_site(tmp_path / "fedshift" / "phantom", site)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_trains_and_shows_the_scores(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pooled", "groupdro", str(SHAPES), "--set", "schedule.rounds=3", "-w", "run"]) == 0
    shown = capsys.readouterr().out
    assert "round 3/3" in shown and "simulated scans" in shown
    assert "on shapes, accuracy in percent" in shown
    results = read_results(home / "run")
    assert results.final is not None and set(results.final.best.sites) == {"A", "B", "C"}
    assert [record.sites["A"].train_loss for record in results.rounds] == [
        record.sites["B"].train_loss for record in results.rounds
    ], "one model, trained once"
    assert cli.main(["pooled", "groupdro", str(SHAPES), "--set", "schedule.rounds=3", "-w", "run", "--resume"]) == 0
    assert read_results(home / "run").final == results.final


def test_a_federated_method_and_a_flare_job_of_a_reference_are_refused(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["pooled", "fedavg", str(SHAPES)]) == 2
    assert "fedavg is no centralised reference (all, groupdro, irm, mmrex, vrex)" in capsys.readouterr().err
    assert cli.main(["job", "all", str(SHAPES)]) == 2
    assert "give the same arguments to 'fedshift pooled'" in capsys.readouterr().err
    assert not (home / "jobs").exists()


def test_a_methods_text_has_its_options_and_what_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["methods", "scaffold"]) == 0
    shown = capsys.readouterr().out
    assert "Karimireddy" in shown and "scaffold.option = 'II'" in shown
    assert "by how much the site's mean gradient differs" in shown
    assert cli.main(["methods"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == methods.available()
