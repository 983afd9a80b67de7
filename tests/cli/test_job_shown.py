"""``fedshift job --show``: the job itself, with a word on every key."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fedshift import cli
from fedshift.cli.job import commented, known_settings
from fedshift.federation.resolve import resolve


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
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    assert cli.main(["job", "fedfa", "--show", "--out", str(tmp_path)]) == 2
    assert "[file-missing]" in capsys.readouterr().err
