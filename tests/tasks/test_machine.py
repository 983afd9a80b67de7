"""Cores and memory of a machine, or of the container that a process runs in."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedshift.tasks import machine


@pytest.mark.parametrize(
    ("workers", "environ", "own"),
    [
        (None, {}, 8),
        (2, {}, 4),
        (3, {"FEDSHIFT_WORKERS": "2"}, 2),
        (None, {"FEDSHIFT_WORKERS": "4"}, 2),
        (None, {"FEDSHIFT_WORKERS": "16"}, 1),
        (None, {"FEDSHIFT_WORKERS": "many"}, 8),
        (None, {"FEDSHIFT_WORKERS": "0"}, 8),
        (20, {}, 1),
    ],
)
def test_workers_share_the_cores(workers: int | None, environ: dict[str, str], own: int) -> None:
    assert machine.own_cores(workers, environ, total=8) == own


def test_a_containers_limit_counts_without_its_page_cache(tmp_path: Path) -> None:
    assert machine.free_memory(tmp_path) > 5000, "no limit"
    files = {"memory.max": "5000", "memory.current": "4000", "memory.stat": "anon 1\ninactive_file 500"}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="ascii")
    assert machine.free_memory(tmp_path) == 1500
    (tmp_path / "memory.max").write_text("max", encoding="ascii")
    assert machine.free_memory(tmp_path) > 5000
