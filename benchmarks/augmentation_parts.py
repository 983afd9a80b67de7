"""What each change of the preset `scanner` does at hospitals that took no part: added alone, and left out alone.

    python benchmarks/augmentation_parts.py

reads `cells.json` of the scale `parts` of recipes/prostate_unseen_scanner.yaml and writes
benchmarks/results/augmentation_parts.md. A difference is the mean over the patients of all hospitals that are held out,
paired by patient, with Student's interval at 95 %: it is of other patients with these models, not of other trainings.
What another training gives is shown by the rows of several seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import frame
import numpy as np
from scipy import stats

FOLDER = frame.RESULTS / "recipes" / "prostate_unseen_scanner_parts"
OUT = frame.RESULTS / "augmentation_parts.md"
MOVES, PRESET = "scanner, moves alone", "scanner"
ADDED, LEFT_OUT = "moves and ", "without "


def main() -> None:
    """Write the page."""
    record = frame.read(FOLDER / "cells.json", None)
    finished = {
        (c["labels"]["augmentation"], c["seed"]): by_patient(c) for c in record["cells"] if c["state"] == "done"
    }
    changes = [label.removeprefix(ADDED) for label in record["axes"]["augmentation"] if label.startswith(ADDED)]
    rows = [
        {
            "change": change,
            "added": compared(finished.get((ADDED + change, 0)), finished[MOVES, 0]),
            "left_out": compared(finished.get((LEFT_OUT + change, 0)), finished[PRESET, 0]),
        }
        for change in changes
    ]
    seeds = {
        name: [100 * float(scores.mean()) for (label, _), scores in sorted(finished.items()) if label == name]
        for name in (MOVES, PRESET)
    }
    page = frame.page("augmentation_parts", rows=rows, seeds=seeds, patients=len(finished[MOVES, 0]))
    OUT.write_text(page, encoding="utf-8")
    print(page)


def by_patient(cell: Mapping[str, Any]) -> np.ndarray:
    """Dice of each patient of the sites that are held out, in parts of 1."""
    return np.concatenate([scores for _, scores in sorted(cell["by_case"]["best"]["held_out"].items())])


def compared(scores: np.ndarray | None, reference: np.ndarray) -> dict[str, float] | None:
    """Mean of a row, and its difference to the row that it changes, in percent; None if it has not ended."""
    if scores is None:
        return None
    change = 100 * (scores - reference)
    half = stats.t.ppf(0.975, len(change) - 1) * stats.sem(change)
    mean = float(change.mean())
    return {"mean": 100 * float(scores.mean()), "difference": mean, "low": mean - half, "high": mean + half}


if __name__ == "__main__":
    main()
