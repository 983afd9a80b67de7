"""Collect the results of finished cells in the record of a comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from fedshift.schema.evaluation import Evaluation
from fedshift.schema.protocol_results import CrossSite
from fedshift.schema.results import Metrics, Results, read_results
from fedshift_bench.cell_record import ByCase, CellRecord, LeftOutSite, Scores
from fedshift_bench.cells import Cell
from fedshift_bench.columns import column_keys
from fedshift_bench.kept import Kept
from fedshift_bench.published import PublishedValue, read_published
from fedshift_bench.record import Comparison
from fedshift_bench.spec import (
    DOMAINS,
    GRADIENT_NORMS,
    PAIR_SEPARATOR,
    ModelName,
    ScoredPart,
    Spec,
    Summary,
)
from fedshift_bench.store import RUN_FOLDER, Store, read_done

CASE_DECIMALS = 6
"""Of the scores of single cases."""


class Collector:
    """Makes the record of a comparison from the store, repeatedly while cells run. Each finished cell is read once."""

    def __init__(
        self,
        spec: Spec,
        scale: str,
        cells: Sequence[Cell],
        store: Store,
        *,
        folder: Path,
        kept: Kept | None = None,
        left_out: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare to collect the cells of a spec.

        Args:
            spec: the spec at its scale.
            scale: the scale's name.
            cells: all cells of the spec.
            store: the store with the cells' folders.
            folder: the folder of the spec's file.
            kept: finished cells that the store need not have.
            left_out: methods without a row, and why.
        """
        self._kept, self._left_out = kept or Kept(), dict(left_out or {})
        self._spec, self._scale, self._cells, self._store, self._folder = spec, scale, cells, store, folder
        self._finished: dict[str, dict[str, Any]] = {}
        self._published: list[PublishedValue] | None = None

    def collect(self, reasons: Mapping[str, str] | None = None) -> Comparison:
        """Make the record from the cells' current state.

        Args:
            reasons: the reasons of failed cells, by cell name.

        Raises:
            ConfigError: the published values do not fit the spec, or a cell's files are damaged.
        """
        spec, reasons = self._spec, reasons or {}
        records = [self._record(cell, reasons.get(cell.name, "")) for cell in self._cells]
        metrics = {cell.plan.metric for cell in self._cells}
        parts = {part for record in records for part in record.shown}
        comparison = Comparison(
            name=spec.name,
            title=spec.title,
            what=spec.what,
            scale=self._scale,
            axes={axis: list(labels) for axis, labels in spec.axes.items()},
            seeds=list(spec.seeds),
            folds=list(spec.folds),
            metric=spec.metric or sorted(metrics)[0],
            model=spec.model,
            summaries=list(_summaries(parts) if spec.summaries is None else spec.summaries),
            tests=list(spec.tests),
            claims=list(spec.claims),
            pairs=spec.pairs,
            average=spec.average,
            tuning=spec.tuning,
            differences=spec.differences,
            ranking=spec.ranking,
            left_out=self._left_out,
            spec=spec.model_dump(mode="json", exclude_unset=True),
            cells=records,
        )
        if spec.published is None:
            return comparison
        if self._published is None:
            columns = column_keys(comparison)
            self._published = read_published(spec.published, folder=self._folder, rows=spec.rows, columns=columns)
        return comparison.model_copy(update={"published": self._published})

    def _record(self, cell: Cell, reason: str) -> CellRecord:
        record = CellRecord(
            labels=dict(cell.labels),
            seed=cell.seed,
            fold=cell.fold,
            draw=cell.draw,
            drawn=dict(cell.drawn),
            state="failed" if reason else "missing",
            reason=reason,
            commands=cell.commands,
            key=cell.work.key if cell.work else "",
            shown={part: shown_sites(cell, part) for part in self._spec.parts(cell.plan.kind)},
        )
        if cell.work is None or not self._store.is_done(cell.work):
            kept = self._kept.find(cell)
            return record if kept is None else kept.model_copy(update=_of_this_table(record))
        key = cell.work.key
        if key not in self._finished:
            folder = self._store.folder_of(cell.work)
            self._finished[key] = _read_finished(cell, folder, metric=self._spec.metric, model=self._spec.model)
        return record.model_copy(update=self._finished[key])


def _of_this_table(record: CellRecord) -> dict[str, Any]:
    """What a record kept from another table has of this one."""
    names = ("labels", "seed", "fold", "draw", "drawn", "commands", "shown")
    return {name: getattr(record, name) for name in names}


def _summaries(parts: set[ScoredPart]) -> tuple[Summary, ...]:
    return ("average", "held_out") if "held_out" in parts and len(parts) > 1 else ("average",)


def _read_finished(cell: Cell, folder: Path, *, metric: str | None, model: ModelName) -> dict[str, Any]:
    """The fields of a finished cell's record that are the same for all cells with its key.

    The curve is of the table's ``metric`` if rounds have that score, else of the one that selects the round.
    """
    done, run = read_done(folder), folder / RUN_FOLDER
    results = _READERS[cell.plan.kind](run, cell)
    runs = list(results.runs.values())
    first = results.runs[min(results.runs)]
    machines = [machine for one in runs for machine in one.machines.values()]
    shown = shown_score(runs, metric)
    return {
        "state": "done",
        "reason": "",
        "how": done.how,
        "device": " and ".join(sorted({machine.device for machine in machines})) or done.device,
        "precision": " and ".join(sorted({machine.precision for machine in machines})),
        "seconds": done.seconds,
        "rounds": first.job.rounds,
        "selected": {site: one.selected.round for site, one in results.runs.items() if one.selected},
        "metric": shown,
        "selected_by": first.job.metric,
        "curve": curve(runs, shown, "val"),
        "test_curve": _test_curve(cell, runs, shown),
        "scores": results.scores,
        "by_case": results.cases.get(metric or cell.plan.metric, {}),
        "validation": _validation(cell, results.runs, "last" if model == "last" else "best"),
        "newcomers": sorted({site for one in results.runs.values() if one.final for site in one.final.newcomers}),
        "left_out": _left_out(runs),
        "data": {site: data for one in results.runs.values() for site, data in one.data.items()},
        "initial_weights": first.job.initial_weights,
        "departures": first.job.departures,
        "minutes": first.job.minutes,
        "version": done.version,
        "source": done.source,
        "versions": first.versions,
    }


def seconds_in_rounds(cell: Cell, folder: Path) -> float:
    """Total seconds of all training rounds of a finished cell in ``folder``."""
    runs = _READERS[cell.plan.kind](folder / RUN_FOLDER, cell).runs.values()
    return sum(record.seconds for results in runs for record in results.rounds)


def shown_sites(cell: Cell, part: ScoredPart) -> list[str]:
    """The sites of a cell's columns for one scored part."""
    task = cell.plan.job.task
    if cell.plan.kind == "leave_one_out":
        return list(cell.plan.jobs)
    if cell.plan.kind == "cross_site":
        return [
            f"{trained}{PAIR_SEPARATOR}{tested}" for trained in task.sites for tested in task.sites if trained != tested
        ]
    if part == DOMAINS:
        return list(task.domains)
    return list(task.held_out if part == "held_out" else task.sites)


def shown_score(runs: Sequence[Results], metric: str | None) -> str:
    """The score to draw: ``metric`` if every run's rounds have it, else the one that selects the best round."""

    def scored(run: Results) -> bool:
        return any(metric in site.val for record in run.rounds for site in record.sites.values())

    return metric if metric is not None and all(map(scored, runs)) else runs[0].job.metric


def _validation(cell: Cell, runs: Mapping[str, Results], which: Literal["best", "last"]) -> float | None:
    """Mean validation score over sites, then over runs (by held-out site), by the score that selects rounds.

    None if a run has none, or lacks that of a training site with validation samples, or of one that never answered.
    """
    means = []
    for held_out, run in runs.items():
        sites = {} if run.final is None else getattr(run.final, which).sites
        told = {site: splits.get("val", {}) for site, splits in sites.items()}
        known = {site: scores[run.job.metric] for site, scores in told.items() if run.job.metric in scores}
        asked = cell.plan.jobs.get(held_out, cell.plan.job).task.sites
        if not known or any(site not in known and _has_validation(run, site) for site in asked):
            return None
        means.append(fmean(known.values()))
    return fmean(means)


def _has_validation(run: Results, site: str) -> bool:
    """Whether a site has validation samples, as far as is known."""
    return site not in run.data or run.data[site].n.get("val", 0) > 0


def _test_curve(cell: Cell, runs: Sequence[Results], metric: str) -> list[float | None]:
    return curve(runs, metric, "test") if cell.plan.job.evaluation.every is not None else []


def curve(runs: Sequence[Results], metric: str, part: Literal["val", "test"]) -> list[float | None]:
    """Score of each round's aggregate: mean over sites, then over runs. None for rounds without scores."""
    rounds: list[list[float]] = [[] for _ in range(runs[0].job.rounds)]
    for results in runs:
        for record in results.rounds:
            told = [(site.val if part == "val" else site.test) or {} for site in record.sites.values()]
            values = [scores[metric] for scores in told if metric in scores]
            if values and record.round <= len(rounds):
                rounds[record.round - 1].append(fmean(values))
    return [fmean(values) if values else None for values in rounds]


class _Scored:
    """Scores of a cell's models, and with ``is_segmented`` those of single cases: scans, and not pictures."""

    def __init__(self, *, is_segmented: bool) -> None:
        self.scores: Scores = {}
        self.cases: dict[str, ByCase] = {}
        self._is_segmented = is_segmented

    def add(self, which: str, part: str, site: str, metrics: Metrics, evaluation: Evaluation | None) -> None:
        """Add a site's metrics, with those that its evaluation has in addition."""
        merged = dict(metrics)
        if evaluation is not None:
            merged |= evaluation.scores
            if evaluation.calibration is not None:
                merged["ece"] = evaluation.calibration.ece
            if evaluation.gradient_norm is not None:
                merged |= _norms(evaluation.gradient_norm)
        if merged:
            self.scores.setdefault(which, {}).setdefault(part, {})[site] = merged
        spreads = evaluation.distributions if evaluation is not None and self._is_segmented else {}
        for name, spread in spreads.items():
            if spread.cases is not None and spread.subjects is None:  # several scans of a subject are no pairs
                values = [round(value, CASE_DECIMALS) for value in spread.cases]
                self.cases.setdefault(name, {}).setdefault(which, {}).setdefault(part, {})[site] = values


class _CellResults:
    """A cell's scores, and the results of its runs by held-out site ("" for a single run).

    ``cases`` has for each score that cases of scans have of their own its values.
    """

    def __init__(self, runs: Mapping[str, Results], scored: _Scored) -> None:
        self.runs, self.scores, self.cases = runs, scored.scores, scored.cases


def _one_run(run: Path, cell: Cell) -> _CellResults:
    results = read_results(run)
    scored = _Scored(is_segmented=cell.plan.job.task.kind == "segmentation")
    assert results.final is not None
    for which, final in (("best", results.final.best), ("last", results.final.last)):
        for site, splits in final.sites.items():
            for part in ("val", "test"):
                evaluation = final.evaluations.get(site, {}).get(part)
                scored.add(which, part, site, splits.get(part, {}), evaluation)
        for site, splits in final.held_out.items():
            scored.add(which, "held_out", site, splits.get("all", {}), final.evaluations.get(site, {}).get("all"))
        for domain, norm in final.domain_gradient_norms.items():
            scored.scores.setdefault(which, {}).setdefault(DOMAINS, {})[domain] = _norms(norm)
    for site, metrics in results.final.personal.items():
        own = results.final.personal_evaluations.get(site)
        if own is None and not results.final.fine_tuned:  # the best model is already evaluated as each site's own
            own = results.final.best.evaluations.get(site, {}).get("test")
        scored.add("personal", "test", site, metrics, own)
    if not results.final.fine_tuned:
        for site, best in results.final.own_best.items():
            scored.add("own_best", "val", site, best.val, None)
            scored.add("own_best", "test", site, best.test, None)
    return _CellResults({"": results}, scored)


def _leave_one_out(run: Path, cell: Cell) -> _CellResults:
    runs, scored = {}, _Scored(is_segmented=cell.plan.job.task.kind == "segmentation")
    for site in cell.plan.jobs:
        results = runs[site] = read_results(run / site)
        assert results.final is not None
        for which, final in (("best", results.final.best), ("last", results.final.last)):
            for part, name in (("all", "held_out"), ("test", "test")):
                evaluation = final.evaluations.get(site, {}).get(part)
                scored.add(which, name, site, final.held_out.get(site, {}).get(part, {}), evaluation)
    return _CellResults(runs, scored)


def _cross_site(run: Path, cell: Cell) -> _CellResults:
    record = CrossSite.read(run)
    scored = _Scored(is_segmented=False)  # the record of local models has no scores of cases
    for trained, row in record.scores.items():
        for tested, metrics in row.items():
            scored.add("last", "test", f"{trained}{PAIR_SEPARATOR}{tested}", metrics, None)
    return _CellResults({"": read_results(run)}, scored)


_READERS: Mapping[str, Callable[[Path, Cell], _CellResults]] = {
    "federation": _one_run,
    "pooled": _one_run,
    "leave_one_out": _leave_one_out,
    "cross_site": _cross_site,
}


def _norms(norm: float) -> Metrics:
    return dict(zip(GRADIENT_NORMS, (norm, norm**2), strict=True))


def _left_out(runs: Sequence[Results]) -> list[LeftOutSite]:
    """Sites whose answers were rejected or missing: the cell is then not the experiment that was asked for."""
    counts: dict[str, Counter[str]] = {}
    last_reasons: dict[str, str] = {}
    for results in runs:
        start = [results.statistics] if results.statistics else []
        kinds = {"statistics": start, "rounds": results.rounds, "evaluations": results.evaluations}
        for kind, record in ((kind, record) for kind, records in kinds.items() for record in records):
            reasons = {fault.site: f"{fault.key}: {fault.reason}" for fault in record.rejected}
            for site in dict.fromkeys([*reasons, *record.absent]):
                counts.setdefault(site, Counter())[kind] += 1
                last_reasons[site] = reasons.get(site, "no answer")
    return [
        LeftOutSite(
            site=site,
            rounds=count["rounds"],
            statistics=count["statistics"],
            evaluations=count["evaluations"],
            reason=last_reasons[site],
        )
        for site, count in counts.items()
    ]
