"""Finished cells of a committed ``cells.json`` are not run again, in whatever folder and on whatever machine."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from errors import raises

from fedshift import cli
from fedshift_bench import estimate, runner
from fedshift_bench.record import CellRecord, read_comparison, write_comparison
from fedshift_bench.store import Store

from .conftest import START, Ended, at_home, make_home, run_here
from .made import write_spec

pytestmark = pytest.mark.usefixtures("cells_run_here")
AXES: dict[str, Any] = {"method": {"fedavg": {"methods": "fedavg"}, "fedprox": {"methods": "fedprox"}}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An $XDG_DATA_HOME with the sites of the tests' own task, and a spec whose first row is finished elsewhere."""
    folder = tmp_path_factory.mktemp("finished")
    make_home(folder)
    with pytest.MonkeyPatch.context() as patch:
        at_home(folder, patch)
        patch.setattr(estimate, "measure_start", lambda: START)
        patch.setattr(runner, "start_child", run_here)
        compare(folder, "--only", "fedavg", "--out", "results/small")
    comparison = read_comparison(folder / "results" / "small")
    cells = [cell.model_copy(update={"source": "older"}) if cell.state == "done" else cell for cell in comparison.cells]
    write_comparison(comparison.model_copy(update={"cells": cells}), folder / "results" / "small")
    shutil.rmtree(folder / "runs")
    return folder


@pytest.fixture
def home(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `finished` for a test."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    at_home(tmp_path, monkeypatch)
    return tmp_path


def compare(folder: Path, *words: str, **changes: Any) -> int:
    spec = write_spec(folder, **{"axes": AXES, "ranking": {"against": "fedavg"}, "finished": "results", **changes})
    return cli.main(["compare", str(spec), "--jobs", "1", *words])


def rows(folder: Path) -> dict[str, CellRecord]:
    return {cell.labels["method"]: cell for cell in read_comparison(folder).cells}


@pytest.mark.slow
def test_a_committed_row_is_kept_and_the_other_is_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(home) == 0
    shown = capsys.readouterr().out
    assert "; 1 are done" in shown and "--again" in shown
    cells = rows(home / "runs" / "small")
    assert cells["fedavg"].source == "older" and cells["fedavg"].scores, "of the committed file, whatever the version"
    assert cells["fedprox"].state == "done" and cells["fedprox"].source != "older"
    assert len(list((home / "runs" / "cells").glob("*/done.json"))) == 1
    assert "older) made fedavg" in " ".join((home / "runs" / "small" / "table.md").read_text().split())
    assert (home / "runs" / "small" / "leaderboard.md").is_file()
    shutil.rmtree(home / "runs" / "cells")
    assert compare(home) == 0 and "2 are done" in capsys.readouterr().out, "its own tables are as good"


def test_ones_own_row_is_the_only_one_that_is_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(home, "--methods", "fedprox", "--set", "fedprox.mu=0.5") == 0
    cells = rows(home / "runs" / "small")
    assert "1 of 3 cells" in capsys.readouterr().out
    assert {name: cell.state for name, cell in cells.items()} == {
        "fedavg": "done",
        "fedprox": "missing",
        "fedprox (fedprox.mu=0.5)": "done",
    }
    text = (home / "runs" / "small" / "leaderboard.md").read_text(encoding="utf-8")
    assert "| fedavg |" in text and "| fedprox (fedprox.mu=0.5) |" in text


def test_again_runs_a_finished_row_anew(home: Path) -> None:
    assert compare(home, "--only", "fedavg", "--again") == 0
    assert rows(home / "runs" / "small")["fedavg"].source != "older"
    (done,) = (home / "runs" / "cells").glob("*/done.json")
    first = done.stat().st_mtime_ns
    assert compare(home, "--only", "fedavg") == 0 and done.stat().st_mtime_ns == first
    assert compare(home, "--only", "fedavg", "--again") == 0 and done.stat().st_mtime_ns > first


def test_other_settings_are_another_cell(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(home, "--dry-run", options={"optimizer.lr": 0.02}) == 0
    assert "; 0 are done" in capsys.readouterr().out


def test_other_data_are_another_cell_and_missing_ones_are_not(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = home / "fedshift" / "phantom" / "shapes" / "A" / "manifest.json"
    content = json.loads(manifest.read_text(encoding="utf-8"))
    manifest.write_text(json.dumps({**content, "licence": "another"}), encoding="utf-8")
    assert compare(home, "--dry-run") == 0 and "; 0 are done" in capsys.readouterr().out
    manifest.unlink()
    assert compare(home, "--dry-run") == 0 and "; 1 are done" in capsys.readouterr().out


def fail(entry: runner.QueueEntry, store: Store, max_parallel: int) -> None:
    assert entry.cell.work is not None
    store.prepare(entry.cell.work)
    entry.process, entry.state = Ended(code=2), "running"  # type: ignore[assignment]


def interrupt(entry: runner.QueueEntry, store: Store, max_parallel: int) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("words", [(), ("--again",)])
def test_a_run_that_failed_has_no_score_of_other_data(
    home: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = home / "fedshift" / "phantom" / "shapes" / "A" / "manifest.json"
    content = json.loads(manifest.read_text(encoding="utf-8"))
    manifest.write_text(json.dumps({**content, "licence": "another"}), encoding="utf-8")
    monkeypatch.setattr(runner, "start_child", fail)
    assert compare(home, "--only", "fedavg", *words) == 1
    cell = rows(home / "runs" / "small")["fedavg"]
    assert cell.state == "failed" and "exit code 2" in cell.reason and not cell.scores
    shutil.rmtree(home / "runs")
    monkeypatch.setattr(runner, "start_child", interrupt)
    with suppress(KeyboardInterrupt):
        compare(home, "--only", "fedavg", *words)
    assert rows(home / "runs" / "small")["fedavg"].state == "missing"


@pytest.mark.parametrize("words", [(), ("--again",), ("--dry-run",)])
def test_tables_that_cannot_be_read_are_not_overwritten_and_the_remedy_is_named(
    home: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    broken = home / "runs" / "small" / "cells.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{", encoding="utf-8")
    assert compare(home, *words) == 2
    error = capsys.readouterr().err
    assert str(broken) in error and "--out" in error and "[record-invalid]" in error
    assert broken.read_text(encoding="utf-8") == "{" and not list(home.glob("runs/cells/*/cell.json"))
    assert compare(home, "--dry-run", "--out", "elsewhere") == 0
    (home / "results" / "small" / "cells.json").write_bytes(b"\xff")
    capsys.readouterr()
    assert compare(home, "--out", "elsewhere", *words) == 2 and "'finished'" in capsys.readouterr().err


def test_tables_that_may_not_be_read_are_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with raises("file-read", naming="cells.json"):
        read_comparison(home / "results" / "small")


@pytest.mark.parametrize(
    ("words", "code"), [(("--set", "fedprox.mu=0.5"), "options-together"), (("--seeds", "7"), "unknown-number")]
)
def test_words_that_do_nothing_are_refused(
    home: Path, words: tuple[str, ...], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(home, *words) == 2
    error = capsys.readouterr().err
    assert words[0] in error and f"[{code}]" in error
