"""Comparison of several runs: means over seeds, the best run per site, and paired differences over cases."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from fedshift.reporting.p_values import p_text
from fedshift.reporting.report.runs import Run, differing_settings, distribution, label_runs
from fedshift.reporting.report.section import Block, Cell, Column, Row, Section, Table, paragraph
from fedshift.reporting.report.wording import Metric, counted, metric

MIN_PAIRS = 3
"""Number of cases for a t-test."""
CONSTANT = 1e-12
"""Spread up to which differences are one, rounded differently: t is then undefined or infinite."""


@dataclass(frozen=True)
class _Setting:
    """Runs that differ only in their seed."""

    label: str
    runs: Sequence[Run]
    repeated: Sequence[Run] = ()
    """Further runs with the seed of one of ``runs``, which do not count."""


def compare(runs: Sequence[Run]) -> list[Section]:
    """A section for each task (and metric) that several runs have final scores of."""
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
    same_data = [site for site in sites if len(_cases_used(runs, site)) == 1]
    other_data = [site for site in sites if site not in same_data]
    blocks: list[Block] = [_table(name, settings, sites)]
    if differing := differing_settings([setting.runs[0] for setting in settings]):
        blocks.append(paragraph("settings_differ", settings=differing))
    if not all(setting.runs[0].settings for setting in settings):
        blocks.append(paragraph("settings_unknown"))
    if other_data:
        blocks.append(paragraph("data_differ", sites=other_data))
    if repeated := [str(run.source.parent) for setting in settings for run in setting.repeated]:
        blocks.append(paragraph("repeated_runs", folders=repeated))
    blocks.append(paragraph("several_seeds" if any(len(setting.runs) > 1 for setting in settings) else "single_seeds"))
    blocks += _paired(name, settings, same_data)
    return Section(
        key,
        f"Comparison on {task}",
        f"Test {metric(name).heading} of each run's best model. The best value of a row is bold; this does not mean "
        "that the difference is significant: see the paired differences, if there are any.",
        blocks,
    )


def _settings(runs: Sequence[Run]) -> list[_Setting]:
    """The runs by what they differ in beside the seed. Of runs with one seed the first counts.

    A run of an earlier version, whose record lacks settings and has no model file beside it, is alone.
    """
    groups: dict[str, dict[int, list[Run]]] = {}
    for number, run in enumerate(runs):
        job = run.results.job.model_dump(mode="json", exclude={"name", "seed", "threads", "local", "settings"})
        of_seed = groups.setdefault(json.dumps([job, run.settings or number, run.trained], sort_keys=True), {})
        of_seed.setdefault(run.results.job.seed, []).append(run)
    labels = [run.label for run in label_runs([next(iter(of_seed.values()))[0] for of_seed in groups.values()])]
    return [
        _Setting(label, [same[0] for same in of_seed.values()], [run for same in of_seed.values() for run in same[1:]])
        for label, of_seed in zip(labels, groups.values(), strict=True)
    ]


def _cases_used(runs: Sequence[Run], site: str) -> set[tuple[str, str]]:
    """The manifests of a site with their splits: folds of a cross-validation share a manifest and no test case."""
    records = [run.results.data[site] for run in runs if site in run.results.data]
    return {(record.manifest_sha256, record.split_rule) for record in records}


def _test(run: Run, site: str, name: str) -> float | None:
    assert run.results.final is not None
    value = run.results.final.best.sites.get(site, {}).get("test", {}).get(name)
    return value if value is not None and math.isfinite(value) else None


def _table(name: str, settings: Sequence[_Setting], sites: Sequence[str]) -> Table:
    m = metric(name)
    rows: list[Row] = []
    for site in sites:
        values = [[v for run in s.runs if (v := _test(run, site, name)) is not None] for s in settings]
        rows.append([site, *_cells(m, values)])
    means = []
    for setting in settings:
        by_run = [[_test(run, site, name) for site in sites] for run in setting.runs]
        # Means over different sets of sites are not comparable.
        means.append([fmean(v for v in row if v is not None) for row in by_run if None not in row])
    foot: list[Row] = [[Cell("mean", strong=True), *_cells(m, means)]]
    columns = [Column("Site", numeric=False)]
    columns += [Column(s.label, detail=counted(len(s.runs), "seed") if len(s.runs) > 1 else "") for s in settings]
    return Table(columns, rows, foot, caption=f"Test {m.heading}, best model")


def _cells(m: Metric, values: Sequence[Sequence[float]]) -> list[Cell]:
    means = [fmean(scores) if scores else None for scores in values]
    known = [mean for mean in means if mean is not None]
    best = (max if m.higher_is_better else min)(known, default=None)
    return [
        Cell(
            m.number(mean),
            f"± {m.number(stdev(scores))}" if len(scores) > 1 else "",
            strong=mean is not None and mean == best and len(known) > 1,
        )
        for mean, scores in zip(means, values, strict=True)
    ]


def _paired(name: str, settings: Sequence[_Setting], sites: Sequence[str]) -> list[Block]:
    """Paired tests of every setting against the first, over cases whose scores both have on the same data."""
    m = metric(name)
    first, *others = settings
    rows: list[Row] = []
    for setting in others:
        seeds = {run.results.job.seed for run in first.runs} & {run.results.job.seed for run in setting.runs}
        used, differences = [], []
        for site in sites:
            ours, theirs = (_cases(s, site, name, seeds) for s in (setting, first))
            if ours is not None and theirs is not None and len(ours) == len(theirs):
                used.append(site)
                differences.append(ours - theirs)
        if not differences:
            continue
        cases = np.concatenate(differences)
        rows.append([setting.label, f"{len(cases)}", f"{len(used)}", *_tested(m, cases)])
    if not rows:
        return [paragraph("no_pairs")]
    columns = [
        Column(f"Against {first.label}", numeric=False),
        Column("Cases"),
        Column("Sites"),
        Column("Mean difference", detail="95 % interval"),
        Column("p", detail="paired t-test"),
    ]
    return [
        Table(columns, rows, caption=f"Paired differences of {m.title} by case, all sites together"),
        paragraph("pairs"),
    ]


def _cases(setting: _Setting, site: str, name: str, seeds: set[int]) -> np.ndarray | None:
    """Mean scores over seeds of a site's cases, (n,); None if they are incomplete."""
    by_seed = []
    for run in setting.runs:
        if run.results.job.seed in seeds:
            assert run.results.final is not None
            spread = distribution(run.results.final.best, site, "test", name)
            if spread is None or spread.cases is None:
                return None
            by_seed.append(spread.cases)
    if not by_seed or len({len(cases) for cases in by_seed}) > 1:
        return None
    mean: np.ndarray = np.mean(by_seed, axis=0)
    return mean


def _tested(m: Metric, differences: np.ndarray) -> tuple[Cell | str, str]:
    """Mean difference with its interval, and the p-value."""
    mean = float(differences.mean())
    if len(differences) < MIN_PAIRS or np.ptp(differences) <= CONSTANT:
        return m.difference(mean), "–"
    from scipy import stats

    tested = stats.ttest_1samp(differences, 0.0)
    bounds = tested.confidence_interval(0.95)
    detail = m.points_interval((float(bounds.low), float(bounds.high)))
    return Cell(m.difference(mean), detail), p_text(float(tested.pvalue))
