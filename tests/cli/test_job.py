"""``fedshift job``: what it chooses by itself, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedshift import cli
from fedshift.flare.export import read_job_folder


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
    ("line", "sentence"),
    [
        (["fedavg", "prostate", "--practical"], "leave out 'fedavg'"),
        (["--practical", "prostate", "--protocol", "quick"], "leave out --protocol quick"),
        (["--practical", "hippocampus"], "apps/hippocampus.yaml has no practical recipe, only prostate has"),
        (["--practical", "nothing"], "there is no task 'nothing'"),
    ],
)
def test_practical_refuses_what_contradicts_it(
    line: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["job", *line, "--out", str(tmp_path)]) == 2
    assert sentence in capsys.readouterr().err
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
    said = "rounds end by the sites' clocks (schedule.minutes), so this run cannot be repeated bit for bit"
    assert said in capsys.readouterr().out
    assert cli.main([*line, "--name", "plain"]) == 0
    assert "clock" not in capsys.readouterr().out


@pytest.mark.parametrize(("sites", "warned"), [("BIDMC,HK", True), ("BIDMC,HK,UCL", False)])
def test_sums_that_sites_do_not_take_part_in_are_told_when_the_job_is_made(
    sites: str, warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["job", "fedavg", "prostate", "--sites", sites, "--out", str(tmp_path)]
    assert cli.main([*words, "--set", "federation.encryption=masks"]) == 0
    assert ("a site takes part in sums over 3 or more only" in capsys.readouterr().out) is warned
