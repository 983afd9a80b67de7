"""From finished cells to their record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedshift.reporting.comparison.cells import Cell
from fedshift.reporting.comparison.columns import column_keys
from fedshift.reporting.comparison.published import Figure, read_figures
from fedshift.reporting.comparison.record import CellRecord, Comparison, Left, Scores
from fedshift.reporting.comparison.spec import Part, Spec, Summary
from fedshift.reporting.comparison.store import RUN, Store, read_done
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.protocol_results import CrossSite
from fedshift.schema.results import Metrics, Results, read_results

PAIR = " > "
"""Between the site where a model was trained and the one where it is scored."""


class Collector:
    """Makes the record of a comparison from the store, again and again while it runs; reads a finished cell once."""

    def __init__(self, spec: Spec, scale: str, cells: Sequence[Cell], store: Store, *, folder: Path) -> None:
        """For a spec at a scale and all of its cells.

        Args:
            spec: the spec at its scale.
            scale: the scale's name.
            cells: all cells of the spec.
            store: where they are kept.
            folder: the spec's.
        """
        self._spec, self._scale, self._cells, self._store, self._folder = spec, scale, cells, store, folder
        self._done: dict[str, dict[str, Any]] = {}
        self._figures: list[Figure] | None = None

    def collect(self, reasons: Mapping[str, str] | None = None) -> Comparison:
        """The record as the cells are now.

        Args:
            reasons: why a cell failed, by its name.

        Raises:
            ConfigError: the published figures do not fit, or a cell's files are damaged.
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
            metric=spec.metric or sorted(metrics)[0],
            model=spec.model,
            summaries=list(_summaries(parts) if spec.summaries is None else spec.summaries),
            tests=list(spec.tests),
            tuning=spec.tuning,
            differences=spec.differences,
            spec=spec.model_dump(mode="json", exclude_unset=True),
            cells=records,
        )
        if spec.published is None:
            return comparison
        if self._figures is None:
            columns = column_keys(comparison)
            self._figures = read_figures(spec.published, folder=self._folder, rows=spec.rows, columns=columns)
        return comparison.model_copy(update={"published": self._figures})

    def _record(self, cell: Cell, reason: str) -> CellRecord:
        blank = CellRecord(
            labels=dict(cell.labels),
            seed=cell.seed,
            state="failed" if reason else "missing",
            reason=reason,
            commands=cell.commands,
            key=cell.work.key if cell.work else "",
            shown={part: shown_sites(cell, part) for part in self._spec.parts(cell.plan.kind)},
        )
        if cell.work is None or not self._store.is_done(cell.work):
            return blank
        key = cell.work.key
        if key not in self._done:
            self._done[key] = _finished(cell, self._store.place(cell.work))
        return blank.model_copy(update=self._done[key])


def _summaries(parts: set[Part]) -> tuple[Summary, ...]:
    return ("average", "held_out") if "held_out" in parts and len(parts) > 1 else ("average",)


def _finished(cell: Cell, place: Path) -> dict[str, Any]:
    """What the record of a finished cell has that is the same for all cells with its key."""
    done, run = read_done(place), place / RUN
    told = _read[cell.plan.kind](run, cell)
    first = told.runs[min(told.runs)]
    return {
        "state": "done",
        "reason": "",
        "how": done.how,
        "device": done.device,
        "seconds": done.seconds,
        "rounds": first.job.rounds,
        "selected": {site: one.selected.round for site, one in told.runs.items() if one.selected},
        "metric": first.job.metric,
        "curve": curve(list(told.runs.values())),
        "scores": told.scores,
        "newcomers": sorted({site for one in told.runs.values() if one.final for site in one.final.newcomers}),
        "left_out": _left_out(list(told.runs.values())),
        "data": {site: data for one in told.runs.values() for site, data in one.data.items()},
        "initial_weights": first.job.initial_weights,
        "version": done.version,
        "source": done.source,
        "versions": first.versions,
    }


def seconds_in_rounds(cell: Cell, place: Path) -> float:
    """What all training rounds of a finished cell took together; ``place`` is its folder."""
    runs = _read[cell.plan.kind](place / RUN, cell).runs.values()
    return sum(record.seconds for told in runs for record in told.rounds)


def shown_sites(cell: Cell, part: Part) -> list[str]:
    """The columns of a cell, as its jobs have them."""
    task = cell.plan.job.task
    if cell.plan.kind == "leave_one_out":
        return list(cell.plan.jobs)
    if cell.plan.kind == "cross_site":
        return [f"{trained}{PAIR}{tested}" for trained in task.sites for tested in task.sites if trained != tested]
    return list(task.held_out if part == "held_out" else task.sites)


def curve(runs: Sequence[Results]) -> list[float | None]:
    """The mean validation score of each round's aggregate over sites, and over runs where there are several."""
    rounds: list[list[float]] = [[] for _ in range(runs[0].job.rounds)]
    for told in runs:
        for record in told.rounds:
            values = [site.val[told.job.metric] for site in record.sites.values() if told.job.metric in site.val]
            if values and record.round <= len(rounds):
                rounds[record.round - 1].append(fmean(values))
    return [fmean(values) if values else None for values in rounds]


class _Runs:
    """Scores of a cell, and its runs' results by the site that was held out ("" for a single run)."""

    def __init__(self, runs: Mapping[str, Results], scores: Scores) -> None:
        self.runs, self.scores = runs, scores


def _one_run(run: Path, cell: Cell) -> _Runs:
    told = read_results(run)
    scores: Scores = {}
    assert told.final is not None
    for which, final in (("best", told.final.best), ("last", told.final.last)):
        for site, splits in final.sites.items():
            for part in ("val", "test"):
                more = final.evaluations.get(site, {}).get(part)
                _note(scores, which, part, site, splits.get(part, {}), more)
        for site, splits in final.held_out.items():
            _note(scores, which, "held_out", site, splits.get("all", {}), final.evaluations.get(site, {}).get("all"))
    for site, metrics in told.final.personal.items():
        own = told.final.personal_evaluations.get(site)
        if own is None and not told.final.fine_tuned:  # the best model is each site's own already
            own = told.final.best.evaluations.get(site, {}).get("test")
        _note(scores, "personal", "test", site, metrics, own)
    return _Runs({"": told}, scores)


def _leave_one_out(run: Path, cell: Cell) -> _Runs:
    runs, scores = {}, Scores()
    for site in cell.plan.jobs:
        told = runs[site] = read_results(run / site)
        assert told.final is not None
        for which, final in (("best", told.final.best), ("last", told.final.last)):
            for part, name in (("all", "held_out"), ("test", "test")):
                more = final.evaluations.get(site, {}).get(part)
                _note(scores, which, name, site, final.held_out.get(site, {}).get(part, {}), more)
    return _Runs(runs, scores)


def _cross_site(run: Path, cell: Cell) -> _Runs:
    record = CrossSite.read(run)
    scores: Scores = {}
    for trained, row in record.scores.items():
        for tested, metrics in row.items():
            _note(scores, "last", "test", f"{trained}{PAIR}{tested}", metrics, None)
    return _Runs({"": read_results(run)}, scores)


_read: Mapping[str, Callable[[Path, Cell], _Runs]] = {
    "federation": _one_run,
    "pooled": _one_run,
    "leave_one_out": _leave_one_out,
    "cross_site": _cross_site,
}


def _note(scores: Scores, which: str, part: str, site: str, metrics: Metrics, more: Evaluation | None) -> None:
    found = dict(metrics)
    if more is not None:
        found |= more.scores
        if more.calibration is not None:
            found["ece"] = more.calibration.ece
        if more.gradient_norm is not None:
            found["gradient_norm"] = more.gradient_norm
            found["gradient_norm_squared"] = more.gradient_norm**2
    if found:
        scores.setdefault(which, {}).setdefault(part, {})[site] = found


def _left_out(runs: Sequence[Results]) -> list[Left]:
    """Sites whose answers were refused or did not come; a cell without one of its sites is another experiment."""
    found: dict[str, tuple[int, str]] = {}
    for told in runs:
        for record in (*([told.statistics] if told.statistics else []), *told.rounds, *told.evaluations):
            said = {fault.site: f"{fault.key}: {fault.reason}" for fault in record.rejected}
            for site in dict.fromkeys([*said, *record.absent]):
                found[site] = found.get(site, (0, ""))[0] + 1, said.get(site, "no answer")
    return [Left(site=site, rounds=rounds, reason=reason) for site, (rounds, reason) in found.items()]
