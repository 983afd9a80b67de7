"""A job is compared with the sites that are prepared on the machine that makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from surveysites import survey_site

from fedshift.cli import main


@pytest.mark.parametrize(
    ("changes", "misfit"),
    [
        ({}, ""),
        ({"classes": ["background", "rim", "core"]}, "was prepared with the classes background, core, rim, the job"),
        ({"sequences": ["T2"]}, "has no sequence 'T2'"),
    ],
)
def test_a_job_says_what_of_the_data_here_does_not_fit_it(
    changes: dict[str, Any],
    misfit: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    for site, seeds in (("A", (1, 2, 3)), ("B", (4, 5, 6))):
        survey_site(tmp_path / "data", site, seeds)
    assert main(["survey", "organ"]) == 0
    task = yaml.safe_load((tmp_path / "surveys" / "organ" / "organ.yaml").read_text(encoding="utf-8"))
    task["sites"].append("ELSEWHERE")
    if "sequences" in changes:
        task["data"] |= changes
    else:
        task |= changes
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")
    capsys.readouterr()
    assert main(["job", "fedavg", "ours.yaml"]) == 0
    said = capsys.readouterr().out
    assert misfit in said and said.count("fit the data") == (2 if misfit else 0)
