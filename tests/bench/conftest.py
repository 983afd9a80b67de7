"""Fixtures of the tests of comparisons."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fedshift_bench import estimate, runner
from fedshift_bench.cell_run import run_cell
from fedshift_bench.store import Store

START = 2.0


@pytest.fixture(autouse=True)
def known_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start of a process takes seconds: it is not measured again in every test."""
    monkeypatch.setattr(estimate, "measure_start", lambda: START)


@dataclass
class Ended:
    """A child process that has done its cell."""

    pid: int = 0
    stdin: None = None

    def poll(self) -> int:
        return 0


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
