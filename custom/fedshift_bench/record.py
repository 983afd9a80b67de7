"""``cells.json`` (schema 1): a comparison's spec and each cell's results, from which all tables are made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import Field, model_serializer, model_validator

from fedshift.schema.errors import ConfigError
from fedshift.schema.files import write_text
from fedshift.schema.results import DataRecord, Metrics
from fedshift.schema.strict import Strict, first_fault
from fedshift_bench.published import PublishedValue
from fedshift_bench.spec import (
    PAIR_SEPARATOR,
    Average,
    ModelName,
    Pairs,
    Ranking,
    ScoredPart,
    Summary,
    Tuning,
    cell_name,
)

State = Literal["done", "failed", "missing"]
Scores = dict[str, dict[str, dict[str, Metrics]]]
"""ModelName (best, last, personal, site_best) or image_free -> part (test, val, held_out) -> site -> metrics."""
IMAGE_FREE = "image_free"
"""Where the image-free guess is among a cell's scores, beside its models."""
ByCase = dict[str, dict[str, dict[str, list[float]]]]
"""ModelName -> part -> site -> the score of each case, in the order of the site's manifest and without ids."""


class LeftOutSite(Strict):
    """A site whose answers were rejected or missing in rounds of training, before (statistics) or after it, and why.

    Older files count all three as ``rounds``.
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
    """The mean validation score over sites and runs of the model that is shown, which selects settings."""
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
        """The sites that ``average`` covers: all but held-out sites, unless there are no others."""
        return {part: sites for part, sites in self.shown.items() if part != "held_out"} or dict(self.shown)

    @property
    def extra_sites(self) -> list[str]:
        """The held-out sites, if the cell has other sites too."""
        return self.shown.get("held_out", []) if len(self.shown) > 1 else []

    def site_scores(self, model: ModelName, part: ScoredPart, metric: str) -> dict[str, float]:
        """The score at each site, of the best model if the cell has no such model, or else of the last.

        For each site's own best round, cells that fine-tune use their personal models, which exist of one round only.
        """
        sites = self.scores.get(self._shown_model(model, part), {}).get(part, {})
        return {site: values[metric] for site, values in sites.items() if metric in values}

    def case_scores(self, model: ModelName, part: ScoredPart) -> dict[str, list[float]]:
        """As `site_scores`, the score of each case at each site."""
        return self.by_case.get(self._shown_model(model, part), {}).get(part, {})

    def _shown_model(self, model: ModelName, part: ScoredPart) -> str:
        others = ("personal", "best", "last") if model == "site_best" else ("best", "last")
        return next((name for name in (model, *others) if self.scores.get(name, {}).get(part)), model)

    def without_scores(self, state: State) -> CellRecord:
        return self.model_copy(update={"state": state, "scores": {}, "curve": [], "test_curve": []})


def over_folds(cells: Iterable[CellRecord]) -> list[CellRecord]:
    """One cell for all folds of the same labels, seed and draw, without scores if a fold has not finished.

    A site's score is the mean over its folds, weighted by their cases (or samples) in the scored part.
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


FILE_NAME = "cells.json"


class Comparison(Strict):
    """A comparison at one scale."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    name: str
    title: str
    what: str
    scale: str
    axes: dict[str, list[str]]
    seeds: list[int]
    folds: list[int] = []
    metric: str
    model: ModelName
    summaries: list[Summary]
    tests: list[tuple[str, str]] = []
    claims: list[tuple[str, str]] = []
    pairs: Pairs = "seeds"
    average: Average = "sites"
    tuning: str | Tuning = ""
    differences: str = ""
    published: list[PublishedValue] = []
    ranking: Ranking | None = None
    left_out: dict[str, str] = {}
    """Methods without a row, and why (`fedshift_bench.cells`)."""
    spec: dict[str, Any]
    cells: Annotated[list[CellRecord], Field(min_length=1)]

    @model_validator(mode="after")
    def _fits(self) -> Comparison:
        for cell in self.cells:
            if any(label not in self.axes.get(axis, ()) for axis, label in cell.labels.items()):
                raise ValueError(f"cell {cell.name} has a label of no axis")
            if list(cell.labels) != list(self.axes):
                raise ValueError(f"cell {cell.name} does not have one label of each axis")
        return self

    @model_serializer(mode="plain")
    def _plain(self) -> dict[str, Any]:
        fields = type(self).model_fields
        return {("schema" if name == "schema_" else name): _plain(getattr(self, name)) for name in fields}

    @property
    def row_axis(self) -> str:
        """The first axis, whose labels are the rows."""
        return next(iter(self.axes))

    @property
    def rows(self) -> list[str]:
        return self.axes[self.row_axis]

    @property
    def finished(self) -> list[CellRecord]:
        """The finished cells."""
        return [cell for cell in self.cells if cell.is_done]

    @property
    def is_phantom(self) -> bool:
        """Whether any cell's data are simulated."""
        return any(record.kind == "phantom" for cell in self.cells for record in cell.data.values())

    def cells_with(self, labels: Mapping[str, str]) -> list[CellRecord]:
        """The cells with these labels, one per seed: the mean over folds, of the chosen setting if rows have several.

        Before all settings of a row have ended none is chosen, and its cells count as missing.
        """
        return over_folds(self.fold_cells(labels)) if self.folds else self.fold_cells(labels)

    def row_cells(self, row: str, labels: Mapping[str, str]) -> list[CellRecord]:
        """The cells of a row, at these labels of the further axes."""
        return self.cells_with({self.row_axis: row, **labels})

    def fold_cells(self, labels: Mapping[str, str]) -> list[CellRecord]:
        """As `cells_with`, but one for each seed and fold."""
        cells = [cell for cell in self.cells if labels.items() <= cell.labels.items()]
        if not isinstance(self.tuning, Tuning):
            return cells
        chosen: dict[tuple[str, ...], int | None] = {}
        for cell in cells:
            chosen.setdefault(tuple(cell.labels.values()), self.chosen_draw(cell.labels))
        shown = []
        for cell in cells:
            draw = chosen[tuple(cell.labels.values())]
            if cell.draw == (draw or 0):
                shown.append(cell.without_scores("missing") if draw is None else cell)
        return shown

    def draws(self, labels: Mapping[str, str]) -> dict[int, list[CellRecord]]:
        """The cells of a row and column by their setting, one per seed."""
        by_draw: dict[int, list[CellRecord]] = {}
        for cell in self.cells:
            if cell.labels == labels:
                by_draw.setdefault(cell.draw, []).append(cell)
        return by_draw

    def chosen_draw(self, labels: Mapping[str, str]) -> int | None:
        """The setting with the highest validation score, mean over seeds; None before all have ended.

        Not chosen is one of which a cell failed or lacks a site's score: without a difficult site it would win.
        """
        draws = self.draws(labels)
        if any(cell.state == "missing" for cells in draws.values() for cell in cells):
            return None
        scores = {
            draw: fmean(value for cell in cells if (value := cell.validation) is not None)
            for draw, cells in draws.items()
            if all(cell.is_done and cell.validation is not None for cell in cells)
        }
        return max(scores, key=lambda draw: (scores[draw], -draw), default=None)


def _plain(value: Any) -> Any:
    if isinstance(value, Strict):
        return value.model_dump(mode="json", exclude_defaults=True)
    return [_plain(item) for item in value] if isinstance(value, list) else value


def write_comparison(comparison: Comparison, folder: Path) -> Path:
    """Write ``folder/cells.json`` atomically."""
    path = folder / FILE_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, comparison.model_dump_json(indent=1))
    except OSError as error:
        reason = error.strerror
        raise ConfigError("file-write", f"{path} cannot be written ({reason}): name another --out") from None
    return path


def read_comparison(path: Path, *, remedy: str = "remove it and make it again with 'fedshift compare'") -> Comparison:
    """Read a ``cells.json``, named itself or by its folder; ``remedy`` is what to do about one that is not valid.

    Raises:
        ConfigError: the file does not exist, cannot be read or is invalid.
    """
    path = path / FILE_NAME if path.is_dir() else path
    if not path.is_file():
        raise ConfigError("record-missing", f"{path} does not exist: 'fedshift compare' writes it")
    try:
        return Comparison.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("file-read", f"{path} cannot be read ({error.strerror}): see to its permissions") from None
    except ValueError as error:
        what = f"{path} is not a cells.json of this version ({first_fault(error)})"
        raise ConfigError("record-invalid", f"{what}: {remedy}") from None
