"""``fedshift pooled`` and ``fedshift run --in-process``: runs in one process from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import SHAPES, make_image_site

from fedshift import cli
from fedshift.methods import method_set
from fedshift.schema.results import read_results


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
    assert "Karimireddy" in shown and "scaffold.option = II" in shown
    assert "change of the site's mean gradient since its last update" in shown
    assert cli.main(["methods"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == method_set.available()


def test_a_job_runs_in_one_process_and_goes_on(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["job", "fedbn", str(SHAPES), "--name", "j"]) == 0
    assert cli.main(["run", "jobs/j", "--in-process", "-w", "run"]) == 0
    assert any(Path("run/tb_events").iterdir()), "curves, as under FLARE"
    shown = capsys.readouterr().out
    assert "on shapes, accuracy in percent" in shown and str(home / "run" / "results.json") in shown
    final = read_results(home / "run").final
    assert cli.main(["run", "jobs/j", "--in-process", "--resume", "-w", "run"]) == 0
    assert read_results(home / "run").final == final
    assert cli.main(["run", "jobs/j", "--resume", "-w", "run"]) == 2
    assert "add --in-process" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["pooled", "all", str(SHAPES)],
        ["leave-one-out", "fedavg", str(SHAPES)],
        ["cross-site", str(SHAPES)],
    ],
)
def test_the_environment_says_where_to_train(
    command: list[str], home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDSHIFT_DEVICE", "abacus")
    assert cli.main([*command, "-w", "run"]) == 2
    assert "device 'abacus' cannot be used here" in capsys.readouterr().err
    assert not (home / "run" / "results.json").exists()


def test_the_protocols_say_at_once_what_no_federation_can_do(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["leave-one-out", "all", str(SHAPES), "--flare", "-w", "run"]) == 2
    assert "leave out --flare" in capsys.readouterr().err
    assert cli.main(["cross-site", str(SHAPES), "--methods", "all", "-w", "run"]) == 2
    assert not (home / "run").exists(), "the next command may use it"
