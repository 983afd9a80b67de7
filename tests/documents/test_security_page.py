"""docs/security.md: no protection is claimed without a test that demonstrates it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## What protects against what\n")[2].partition("\n## ")[0]
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ") and not line.startswith("| against | by |")]
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


def test_the_page_has_its_table() -> None:
    assert len(ROWS) > 40 and len(NAMED) > 100


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:42])
def test_every_protection_names_its_tests(row: str) -> None:
    assert re.search(r"`tests/[\w/]+\.py::\w+`", row.rstrip(" |").rpartition(" | ")[2])


def test_every_test_that_is_named_is_there() -> None:
    missing = [f"{file}::{test}" for file, test in NAMED if f"def {test}(" not in (ROOT / file).read_text("utf-8")]
    assert not missing
