"""The README lists the methods and the tasks that there are."""

from __future__ import annotations

import re
from pathlib import Path

from fedshift.methods import method_set

ROOT = Path(__file__).resolve().parents[2]


def named(section: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition(f"**{section}**")[2].partition("\n\n**")[0]
    return sorted(re.findall(r"`([a-z_\d]+)`", text))


def test_every_method_and_every_task_is_listed_once() -> None:
    assert named("Methods") == method_set.available()
    assert named("Tasks") == sorted(path.stem for path in (ROOT / "apps").glob("*.yaml"))
