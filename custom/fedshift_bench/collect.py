"""Collect the results of finished cells in the record of a comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from fedshift.schema.evaluation import Evaluation
from fedshift.schema.protocol_results import CrossSite
from fedshift.schema.results import Metrics, Results, read_results
from fedshift_bench.cells import Cell
from fedshift_bench.columns import column_keys
from fedshift_bench.published import PublishedValue, read_published
from fedshift_bench.record import FILE_NAME, ByCase, CellRecord, Comparison, LeftOutSite, Scores, read_comparison
from fedshift_bench.spec import (
    DOMAINS,
    GRADIENT_NORMS,
    PAIR_SEPARATOR,
    ModelName,
    ScoredPart,
    Spec,
    Summary,
    folder_name,
)
from fedshift_bench.store import RUN_FOLDER, Store, read_outcome


class FinishedCells:
    """The finished cells of comparisons, but those with a key in ``again``; of two with the same key the first.

    A cell is the same if its key is: the resolved job, the kind of run and the data (`WorkItem`). The version of
    fedshift is not part of it, as a hash of the package would end every comparison with every commit.
    """

    def __init__(self, comparisons: Iterable[Comparison] = (), *, again: Collection[str] = ()) -> None:
        self._records: dict[str, CellRecord] = {}
        self._data: list[dict[str, str]] = []
        for record in (record for comparison in comparisons for record in comparison.finished):
            if record.key not in again:
                self._records.setdefault(record.key, record)
                data = {site: about.manifest_sha256 for site, about in record.data.items()}
                if data not in self._data:
                    self._data.append(data)

    def find(self, cell: Cell) -> CellRecord | None:
        """The record of a cell; where its data are missing, that of the same job on any preparation of them."""
        works = [cell.work] if cell.work is not None else map(cell.work_on, self._data)
        return next((self._records[work.key] for work in works if work.key in self._records), None)


def finished_comparisons(spec: Spec, scale: str, *, folder: Path, out: Path) -> list[Comparison]:
    """The comparisons whose cells need not run again: that in ``out``, and that of `Spec.finished`, if they exist."""
    remedies = {out: "remove it or name another --out; cells that have finished in --workspace are not run again"}
    if spec.finished:
        committed = folder / spec.finished / folder_name(spec.name, scale)
        remedies.setdefault(committed, "remove it or leave 'finished' out of the spec")
    return [read_comparison(path, remedy=text) for path, text in remedies.items() if (path / FILE_NAME).is_file()]


CASE_DECIMALS = 6
"""Of the scores of single cases."""
OF_SPEC = ("name", "title", "what", "model", "tests", "claims", "pairs", "average", "tuning", "differences", "ranking")
"""What a comparison has as its spec has it."""
OF_TABLE = ("labels", "seed", "fold", "draw", "drawn", "commands", "shown")
"""What a record from another table has of this one."""


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
        finished: FinishedCells | None = None,
        left_out: Mapping[str, str] | None = None,
    ) -> None:
        self._finished, self._left_out = finished or FinishedCells(), dict(left_out or {})
        self._spec, self._scale, self._cells, self._store, self._folder = spec, scale, cells, store, folder
        self._read: dict[str, dict[str, Any]] = {}
        self._published: list[PublishedValue] | None = None

    def collect(self, reasons: Mapping[str, str] | None = None) -> Comparison:
        """Make the record from the cells' current state; ``reasons`` are those of failed cells, by cell name."""
        spec = self._spec
        records = [self._record(cell, (reasons or {}).get(cell.name, "")) for cell in self._cells]
        parts = {part for record in records for part in record.shown}
        summaries: list[Summary] = ["average", "held_out"] if "held_out" in parts and len(parts) > 1 else ["average"]
        comparison = Comparison(
            **{key: getattr(spec, key) for key in OF_SPEC},
            scale=self._scale,
            seeds=list(spec.seeds),
            folds=list(spec.folds),
            axes={axis: list(labels) for axis, labels in spec.axes.items()},
            metric=spec.metric or min(cell.plan.metric for cell in self._cells),
            summaries=summaries if spec.summaries is None else list(spec.summaries),
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
            other = self._finished.find(cell)
            if other is None:
                return record
            return other.model_copy(update={name: getattr(record, name) for name in OF_TABLE})
        key = cell.work.key
        if key not in self._read:
            folder = self._store.folder_of(cell.work)
            self._read[key] = _read_finished(cell, folder, metric=self._spec.metric, model=self._spec.model)
        return record.model_copy(update=self._read[key])


def _read_finished(cell: Cell, folder: Path, *, metric: str | None, model: ModelName) -> dict[str, Any]:
    """The fields of a finished cell's record that are the same for all cells with its key."""
    outcome, scored = read_outcome(folder), _read_runs(cell, folder)
    runs = list(scored.runs.values())
    first = scored.runs[min(scored.runs)]
    machines = [machine for run in runs for machine in run.machines.values()]
    shown = shown_score(runs, metric)
    has_test_curve = cell.plan.job.evaluation.every is not None
    return {
        "state": "done",
        "reason": "",
        "how": outcome.how,
        "device": " and ".join(sorted({machine.device for machine in machines})) or outcome.device,
        "precision": " and ".join(sorted({machine.precision for machine in machines})),
        "seconds": outcome.seconds,
        "rounds": first.job.rounds,
        "selected": {site: run.selected.round for site, run in scored.runs.items() if run.selected},
        "metric": shown,
        "selected_by": first.job.metric,
        "curve": curve(runs, shown, "val"),
        "test_curve": curve(runs, shown, "test") if has_test_curve else [],
        "scores": scored.scores,
        "by_case": scored.cases.get(metric or cell.plan.metric, {}),
        "validation": _validation(cell, scored.runs, "last" if model == "last" else "best"),
        "newcomers": sorted({site for run in runs if run.final for site in run.final.newcomers}),
        "left_out": _left_out(runs),
        "data": {site: data for run in runs for site, data in run.data.items()},
        "initial_weights": first.job.initial_weights,
        "departures": first.job.departures,
        "minutes": first.job.minutes,
        "version": outcome.version,
        "source": outcome.source,
        "versions": first.versions,
    }


def seconds_in_rounds(cell: Cell, folder: Path) -> float:
    """Total seconds of all training rounds of a finished cell in ``folder``."""
    return sum(record.seconds for run in _read_runs(cell, folder).runs.values() for record in run.rounds)


def shown_sites(cell: Cell, part: ScoredPart) -> list[str]:
    """The sites of a cell's columns for one scored part."""
    task = cell.plan.job.task
    if cell.plan.kind == "leave_one_out":
        return list(cell.plan.jobs)
    if cell.plan.kind == "cross_site":
        return [f"{a}{PAIR_SEPARATOR}{b}" for a in task.sites for b in task.sites if a != b]
    if part == DOMAINS:
        return list(task.domains)
    return list(task.held_out if part == "held_out" else task.sites)


def shown_score(runs: Sequence[Results], metric: str | None) -> str:
    """The score to draw: ``metric`` if every run's rounds have it, else the one that selects the best round."""

    def has_it(run: Results) -> bool:
        return any(metric in site.val for record in run.rounds for site in record.sites.values())

    return metric if metric is not None and all(map(has_it, runs)) else runs[0].job.metric


def _validation(cell: Cell, runs: Mapping[str, Results], which: Literal["best", "last"]) -> float | None:
    """Mean validation score over sites, then over runs, by the score that selects rounds; None if one is lacking."""
    means = []
    for held_out, run in runs.items():
        sites = {} if run.final is None else getattr(run.final, which).sites
        scores = {site: splits.get("val", {}).get(run.job.metric) for site, splits in sites.items()}
        known = {site: value for site, value in scores.items() if value is not None}
        asked = cell.plan.jobs.get(held_out, cell.plan.job).task.sites
        has_samples = {site for site in asked if site not in run.data or run.data[site].n.get("val", 0) > 0}
        if not known or has_samples - known.keys():
            return None
        means.append(fmean(known.values()))
    return fmean(means)


def curve(runs: Sequence[Results], metric: str, part: Literal["val", "test"]) -> list[float | None]:
    """Score of each round's aggregate: mean over sites, then over runs. None for rounds without scores."""
    rounds: list[list[float]] = [[] for _ in range(runs[0].job.rounds)]
    for record in (record for run in runs for record in run.rounds):
        scores = [(site.val if part == "val" else site.test) or {} for site in record.sites.values()]
        values = [metrics[metric] for metrics in scores if metric in metrics]
        if values and record.round <= len(rounds):
            rounds[record.round - 1].append(fmean(values))
    return [fmean(values) if values else None for values in rounds]


@dataclass
class _Scored:
    """A cell's scores, those of single cases, and the results of its runs by held-out site ("" for a single run)."""

    has_cases: bool
    runs: dict[str, Results] = field(default_factory=dict)
    scores: Scores = field(default_factory=dict)
    cases: dict[str, ByCase] = field(default_factory=dict)

    def add(self, which: str, part: str, site: str, metrics: Metrics, evaluation: Evaluation | None = None) -> None:
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
        spreads = evaluation.distributions if evaluation is not None and self.has_cases else {}
        for name, spread in spreads.items():
            if spread.cases is not None and spread.subjects is None:  # several scans of a subject are no pairs
                values = [round(value, CASE_DECIMALS) for value in spread.cases]
                self.cases.setdefault(name, {}).setdefault(which, {}).setdefault(part, {})[site] = values


def _read_runs(cell: Cell, folder: Path) -> _Scored:
    run, kind = folder / RUN_FOLDER, cell.plan.kind
    # The record of local models has no scores of cases.
    scored = _Scored(has_cases=cell.plan.job.task.kind == "segmentation" and kind != "cross_site")
    if kind == "leave_one_out":
        scored.runs = {site: read_results(run / site) for site in cell.plan.jobs}
        for site, results in scored.runs.items():
            assert results.final is not None
            for which, final in (("best", results.final.best), ("last", results.final.last)):
                for part, name in (("all", "held_out"), ("test", "test")):
                    evaluation = final.evaluations.get(site, {}).get(part)
                    scored.add(which, name, site, final.held_out.get(site, {}).get(part, {}), evaluation)
        return scored
    scored.runs = {"": read_results(run)}
    if kind == "cross_site":
        for trained, row in CrossSite.read(run).scores.items():
            for tested, metrics in row.items():
                scored.add("last", "test", f"{trained}{PAIR_SEPARATOR}{tested}", metrics)
    else:
        _add_federation(scored, scored.runs[""])
    return scored


def _add_federation(scored: _Scored, results: Results) -> None:
    final = results.final
    assert final is not None
    for which, model in (("best", final.best), ("last", final.last)):
        for site, splits in model.sites.items():
            for part in ("val", "test"):
                evaluation = model.evaluations.get(site, {}).get(part)
                scored.add(which, part, site, splits.get(part, {}), evaluation)
        for site, splits in model.held_out.items():
            scored.add(which, "held_out", site, splits.get("all", {}), model.evaluations.get(site, {}).get("all"))
        for domain, norm in model.domain_gradient_norms.items():
            scored.add(which, DOMAINS, domain, _norms(norm))
    for site, metrics in final.personal.items():
        personal = final.personal_evaluations.get(site)
        if personal is None and not final.fine_tuned:  # the best model is already evaluated as each site's own
            personal = final.best.evaluations.get(site, {}).get("test")
        scored.add("personal", "test", site, metrics, personal)
    if not final.fine_tuned:
        for site, best in final.site_best.items():
            scored.add("site_best", "val", site, best.val)
            scored.add("site_best", "test", site, best.test)


def _norms(norm: float) -> Metrics:
    return dict(zip(GRADIENT_NORMS, (norm, norm**2), strict=True))


def _left_out(runs: Sequence[Results]) -> list[LeftOutSite]:
    """Sites whose answers were rejected or missing: the cell is then not the experiment that was asked for."""
    counts: dict[str, Counter[str]] = {}
    last_reasons: dict[str, str] = {}
    for run in runs:
        start = [run.statistics] if run.statistics else []
        for kind, records in (("statistics", start), ("rounds", run.rounds), ("evaluations", run.evaluations)):
            for record in records:
                reasons = {fault.site: f"{fault.key}: {fault.reason}" for fault in record.rejected}
                for site in dict.fromkeys([*reasons, *record.absent]):
                    counts.setdefault(site, Counter())[kind] += 1
                    last_reasons[site] = reasons.get(site, "no answer")
    kinds = ("rounds", "statistics", "evaluations")
    return [
        LeftOutSite(site=site, reason=last_reasons[site], **{kind: count[kind] for kind in kinds})
        for site, count in counts.items()
    ]
