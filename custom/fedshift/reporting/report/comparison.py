"""Several runs side by side: means over seeds, the best of each site, and paired differences of cases."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from fedshift.reporting.report.runs import Run, distribution, named
from fedshift.reporting.report.section import Block, Cell, Column, Row, Section, Table, Text
from fedshift.reporting.report.wording import Metric, counted, listed, metric

FEWEST_PAIRS = 3


@dataclass(frozen=True)
class _Setting:
    """Runs that differ in nothing but their seed."""

    label: str
    runs: Sequence[Run]


def compare(runs: Sequence[Run]) -> list[Section]:
    """A section for each task that more than one run has a result of."""
    sections = []
    by_task: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.results.final is not None:
            by_task.setdefault((run.results.job.task, run.results.job.metric), []).append(run)
    for number, ((task, name), members) in enumerate(by_task.items()):
        if len(members) > 1:
            sections.append(_section(f"comparison-{number}", task, name, members))
    return sections


def _section(key: str, task: str, name: str, runs: Sequence[Run]) -> Section:
    settings = _settings(runs)
    sites = list(dict.fromkeys(site for run in runs for site in run.trained))
    same = [site for site in sites if len(_fingerprints(runs, site)) == 1]
    other = [site for site in sites if site not in same]
    blocks: list[Block] = [_table(name, settings, sites)]
    if other:
        blocks.append(
            Text(
                f"Not the same data in all runs: {listed(other)} (other manifests). Differences there say nothing "
                "about "
                "the methods."
            )
        )
    if any(len(setting.runs) > 1 for setting in settings):
        blocks.append(Text("After ± the standard deviation over seeds."))
    else:
        blocks.append(Text("One seed each: small differences may be chance."))
    blocks += _paired(name, settings, same)
    return Section(
        key,
        f"Comparison on {task}",
        f"Test {metric(name).heading} of each run's best model; the best of a row is bold, which does not mean that "
        "it is "
        "better than chance would have it: see the paired differences where there are any.",
        blocks,
    )


def _settings(runs: Sequence[Run]) -> list[_Setting]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        told = run.results.job.model_dump(mode="json", exclude={"name", "seed"})
        groups.setdefault(json.dumps([told, run.trained], sort_keys=True), []).append(run)
    labels = [run.label for run in named([members[0] for members in groups.values()])]
    return [_Setting(label, members) for label, members in zip(labels, groups.values(), strict=True)]


def _fingerprints(runs: Sequence[Run], site: str) -> set[str]:
    return {run.results.data[site].manifest_sha256 for run in runs if site in run.results.data}


def _test(run: Run, site: str, name: str) -> float | None:
    assert run.results.final is not None
    value = run.results.final.best.sites.get(site, {}).get("test", {}).get(name)
    return value if value is not None and math.isfinite(value) else None


def _table(name: str, settings: Sequence[_Setting], sites: Sequence[str]) -> Table:
    of = metric(name)
    rows: list[Row] = []
    for site in sites:
        values = [[v for run in s.runs if (v := _test(run, site, name)) is not None] for s in settings]
        rows.append([site, *_cells(of, values)])
    means = []
    for setting in settings:
        by_run = [[_test(run, site, name) for site in sites] for run in setting.runs]
        # A mean over fewer sites is no mean to compare with.
        means.append([fmean(v for v in row if v is not None) for row in by_run if None not in row])
    foot: list[Row] = [[Cell("mean", strong=True), *_cells(of, means)]]
    columns = [Column("Site", numeric=False)]
    columns += [Column(s.label, detail=counted(len(s.runs), "seed") if len(s.runs) > 1 else "") for s in settings]
    return Table(columns, rows, foot, caption=f"Test {of.heading}, best model")


def _cells(of: Metric, values: Sequence[Sequence[float]]) -> list[Cell]:
    means = [fmean(found) if found else None for found in values]
    known = [mean for mean in means if mean is not None]
    best = (max if of.higher_is_better else min)(known, default=None)
    return [
        Cell(
            of.number(mean),
            f"± {of.number(stdev(found))}" if len(found) > 1 else "",
            strong=mean is not None and mean == best and len(known) > 1,
        )
        for mean, found in zip(means, values, strict=True)
    ]


def _paired(name: str, settings: Sequence[_Setting], sites: Sequence[str]) -> list[Block]:
    """Every setting against the first, case by case, where both let single scores out and saw the same data."""
    of = metric(name)
    first, *others = settings
    rows: list[Row] = []
    for setting in others:
        seeds = {run.results.job.seed for run in first.runs} & {run.results.job.seed for run in setting.runs}
        used, differences = [], []
        for site in sites:
            pair = [_cases(s, site, name, seeds) for s in (first, setting)]
            if pair[0] is not None and pair[1] is not None and len(pair[0]) == len(pair[1]):
                used.append(site)
                differences.append(pair[1] - pair[0])
        if not differences:
            continue
        found = np.concatenate(differences)
        rows.append([setting.label, f"{len(found)}", f"{len(used)}", *_tested(of, found)])
    if not rows:
        return [Text("No paired differences: the records hold no scores of single cases on the same data and seeds.")]
    columns = [
        Column(f"Against {first.label}", numeric=False),
        Column("Cases"),
        Column("Sites"),
        Column("Mean difference", detail="95 % interval"),
        Column("p", detail="paired t-test"),
    ]
    return [
        Table(columns, rows, caption=f"Paired differences of {of.title} by case, all sites together"),
        Text(
            "The same cases under both, so that easy and hard ones cancel out; over seeds in common a case counts "
            "once, "
            "with its mean. The p-values are not corrected for the number of rows, and cases of a site are not quite "
            "independent."
        ),
    ]


def _cases(setting: _Setting, site: str, name: str, seeds: set[int]) -> np.ndarray | None:
    """Mean scores over seeds of a site's cases, (n,)."""
    found = []
    for run in setting.runs:
        if run.results.job.seed in seeds:
            assert run.results.final is not None
            spread = distribution(run.results.final.best, site, "test", name)
            if spread is None or spread.cases is None:
                return None
            found.append(spread.cases)
    if not found or len({len(cases) for cases in found}) > 1:
        return None
    mean: np.ndarray = np.mean(found, axis=0)
    return mean


def _tested(of: Metric, differences: np.ndarray) -> tuple[Cell | str, str]:
    mean = float(differences.mean())
    sign = "+" if mean > 0 else ""
    if len(differences) < FEWEST_PAIRS or not differences.std():
        return f"{sign}{of.number(mean)}", "–"
    from scipy import stats

    tested = stats.ttest_1samp(differences, 0.0)
    bounds = tested.confidence_interval(0.95)
    p = float(tested.pvalue)
    told = f"[{of.number(float(bounds.low))}, {of.number(float(bounds.high))}]"
    return Cell(f"{sign}{of.number(mean)}", told), "< 0.001" if p < 0.001 else f"{p:.3f}"
