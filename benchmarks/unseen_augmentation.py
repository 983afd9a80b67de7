"""Where augmentation for places that take no part helps and where it harms, of all data sets, paired by case.

    python benchmarks/unseen_augmentation.py

reads `cells.json` of the comparisons NAME_unseen in benchmarks/results/recipes, each with the task's own augmentation
as the first row, and writes benchmarks/results/unseen_augmentation.md. A case's score is the mean over the seeds that
both rows have. Intervals are Student's at 95 %: that of a site is over its cases, where single cases have scores, and
is of other cases there with these models; that of a data set is over seeds, of the mean over sites, and is of other
trainings at these sites.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

import frame
import numpy as np
from scipy import stats

RECIPES = frame.RESULTS / "recipes"
OUT = frame.RESULTS / "unseen_augmentation.md"
DATA = {
    "hippocampus": "hippocampus, simulated scanners",
    "lungs": "lungs on radiographs",
    "nuclei": "nuclei",
    "retina": "retinal vessels",
    "office": "Office-Caltech 10",
    "pacs": "PACS",
}


def main() -> None:
    """Write the page."""
    rows = [row for name in DATA if (RECIPES / f"{name}_unseen").is_dir() for row in differences(name)]
    page = frame.page("unseen_augmentation", rows=rows, summary=list(summaries(rows)))
    OUT.write_text(page, encoding="utf-8")
    print(page)


def differences(name: str) -> Iterator[dict[str, Any]]:
    """Each augmentation against the task's own, at each site left out."""
    record = frame.read(RECIPES / f"{name}_unseen" / "cells.json", None)
    baseline, *others = record["axes"]["augmentation"]
    metric = record["metric"]
    finished = {(c["labels"]["augmentation"], c["seed"]): c for c in record["cells"] if c["state"] == "done"}
    for other in others:
        seeds = [seed for seed in record["seeds"] if (baseline, seed) in finished and (other, seed) in finished]
        pairs = [(finished[baseline, seed], finished[other, seed]) for seed in seeds]
        for site in pairs[0][0]["shown"]["held_out"] if pairs else ():
            scores = np.array([[score(cell, site, metric) for cell in pair] for pair in pairs])
            before, after = scores.mean(0)
            low, high = interval(pairs, site)
            yield {
                "data": DATA[name],
                "metric": metric,
                "site": site,
                "seeds": len(seeds),
                "baseline": baseline,
                "other": other,
                "before": 100 * float(before),
                "after": 100 * float(after),
                "difference": 100 * float(after - before),
                "by_seed": 100 * (scores[:, 1] - scores[:, 0]),
                "interval": None if low is None else (100 * low, 100 * high),
            }


def score(cell: Mapping[str, Any], site: str, metric: str) -> float:
    """Score on all cases of the site that was left out."""
    return float(cell["scores"]["best"]["held_out"][site][metric])


def interval(pairs: list[tuple[Any, Any]], site: str) -> tuple[Any, Any]:
    """Of the mean difference over cases, in parts of 1; twice None without scores of single cases."""
    told = [[cell.get("by_case", {}).get("best", {}).get("held_out", {}).get(site) for cell in pair] for pair in pairs]
    if not all(all(pair) for pair in told):
        return None, None
    return students(np.mean([np.subtract(after, before) for before, after in told], axis=0))


def students(change: np.ndarray) -> tuple[float, float]:
    """The interval of the mean of differences (n,)."""
    half = stats.t.ppf(0.975, len(change) - 1) * stats.sem(change)
    return float(change.mean() - half), float(change.mean() + half)


def summaries(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row for each data set and augmentation: means over sites, and where it is told to help or harm."""
    for data, other in dict.fromkeys((row["data"], row["other"]) for row in rows):
        part = [row for row in rows if (row["data"], row["other"]) == (data, other)]
        told = [row for row in part if row["interval"] is not None]
        by_seed = np.mean([row["by_seed"] for row in part], axis=0)
        yield {
            **{key: part[0][key] for key in ("data", "metric", "baseline", "other", "seeds")},
            **{key: fmean(row[key] for row in part) for key in ("before", "after", "difference")},
            "over_seeds": students(by_seed) if len(by_seed) > 1 else None,
            "p": float(stats.ttest_1samp(by_seed, 0).pvalue) if len(by_seed) > 1 else None,
            "higher": [row["site"] for row in told if row["interval"][0] > 0],
            "lower": [row["site"] for row in told if row["interval"][1] < 0],
        }


if __name__ == "__main__":
    main()
