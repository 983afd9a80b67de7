"""One cell of a ``cells.json``: its labels, what it ran, and its scores; and the folds of a cross-validation as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

from fedshift.schema.results import DataRecord, Metrics
from fedshift.schema.strict import Strict
from fedshift_bench.spec import PAIR_SEPARATOR, ModelName, ScoredPart, cell_name

State = Literal["done", "failed", "missing"]
Scores = dict[str, dict[str, dict[str, Metrics]]]
"""ModelName (best, last, personal, own_best) or image_free -> part (test, val, held_out) -> site -> metrics."""
IMAGE_FREE = "image_free"
"""Where the image-free guess is among a cell's scores, beside its models."""
ByCase = dict[str, dict[str, dict[str, list[float]]]]
"""ModelName -> part -> site -> the score of each case, in the order of the site's manifest and without ids."""


class LeftOutSite(Strict):
    """A site whose answers were rejected or missing in some rounds, and the last reason.

    ``rounds`` are of training, ``statistics`` those before it, one in each run, and ``evaluations`` of the last and the
    best model; older files count all three as ``rounds``.
    """

    site: str
    rounds: int
    statistics: int = 0
    evaluations: int = 0
    reason: str

    @property
    def left_out_of(self) -> str:
        """What the site has no part in: ``1 statistics round, 2 rounds, 1 evaluation``."""
        counts = {"statistics round": self.statistics, "round": self.rounds, "evaluation": self.evaluations}
        return ", ".join(f"{n} {what}{'s' if n > 1 else ''}" for what, n in counts.items() if n)


class CellRecord(Strict):
    """A cell. What older files do not record is empty."""

    labels: dict[str, str]
    seed: int
    fold: int | None = None
    """Of a cross-validation; None without one, and for the mean over its folds (`over_folds`)."""
    draw: int = 0
    """The number of its setting; 0 is the row's own, the others are drawn (`Tuning`)."""
    drawn: dict[str, Any] = {}
    """The options of that setting."""
    validation: float | None = None
    """The mean validation score over sites, and over runs, of the model that the table shows; it selects settings.

    None if a site's is missing.
    """
    state: State
    reason: str = ""
    commands: list[str]
    key: str = ""
    how: str = ""
    device: str = ""
    precision: str = ""
    """What the sites computed in."""
    seconds: float | None = None
    rounds: int = 0
    selected: dict[str, int] = {}
    """The round of the best model, by held-out site, or under "" for a single run."""
    metric: str = ""
    """What the curves are of."""
    selected_by: str = ""
    """The score that selected the best round."""
    curve: list[float | None] = []
    """The mean validation score of each round's aggregate; None if unknown."""
    test_curve: list[float | None] = []
    """As ``curve``, on test samples, if the job has it (``evaluation.every``)."""
    scores: Scores = {}
    by_case: ByCase = {}
    """The comparison's metric, where cases have one of their own."""
    shown: dict[ScoredPart, list[str]] = {}
    """The sites of its columns, by scored part; ``A > B`` is the model of A at B."""
    newcomers: list[str] = []
    left_out: list[LeftOutSite] = []
    data: dict[str, DataRecord] = {}
    initial_weights: str = ""
    departures: list[str] = []
    """What the cell's protocol has and its job has not."""
    minutes: float | None = None
    """After which its rounds ended by the clock."""
    version: str = ""
    source: str = ""
    versions: dict[str, str] = {}

    @property
    def name(self) -> str:
        return cell_name(self.labels, self.seed, self.fold, self.draw)

    @property
    def row(self) -> str:
        """Its label of the first axis."""
        return next(iter(self.labels.values()))

    @property
    def is_done(self) -> bool:
        return self.state == "done"

    @property
    def main_sites(self) -> dict[ScoredPart, list[str]]:
        """The sites that ``average`` covers: those of the test or validation part, or the held-out sites if alone."""
        return {part: sites for part, sites in self.shown.items() if part != "held_out"} or dict(self.shown)

    @property
    def extra_sites(self) -> list[str]:
        """The held-out sites, if the cell has other sites too."""
        return self.shown.get("held_out", []) if len(self.shown) > 1 else []

    def site_scores(self, model: ModelName, part: ScoredPart, metric: str) -> dict[str, float]:
        """The score at each site. If the cell has no such model, the best model is used, then the last.

        Cells without personal models use the best one; local models at other sites exist only as last models. For each
        site's own best round, cells that fine-tune use their personal models, which exist of one round only.
        """
        sites = self.scores.get(self._shown_model(model, part), {}).get(part, {})
        return {site: values[metric] for site, values in sites.items() if metric in values}

    def case_scores(self, model: ModelName, part: ScoredPart) -> dict[str, list[float]]:
        """As `site_scores`, the score of each case at each site."""
        return self.by_case.get(self._shown_model(model, part), {}).get(part, {})

    def _shown_model(self, model: ModelName, part: ScoredPart) -> str:
        others = ("personal", "best", "last") if model == "own_best" else ("best", "last")
        return next((name for name in (model, *others) if self.scores.get(name, {}).get(part)), model)

    def without_scores(self, state: State) -> CellRecord:
        return self.model_copy(update={"state": state, "scores": {}, "curve": [], "test_curve": []})


def over_folds(cells: Iterable[CellRecord]) -> list[CellRecord]:
    """One cell for all folds of the same labels, seed and draw, in the order of the first of each.

    A site's score is the mean over its folds, each weighted by its cases (samples if cases are not recorded) in the
    scored part; folds without any do not count, as a small site has them. A cell of which a fold has not finished has
    no scores.
    """
    groups: dict[tuple[object, ...], list[CellRecord]] = {}
    for cell in cells:
        groups.setdefault((*cell.labels.values(), cell.seed, cell.draw), []).append(cell)
    return [_mean_cell(folds) for folds in groups.values()]


def _mean_cell(folds: Sequence[CellRecord]) -> CellRecord:
    first = folds[0].model_copy(update={"fold": None})
    states = {cell.state for cell in folds}
    if states != {"done"}:
        return first.without_scores("failed" if "failed" in states else "missing")
    validation = [cell.validation for cell in folds if cell.validation is not None]
    sites = _union([cell.data for cell in folds])
    return first.model_copy(
        update={
            "scores": _mean_scores(folds),
            "by_case": {},  # cases of one place in different folds are different cases
            "validation": fmean(validation) if len(validation) == len(folds) else None,
            "curve": _mean_curve([cell.curve for cell in folds]),
            "test_curve": _mean_curve([cell.test_curve for cell in folds]),
            "data": {site: _total([cell.data[site] for cell in folds if site in cell.data]) for site in sites},
        }
    )


def _mean_scores(folds: Sequence[CellRecord]) -> Scores:
    """Every score that all folds with cases of the site in that part have."""
    scores: Scores = {}
    for model in _union([cell.scores for cell in folds]):
        parts = [cell.scores.get(model, {}) for cell in folds]
        for part in _union(parts):
            by_fold = [sites.get(part, {}) for sites in parts]
            for site in _union(by_fold):
                weights = [_n_cases(cell, part, site) for cell in folds]
                counted = [
                    (sites.get(site, {}), weight) for sites, weight in zip(by_fold, weights, strict=True) if weight
                ]
                scores.setdefault(model, {}).setdefault(part, {})[site] = {
                    name: fmean((metrics[name] for metrics, _ in counted), [weight for _, weight in counted])
                    for name in _union([metrics for metrics, _ in counted])
                    if all(name in metrics for metrics, _ in counted)
                }
    return scores


def _union(mappings: Sequence[Mapping[str, object]]) -> list[str]:
    """The keys of all, in the order of the mapping with the most."""
    fullest = max(mappings, key=len, default={})
    return list(dict.fromkeys([*fullest, *(key for mapping in mappings for key in mapping)]))


def _n_cases(cell: CellRecord, part: str, site: str) -> int:
    """Cases that a score is of; the same for all folds if it is of all cases of a held-out site."""
    record = cell.data.get(site.rpartition(PAIR_SEPARATOR)[2])
    counts: Mapping[Any, int] = {} if record is None else record.cases or record.n
    return counts.get(part, 1)


def _total(folds: Sequence[DataRecord]) -> DataRecord:
    """A site's data over all folds: the samples and cases of each part together."""
    n: Counter[str] = Counter()
    cases: Counter[str] = Counter()
    for record in folds:
        n.update(record.n)
        cases.update({str(part): count for part, count in record.cases.items()})
    return folds[0].model_copy(update={"n": dict(n), "cases": dict(cases)})


def _mean_curve(curves: Sequence[Sequence[float | None]]) -> list[float | None]:
    """The mean of each round; None where a fold has no score."""
    rounds = zip(*curves, strict=False)
    return [None if None in values else fmean(value for value in values if value is not None) for values in rounds]
