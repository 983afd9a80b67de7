"""Cores and memory of a machine, or of the container that a process runs in."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from fedshift.tasks import machine


@pytest.mark.parametrize(
    ("workers", "environ", "own"),
    [
        (None, {}, 8),
        (2, {}, 4),
        (3, {"FEDSHIFT_WORKERS": "2"}, 2),
        (None, {"FEDSHIFT_WORKERS": "4"}, 2),
        (None, {"FEDSHIFT_WORKERS": "many"}, 8),
        (None, {"FEDSHIFT_WORKERS": "0"}, 8),
        (20, {}, 1),
    ],
)
def test_workers_share_the_cores(
    workers: int | None, environ: dict[str, str], own: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 8)
    assert machine.own_cores(workers, environ) == own


def test_a_containers_limit_counts_without_its_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "GROUP", tmp_path)
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: SimpleNamespace(available=9000))
    assert machine.free_memory() == 9000, "no limit"
    files = {"memory.max": "5000", "memory.current": "4000", "memory.stat": "anon 1\ninactive_file 500"}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="ascii")
    assert machine.free_memory() == 1500
    (tmp_path / "memory.max").write_text("max", encoding="ascii")
    assert machine.free_memory() == 9000
