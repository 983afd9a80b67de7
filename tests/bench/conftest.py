"""Fixtures of the tests of comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import make_image_site

from fedshift_bench import estimate, runner
from fedshift_bench.cell_run import run_cell
from fedshift_bench.store import Store

START = 2.0


@pytest.fixture(autouse=True)
def known_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start of a process takes seconds: it is not measured again in every test."""
    monkeypatch.setattr(estimate, "measure_start", lambda: START)


def at_home(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """``folder`` is $XDG_DATA_HOME and the working directory; nothing else of the machine matters."""
    patch.setenv("XDG_DATA_HOME", str(folder))
    patch.setenv("FEDSHIFT_DEVICE", "cpu")
    for name in ("FEDSHIFT_DATA", "FEDSHIFT_WEIGHTS"):
        patch.delenv(name, raising=False)
    patch.chdir(folder)


def make_home(folder: Path) -> None:
    """The three sites of the tests' own task."""
    for site, gain in (("A", 1.0), ("B", 0.5), ("C", 1.3)):
        make_image_site(folder / "fedshift" / "phantom", site, gain=gain)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `make_home`, where the test is."""
    make_home(tmp_path)
    at_home(tmp_path, monkeypatch)
    return tmp_path


@dataclass
class Ended:
    """A child process that has ended with this exit code, or has not yet."""

    code: int | None = 0
    pid: int = 0
    stdin: None = None

    def poll(self) -> int | None:
        return self.code


def run_here(entry: runner.QueueEntry, store: Store, max_parallel: int) -> None:
    """In place of a process, whose start takes longer than a small cell."""
    assert entry.cell.work is not None
    run_cell(store.prepare(entry.cell.work))
    entry.process, entry.state = Ended(), "running"  # type: ignore[assignment]


@pytest.fixture
def cells_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells are run in the process of the test."""
    monkeypatch.setattr(runner, "start_child", run_here)
    monkeypatch.setattr(runner, "POLL_INTERVAL", 0.0)
