"""``cells.json`` (schema 1): a comparison's spec and each cell's results, from which all tables are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import Field, model_serializer, model_validator

from fedshift.reporting.known_scores import needs_voxel_size
from fedshift.schema.errors import ConfigError
from fedshift.schema.files import write_text
from fedshift.schema.results import FROM_SCRATCH
from fedshift.schema.strict import Strict, first_fault
from fedshift_bench.cell_record import CellRecord
from fedshift_bench.folds import over_folds
from fedshift_bench.published import PublishedValue
from fedshift_bench.spec import (
    Average,
    ModelName,
    Pairs,
    Ranking,
    Summary,
    Tuning,
)

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
    """Methods without a row, and why (`fedshift_bench.every`)."""
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

    def of(self, labels: Mapping[str, str]) -> list[CellRecord]:
        """The cells with these labels, one per seed: those of the chosen setting if rows have several.

        Before all settings of a row have ended none is chosen, and its cells count as missing. In a cross-validation a
        cell is the mean over its folds, see `fedshift_bench.folds.over_folds`.
        """
        return over_folds(self.of_folds(labels)) if self.folds else self.of_folds(labels)

    def of_folds(self, labels: Mapping[str, str]) -> list[CellRecord]:
        """As `of`, but one for each seed and fold."""
        found = [cell for cell in self.cells if all(cell.labels[axis] == label for axis, label in labels.items())]
        if not isinstance(self.tuning, Tuning):
            return found
        chosen: dict[tuple[str, ...], int | None] = {}
        for cell in found:
            chosen.setdefault(tuple(cell.labels.values()), self.chosen_draw(cell.labels))
        shown = []
        for cell in found:
            draw = chosen[tuple(cell.labels.values())]
            if draw is None and cell.draw == 0:
                shown.append(cell.model_copy(update={"state": "missing", "scores": {}, "curve": [], "test_curve": []}))
            elif cell.draw == draw:
                shown.append(cell)
        return shown

    def draws(self, labels: Mapping[str, str]) -> dict[int, list[CellRecord]]:
        """The cells of a row and column by their setting, one per seed."""
        found: dict[int, list[CellRecord]] = {}
        for cell in self.cells:
            if cell.labels == labels:
                found.setdefault(cell.draw, []).append(cell)
        return found

    def chosen_draw(self, labels: Mapping[str, str]) -> int | None:
        """The setting with the highest validation score, mean over seeds; the earlier of equals.

        A setting of which a cell failed or lacks a site's validation score is not chosen: without the score of a
        difficult site it would win. None before all have ended, or if none can be chosen.
        """
        draws = self.draws(labels)
        if any(cell.state == "missing" for cells in draws.values() for cell in cells):
            return None
        scores = {
            draw: fmean(value for cell in cells if (value := cell.validation) is not None)
            for draw, cells in draws.items()
            if all(cell.state == "done" and cell.validation is not None for cell in cells)
        }
        return max(scores, key=lambda draw: (scores[draw], -draw), default=None)

    @property
    def is_phantom(self) -> bool:
        """Whether any cell's data are simulated."""
        return any(record.kind == "phantom" for cell in self.cells for record in cell.data.values())

    @property
    def notes(self) -> list[str]:
        """Notes that every output must contain: data, weights, versions, faults, missing cells."""
        done = [cell for cell in self.cells if cell.state == "done"]
        kinds = {record.kind for cell in done for record in cell.data.values()}
        weights = sorted({cell.initial_weights for cell in done})
        notes = []
        if "phantom" in kinds:
            notes.append("The data are the phantom: simulated scans, no patients.")
        if len(kinds) > 1:
            notes.append(f"Cells are of different kinds of data ({', '.join(sorted(kinds))}): do not compare them.")
        if weights == [FROM_SCRATCH]:
            notes.append("All networks start from scratch (random weights).")
        elif weights:
            notes.append(f"Initial weights: {'; '.join(weights)}.")
        if self.model != "last" and self.spec.get("run") != "cross_site":
            by = {cell.selected_by for cell in done} - {"", self.metric}
            if by:
                notes.append(f"The best round is selected by {' or '.join(sorted(by))}, not by the score shown here.")
        notes += _departures(done)
        if any(cell.minutes is not None for cell in done):
            notes.append(
                "Rounds end by the clock (schedule.minutes): these cells cannot be repeated bit for bit, and what else "
                "the machine did has its part in their scores."
            )
        lost = sorted({site for cell in done for site, record in cell.data.items() if record.unknown_spacing})
        if lost and needs_voxel_size(self.metric):
            notes.append(
                f"Voxel sizes are unknown at {', '.join(lost)}: {self.metric} there is computed as if voxels were of "
                "1 x 1 x 1 mm."
            )
        notes += _versions(done)
        if len({cell.device for cell in done}) > 1:
            notes.append(f"Cells were trained on different devices: {', '.join(sorted({c.device for c in done}))}.")
        notes += _precisions(done)
        if any(len(found) > 1 for found in _by_site(done).values()):
            notes.append("Cells of one site come from different preparations of its data.")
        notes += [
            f"{cell.name}: site {left.site} was left out of {left.left_out_of} ({left.reason})."
            for cell in done
            for left in cell.left_out
        ]
        missing = len(self.cells) - len(done)
        if missing:
            notes.append(f"{missing} of {len(self.cells)} cells are missing; rows without all seeds are never bold.")
        return notes

    @model_serializer(mode="plain")
    def _plain(self) -> dict[str, Any]:
        return {
            ("schema" if name == "schema_" else name): _plain(getattr(self, name)) for name in type(self).model_fields
        }


def _plain(value: Any) -> Any:
    if isinstance(value, Strict):
        return value.model_dump(mode="json", exclude_defaults=True)
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _departures(cells: Sequence[CellRecord]) -> list[str]:
    """What protocols have and cells have not, each with the first labels of its cells, unless it is all of them."""
    found: dict[str, dict[str, None]] = {}
    for cell in cells:
        for departure in cell.departures:
            found.setdefault(departure, {})[next(iter(cell.labels.values()))] = None
    rows = {next(iter(cell.labels.values())) for cell in cells}
    return [
        f"Not the protocol{'' if set(labels) == rows else ' at ' + ', '.join(labels)}: {departure}."
        for departure, labels in found.items()
    ]


def _versions(cells: Sequence[CellRecord]) -> list[str]:
    """Which version of fedshift made which rows, if it was more than one."""
    rows: dict[str, dict[str, None]] = {}
    for cell in cells:
        rows.setdefault(f"{cell.version} (source {cell.source})", {})[next(iter(cell.labels.values()))] = None
    told = [f"{version} made {', '.join(labels)}" for version, labels in sorted(rows.items())]
    return [f"Cells come from different versions of fedshift: {'; '.join(told)}."] if len(told) > 1 else []


def _precisions(cells: Sequence[CellRecord]) -> list[str]:
    """Which rows were trained in which precision, if it was more than one: ``auto`` depends on the processor."""
    rows: dict[str, dict[str, None]] = {}
    for cell in cells:
        if cell.precision:
            rows.setdefault(cell.precision, {})[next(iter(cell.labels.values()))] = None
    told = [f"{', '.join(labels)} in {precision}" for precision, labels in sorted(rows.items())]
    return [f"Cells were trained in different precision: {'; '.join(told)}."] if len(told) > 1 else []


def _by_site(cells: Iterable[CellRecord]) -> dict[tuple[str, str], set[str]]:
    manifests: dict[tuple[str, str], set[str]] = {}
    for cell in cells:
        for site, record in cell.data.items():
            # Further axes may be data sets that share names of sites; rows of one column share their data.
            column = " ".join(list(cell.labels.values())[1:])
            manifests.setdefault((column, site), set()).add(record.manifest_sha256)
    return manifests


def write_comparison(comparison: Comparison, folder: Path) -> Path:
    """Write ``folder/cells.json`` atomically.

    Raises:
        ConfigError: the file cannot be written.
    """
    path = folder / FILE_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, comparison.model_dump_json(indent=1))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}): name another --out") from None
    return path


def read_comparison(path: Path, *, mend: str = "remove it and make it again with 'fedshift compare'") -> Comparison:
    """Read a ``cells.json``, named itself or by its folder.

    Args:
        path: the file or its folder.
        mend: what to do about a file that is not valid.

    Raises:
        ConfigError: the file does not exist, cannot be read or is invalid.
    """
    path = path / FILE_NAME if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: 'fedshift compare' writes it")
    try:
        return Comparison.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): see to its permissions") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not a cells.json of this version ({first_fault(error)}): {mend}") from None
