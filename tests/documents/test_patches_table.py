"""The table of what each patch is worth is that of the committed results."""

from __future__ import annotations

from pathlib import Path

from benchmarks.performance.patches import table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"


def test_the_table_of_patches_is_made_from_the_results() -> None:
    assert "\n".join(table()) in PAGE.read_text(encoding="utf-8")
