"""No command overwrites a run unless it is asked to."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from conftest import SHAPES, make_image_site

from fedshift.cli import main
from fedshift.cli.run import require_free
from fedshift.federation.server.coordinator import Coordinator
from fedshift.flare.workspaces import RunFolders
from fedshift.schema.results import LAST, read_results


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three image sites, found as the phantom's are, and the working directory."""
    for site, gain in (("A", 1.0), ("B", 0.5), ("C", 1.4)):
        make_image_site(tmp_path / "fedshift" / "phantom", site, gain=gain)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(["job", "fedavg", str(SHAPES), "--name", "mine", "--set", "schedule.rounds=3"]) == 0
    return tmp_path


RUN = ("run", "jobs/mine", "--in-process", "-w", "out")


def fingerprint(folder: Path) -> str:
    return hashlib.sha256((folder / LAST).read_bytes()).hexdigest()


def test_a_finished_run_is_named_and_kept(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN]) == 0
    before = (home / "out" / "results.json").read_bytes()
    capsys.readouterr()
    for words in (RUN, RUN[:2] + RUN[3:], ("pooled", "all", str(SHAPES), "-w", "out")):
        assert main([*words]) == 2
        said = capsys.readouterr().err
        assert "out holds a finished run (fedavg on shapes, 3 rounds)" in said
        assert "--resume" in said and "--force" in said and "--workspace" in said
        assert (home / "out" / "results.json").read_bytes() == before
    assert main(["run", "jobs/mine", "-w", "out", "--resume"]) == 2
    assert "in one process: add --in-process" in capsys.readouterr().err
    assert main([*RUN, "--force"]) == 0
    assert (home / "out" / "results.json").read_bytes() != before


def test_an_interrupted_run_goes_on_only_when_asked_to(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*RUN[:-1], "whole"]) == 0
    original = Coordinator.open

    def stop(coordinator: Coordinator, round_: int) -> object:
        if round_ == 3:
            raise KeyboardInterrupt
        return original(coordinator, round_)

    with monkeypatch.context() as patch:
        patch.setattr(Coordinator, "open", stop)
        assert main([*RUN]) == 130
    capsys.readouterr()
    assert main([*RUN]) == 2
    assert "a run that stopped after round 2 of 3 (fedavg on shapes)" in capsys.readouterr().err
    assert len(read_results(home / "out").rounds) == 2
    assert main([*RUN, "--resume"]) == 0
    assert fingerprint(home / "out") == fingerprint(home / "whole")


def test_a_job_folder_with_a_run_inside_is_not_replaced(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN[:-1], "jobs/mine/run"]) == 0
    job = ["job", "fedavg", str(SHAPES), "--name", "mine"]
    assert main(job) == 2
    assert "jobs/mine holds a run (jobs/mine/run)" in capsys.readouterr().err
    assert (home / "jobs" / "mine" / "run" / LAST).is_file()
    assert main([*job, "--force"]) == 0
    assert not (home / "jobs" / "mine" / "run").exists()


def test_force_replaces_a_run_that_was_made_the_other_way(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN]) == 0
    out = home / "out"
    require_free(out, resume=False, force=True, in_process=False)
    server = RunFolders(out).server
    server.mkdir(parents=True)
    for path in out.iterdir():  # as the simulator would have left it
        if path.name != "server":
            path.rename(server / path.name)
    assert main([*RUN]) == 2
    assert "out holds a finished run (fedavg on shapes, 3 rounds): use --resume" in capsys.readouterr().err
    assert main([*RUN, "--force"]) == 0
    assert (out / LAST).is_file() and not (out / "server").exists()


def test_a_workspace_that_is_a_file_is_a_sentence(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "out").write_text("", encoding="utf-8")
    assert main([*RUN, "--force"]) == 2
    assert "out is not a folder: give another -w" in capsys.readouterr().err
