"""``fedshift job``: what it chooses by itself, what it refuses, and the job with a word on every key."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cli.conftest import Refused
from fedshift import cli
from fedshift.cli.job import commented, known_settings
from fedshift.federation.resolve import resolve
from fedshift.flare.export import read_job_folder
from fedshift.schema.job import BY_CLOCK


def test_practical_needs_no_method_and_says_what_it_chose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path), "--sites", "BIDMC,HK"]
    assert cli.main(["job", "prostate", "--practical", *out]) == 0
    methods, settings, _ = capsys.readouterr().out.splitlines()
    assert methods.startswith("methods: fedavg: ") and settings.startswith("settings: the task's default: ")
    chosen = read_job_folder(tmp_path / "fedavg_prostate")
    assert cli.main(["job", "fedavg", "prostate", "--name", "named", *out]) == 0
    named = read_job_folder(tmp_path / "named")
    assert chosen.model_copy(update={"name": "named"}) == named


@pytest.mark.parametrize(
    ("line", "code", "naming"),
    [
        (["fedavg", "prostate", "--practical"], "options-clash", "'fedavg'"),
        (["--practical", "prostate", "--protocol", "quick"], "options-clash", "--protocol quick"),
        (["--practical", "hippocampus"], "no-recipe", "apps/hippocampus.yaml"),
        (["--practical", "nothing"], "unknown-task", "'nothing'"),
    ],
)
def test_practical_refuses_what_contradicts_it(
    line: list[str], code: str, naming: str, tmp_path: Path, refused: Refused
) -> None:
    refused("job", *line, "--out", tmp_path, code=code, naming=naming)
    assert not list(tmp_path.iterdir())


def test_a_job_without_a_task_is_a_mistake_of_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["job", "fedavg", "--out", str(tmp_path)])
    assert ended.value.code == 2


def test_a_job_whose_rounds_end_by_the_clock_says_that_it_cannot_be_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["job", "fedavg", "prostate", "--protocol", "quick", "--out", str(tmp_path)]
    assert cli.main([*line, "--set", "schedule.minutes=30"]) == 0
    assert BY_CLOCK in capsys.readouterr().out
    assert cli.main([*line, "--name", "plain"]) == 0
    assert "clock" not in capsys.readouterr().out


@pytest.mark.parametrize(("sites", "warned"), [("BIDMC,HK", True), ("BIDMC,HK,UCL", False)])
def test_sums_that_sites_do_not_take_part_in_are_told_when_the_job_is_made(
    sites: str, warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["job", "fedavg", "prostate", "--sites", sites, "--out", str(tmp_path)]
    assert cli.main([*words, "--set", "federation.encryption=masks"]) == 0
    assert ("privacy.min_sites_in_sum" in capsys.readouterr().out) is warned


@pytest.mark.parametrize(
    ("task", "methods", "options"),
    [
        ("prostate", "fedfa+fedrdn", {}),
        ("prostate", "fedavg", {"protocol": "quick"}),
        ("office_caltech", "fraug", {}),
        ("prostate", "fedbn", {"options": ["federation.robust.rule=median", "fedbn.norms=all"]}),
    ],
)
def test_what_is_shown_is_the_job_and_each_setting_has_a_comment_above(
    task: str, methods: str, options: dict[str, object]
) -> None:
    job = resolve(task, methods, **options)  # type: ignore[arg-type]
    shown = commented(job)
    assert yaml.safe_load(shown) == job.dump()
    lines = shown.splitlines()
    leaves = [setting.key for setting in known_settings(job).values() if setting.key.count(".") == 2]
    for key in (key for key in leaves if key.startswith(("task.schedule.", "task.data.", "methods."))):
        name = key.rpartition(".")[2]
        places = [number for number, line in enumerate(lines) if line.startswith((f"    {name}:", f"    # {name}:"))]
        assert any(lines[place - 1].startswith("    # ") for place in places), key


def test_nothing_is_written_and_a_folder_that_is_there_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    command = ["job", "fedfa", "prostate", "--protocol", "quick", "--out", str(tmp_path)]
    assert cli.main([*command, "--show"]) == 0
    shown = capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert cli.main(command) == 0
    capsys.readouterr()
    for name in ("fedfa_prostate", str(tmp_path / "fedfa_prostate")):
        assert cli.main(["job", name, "--show", "--out", str(tmp_path)]) == 0
        assert capsys.readouterr().out == shown
    refused("job", "fedfa", "--show", "--out", tmp_path, code="file-missing")
