"""The table on patients in the README and in docs/results.md: its figures are those of the committed runs."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "benchmarks" / "results" / "claims" / "prostate_by_case" / "table.md"


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_the_table_on_patients_is_that_of_the_runs(page: str) -> None:
    rows = [
        line.replace("**", "") for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| Fed")
    ]
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(rows) == 5 and "\n".join(rows) in text
