"""Tables and verdicts on patients in the README and in docs/results.md: the figures are those of the committed runs."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = ROOT / "benchmarks" / "results" / "claims"


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_the_table_on_patients_is_that_of_the_runs(page: str) -> None:
    rows = [
        line.replace("**", "")
        for line in (CLAIMS / "prostate_by_case" / "table.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| Fed")
    ]
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(rows) == 5 and "\n".join(rows) in text


@pytest.mark.parametrize(
    ("claim", "row", "against"),
    [
        ("prostate_by_slice", "FedFA", "FedAvg"),
        ("prostate_by_slice", "FedRDN", "FedAvg"),
        ("prostate_by_slice", "FedFA + FedRDN", "FedFA"),
        ("prostate_by_slice", "FedFA", "FedBN"),
        ("prostate_by_case", "FedFA", "FedAvg"),
        ("prostate_by_case", "FedRDN", "FedAvg"),
    ],
)
def test_the_verdicts_are_those_of_the_runs(claim: str, row: str, against: str) -> None:
    with (CLAIMS / claim / "table.csv").open(encoding="utf-8", newline="") as file:
        values = {(line["method"], line["column"]): float(line["value"]) for line in csv.DictReader(file)}
    p = values[row, f"p-value against {against}"]
    ours = f"{values[row, 'average']:.1f} against {values[against, 'average']:.1f}"
    (line,) = (line for line in (ROOT / "docs" / "results.md").read_text(encoding="utf-8").splitlines() if ours in line)
    assert line.endswith(f" | 3 | {float(f'{p:.2g}'):g} |")
    assert ("**refuted**" in line) == (p < 0.05 and values[row, "average"] < values[against, "average"])
