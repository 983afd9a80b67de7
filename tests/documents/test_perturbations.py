"""What docs/results.md says that normalisation takes away is what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedshift.federation.effect import LEAST

ROOT = Path(__file__).resolve().parents[2]
FOUND = json.loads((ROOT / "benchmarks" / "results" / "perturbations.json").read_text(encoding="utf-8"))
ROWS = FOUND["made_up"] | {
    "prostate, the default recipe (small), four real sites, untrained": FOUND["real"]["untrained"],
    "the same, trained": FOUND["real"]["trained"],
}
COLUMNS = (
    ("fedrdn", "normalised images"),
    ("fedfa", "shifted means of features"),
    ("fedfa", "scaled deviations of features"),
    ("mixstyle", "exchanged statistics of features"),
)


def percent(effect: float) -> str:
    return f"{100 * effect:.2f}" if effect < 0.1 else f"{100 * effect:.0f}"


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_table_is_measured(row: str) -> None:
    cells = [percent(ROWS[row][method][what]) for method, what in COLUMNS]
    assert f"| {row} | {' | '.join(cells)} |" in (ROOT / "docs" / "results.md").read_text(encoding="utf-8").splitlines()


def test_the_threshold_parts_what_is_taken_away_from_what_comes_through() -> None:
    """In the trials that a job makes: within the default recipes, and everywhere else."""
    assert FOUND["least"] == LEAST
    defaults: dict[str, dict[str, Any]] = {row: FOUND["made_up"][row] for row in FOUND["made_up"] if "default" in row}
    little = [of["fedrdn"]["normalised images"] for of in defaults.values()]
    little += [of["fedfa"]["shifted means of features"] for of in defaults.values()]
    assert max(little) < 0.7 * LEAST
    much = [size for of in FOUND["made_up"].values() for named in of.values() for size in named.values()]
    assert min(size for size in much if size >= LEAST) > 1.5 * LEAST


def test_other_pages_quote_the_same() -> None:
    trained = FOUND["real"]["trained"]
    page = " ".join((ROOT / "benchmarks" / "results" / "recipes" / "README.md").read_text(encoding="utf-8").split())
    assert f"it changes {percent(trained['fedrdn']['normalised images'])} % of the outputs' variation" in page
    assert f"shifted means of FedFA {percent(trained['fedfa']['shifted means of features'])} %" in page
