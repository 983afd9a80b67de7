"""``cells.json`` (schema 1): a comparison's spec and each cell's results, from which all tables are made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import Field, model_serializer, model_validator

from fedshift.schema.errors import ConfigError
from fedshift.schema.files import write_text
from fedshift.schema.strict import Strict, first_fault
from fedshift_bench.cell_record import CellRecord, over_folds
from fedshift_bench.published import PublishedValue
from fedshift_bench.spec import Average, ModelName, Pairs, Ranking, Summary, Tuning

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
    """Methods without a row, and why (`fedshift_bench.all_methods`)."""
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
    def done(self) -> list[CellRecord]:
        """The finished cells."""
        return [cell for cell in self.cells if cell.is_done]

    @property
    def is_phantom(self) -> bool:
        """Whether any cell's data are simulated."""
        return any(record.kind == "phantom" for cell in self.cells for record in cell.data.values())

    def cells_with(self, labels: Mapping[str, str]) -> list[CellRecord]:
        """The cells with these labels, one per seed: those of the chosen setting if rows have several.

        Before all settings of a row have ended none is chosen, and its cells count as missing. In a cross-validation a
        cell is the mean over its folds (`over_folds`).
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
            if all(cell.is_done and cell.validation is not None for cell in cells)
        }
        return max(scores, key=lambda draw: (scores[draw], -draw), default=None)


def _plain(value: Any) -> Any:
    if isinstance(value, Strict):
        return value.model_dump(mode="json", exclude_defaults=True)
    return [_plain(item) for item in value] if isinstance(value, list) else value


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
        reason = error.strerror
        raise ConfigError("file-write", f"{path} cannot be written ({reason}): name another --out") from None
    return path


def read_comparison(path: Path, *, remedy: str = "remove it and make it again with 'fedshift compare'") -> Comparison:
    """Read a ``cells.json``, named itself or by its folder.

    Args:
        path: the file or its folder.
        remedy: what to do about a file that is not valid.

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
