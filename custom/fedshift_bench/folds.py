"""The folds of a cross-validation as one cell: each site's score is then over all its cases, each tested once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from fedshift.schema.results import DataRecord
from fedshift_bench.cell_record import CellRecord, Scores
from fedshift_bench.spec import PAIR_SEPARATOR


def over_folds(cells: Iterable[CellRecord]) -> list[CellRecord]:
    """One cell for all folds of the same labels, seed and draw, in the order of the first of each.

    A site's score is the mean over its folds, each weighted by its cases (samples if cases are not recorded) in the
    scored part; folds without any do not count, as a small site has them. A cell of which a fold has not finished has
    no scores.
    """
    found: dict[tuple[object, ...], list[CellRecord]] = {}
    for cell in cells:
        found.setdefault((*cell.labels.values(), cell.seed, cell.draw), []).append(cell)
    return [_together(folds) for folds in found.values()]


def _together(folds: Sequence[CellRecord]) -> CellRecord:
    first = folds[0]
    states = {cell.state for cell in folds}
    if states != {"done"}:
        state = "failed" if "failed" in states else "missing"
        return first.model_copy(update={"fold": None, "state": state, "scores": {}, "curve": [], "test_curve": []})
    data = [cell.data for cell in folds]
    validation = [cell.validation for cell in folds if cell.validation is not None]
    return first.model_copy(
        update={
            "fold": None,
            "scores": _scores(folds),
            "by_case": {},  # cases of one place in different folds are different cases
            "validation": fmean(validation) if len(validation) == len(folds) else None,
            "curve": _curve([cell.curve for cell in folds]),
            "test_curve": _curve([cell.test_curve for cell in folds]),
            "data": {site: _data([cell.data[site] for cell in folds if site in cell.data]) for site in _union(data)},
        }
    )


def _scores(folds: Sequence[CellRecord]) -> Scores:
    """Every score that all folds with cases of the site in that part have."""
    scores: Scores = {}
    for model in _union([cell.scores for cell in folds]):
        parts = [cell.scores.get(model, {}) for cell in folds]
        for part in _union(parts):
            sites = [of_fold.get(part, {}) for of_fold in parts]
            for site in _union(sites):
                weights = [_weight(cell, part, site) for cell in folds]
                found = [(of.get(site, {}), weight) for of, weight in zip(sites, weights, strict=True) if weight]
                scores.setdefault(model, {}).setdefault(part, {})[site] = {
                    name: fmean((metrics[name] for metrics, _ in found), [weight for _, weight in found])
                    for name in _union([metrics for metrics, _ in found])
                    if all(name in metrics for metrics, _ in found)
                }
    return scores


def _union(of_folds: Sequence[Mapping[str, object]]) -> list[str]:
    """The keys of all folds, in the order of the fold with the most."""
    fullest = max(of_folds, key=len, default={})
    return list(dict.fromkeys([*fullest, *(key for one in of_folds for key in one)]))


def _weight(cell: CellRecord, part: str, site: str) -> int:
    """Cases that a score is of; the same for all folds if it is of all cases of a held-out site."""
    record = cell.data.get(site.rpartition(PAIR_SEPARATOR)[2])
    counts = {} if record is None else record.cases or record.n
    return {str(name): count for name, count in counts.items()}.get(part, 1)


def _data(folds: Sequence[DataRecord]) -> DataRecord:
    """A site's data over all folds: the samples and cases of each part together."""
    n: Counter[str] = Counter()
    cases: Counter[str] = Counter()
    for record in folds:
        n.update(record.n)
        cases.update({str(part): count for part, count in record.cases.items()})
    return folds[0].model_copy(update={"n": dict(n), "cases": dict(cases)})


def _curve(curves: Sequence[Sequence[float | None]]) -> list[float | None]:
    """The mean of each round; None where a fold has no score."""
    return [
        None if any(value is None for value in values) else fmean(value for value in values if value is not None)
        for values in zip(*curves, strict=False)
    ]
