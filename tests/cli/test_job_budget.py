"""``fedshift job --budget``: as many rounds as fit into a time here, which is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import make_image_site

from cli.conftest import Refused
from fedshift import cli
from fedshift.cli.job_budget import parse_time
from fedshift.federation import run_time
from fedshift.federation.run_time import Step, Trial
from fedshift.flare.export import read_job_folder
from fedshift.schema.errors import ConfigError
from fedshift.schema.results import FILE_NAME
from fedshift_testing.jobs import SHAPES


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The beginning of a command for three sites whose data are here, and where its job is written."""
    for site in "ABC":
        make_image_site(tmp_path / "data", site)
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    return ["job", "fedavg", str(SHAPES), "--sites", "A,B,C", "--name", "timed", "--out", str(tmp_path)]


@pytest.mark.parametrize(("cores", "rounds"), [(1, 4), (3, 16)])
def test_rounds_fill_the_time_that_all_else_leaves(
    words: list[str], cores: int, rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three sites one after another a round takes ten seconds, and all else twenty: side by side, a third."""
    monkeypatch.setattr("fedshift.flare.simulate.cores", lambda: cores)
    step, trial = Step(train=0, evaluate=0, activations=1, network=1), Trial(round=10.0, rest=20.0)
    monkeypatch.setattr(run_time, "measure_step", lambda job, device: step)
    monkeypatch.setattr(run_time, "run_trial", lambda job, data, device: trial)
    assert cli.main([*words, "--budget", "1m"]) == 0
    assert read_job_folder(tmp_path / "timed").task.schedule.rounds == rounds


def test_a_budget_is_measured_with_the_data_here(words: list[str], tmp_path: Path) -> None:
    assert cli.main([*words, "--budget", "0.2h"]) == 0
    job = read_job_folder(tmp_path / "timed")
    assert job.task.schedule.rounds > 1
    assert cli.main([*words[:-3], "plain", *words[-2:]]) == 0
    plain = read_job_folder(tmp_path / "plain")
    schedule = plain.task.schedule.model_copy(update={"rounds": job.task.schedule.rounds})
    assert job.task == plain.task.model_copy(update={"schedule": schedule}), "nothing but its rounds is another"


@pytest.mark.parametrize(
    ("more", "code", "naming"),
    [
        (["--budget", "0.000001m"], "budget-too-small", "schedule.local_steps"),
        (["--budget", "1m", "--set", "schedule.rounds=3"], "options-clash", "schedule.rounds"),
        (["--budget", "1m", "--set", "schedule.minutes=1"], "options-clash", "schedule.minutes"),
        (["--budget", "1 hour"], "invalid-value", "1h30m"),
    ],
)
def test_what_a_budget_cannot_do_is_refused(
    words: list[str], more: list[str], code: str, naming: str, tmp_path: Path, refused: Refused
) -> None:
    refused(*words, *more, code=code, naming=naming)
    assert not (tmp_path / "timed").exists()


def test_a_run_in_the_way_is_refused_before_anything_is_measured(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setattr(run_time, "measure_step", lambda job, device: pytest.fail("it was measured"))
    (tmp_path / "timed" / "run").mkdir(parents=True)
    (tmp_path / "timed" / "run" / FILE_NAME).touch()
    refused(*words, "--budget", "1h", code="run-exists", naming="timed")


def test_a_site_without_data_here_cannot_be_measured(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "elsewhere"))
    refused(*words, "--budget", "1h", code="site-missing", naming="site A")


@pytest.mark.parametrize(("text", "seconds"), [("45m", 2700), ("1h", 3600), ("1h30m", 5400), ("2d", 172800)])
def test_times_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "1", "h", "30m1h", "-1h", "0m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_time(text)
