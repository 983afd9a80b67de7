"""The spec file of ``fedshift compare``: the axes of a grid, shared settings, scales and published values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from fedshift.data.splits import FOLDS
from fedshift.methods.shared.search import Distribution
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import read_yaml
from fedshift.schema.names import Name
from fedshift.schema.strict import Strict, nearest

RunKind = Literal["federation", "leave_one_out", "cross_site"]
ModelName = Literal["best", "last", "personal", "own_best"]
ScoredPart = Literal["test", "val", "held_out", "domains"]
"""``domains``: gradient norms of the task's domains, whose sites' validation samples count together."""
Pairs = Literal["seeds", "sites_and_seeds", "sites_and_folds"]
"""The pairs of a test: both rows' averages over sites for each seed; their scores at each site for each seed; or, in a
cross-validation, those of each site's test part of each fold, averaged over seeds."""
Average = Literal["sites", "samples"]
"""What counts equally in averages over sites; with samples of one test set that is dealt to sites: the score on it."""
Summary = Literal["average", "held_out", "everywhere", "spread"]
FULL = "full"
"""The unchanged spec, as the scale of a spec that defines no scale, or only `QUICK`."""
QUICK = "quick"
DOMAINS = "domains"
PAIR_SEPARATOR = " > "
"""Separates the training site and the test site in a column's name."""
FOLD = "data.fold"
"""The option that `Spec.folds` sets."""
GRADIENT_NORMS = ("gradient_norm", "gradient_norm_squared")
"""The metrics that domains have."""


def _unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    duplicates = [value for number, value in enumerate(values) if value in values[:number]]
    if duplicates:
        raise ValueError(f"{duplicates[0]} is named twice")
    return values


class Settings(Strict):
    """Settings of a cell, given for all cells or for one value of an axis.

    ``options`` are those of ``--set``. ``weights`` names a file of starting weights: in the spec's folder, as a path,
    or in the folders where jobs look for weights.
    """

    task: str | None = None
    protocol: str | None = None
    sites: tuple[str, ...] | None = None
    held_out: tuple[str, ...] | None = None
    methods: str | None = None
    options: dict[str, Any] = {}
    run: RunKind | None = None
    weights: str | None = None


class Published(Strict):
    """Published values: a file in ``published/`` next to the spec's folder, and its labels of our rows and columns."""

    file: str
    rows: dict[str, str] = {}
    columns: dict[str, str] = {}


class Tuning(Strict):
    """Equal budgets: every row gets ``draws`` settings, drawn by ``seed``, of which the first is its own.

    Drawn are the options that a row's methods list (`fedshift.methods.shared.search`) and those in ``options``, with
    null for one that is not to be drawn; ``optimizer.lr`` is drawn between a tenth and ten times its value unless
    ``options`` says otherwise. An option that the value of an axis sets is never drawn. ``remark`` is copied into all
    outputs.
    """

    draws: int = Field(ge=1)
    seed: int = Field(default=0, ge=0)
    options: dict[str, Distribution | None] = {}
    remark: str = ""


class EveryMethod(Strict):
    """A row of its own for each method that the task takes, besides the rows that the spec names.

    ``without`` are methods that get none, with the reason.
    """

    without: dict[str, str] = {}


class Ranking(Strict):
    """Mean ranks of the rows, and tests of each against one of them (`fedshift_bench.ranks`).

    ``against`` is the row that the others are tested against. ``references`` are rows that are shown but not ranked.
    """

    against: str
    references: tuple[str, ...] = ()


class Samples(Strict):
    """Number of samples at a site, used for the estimate if its data are missing."""

    train: int = Field(ge=1)
    val: int = Field(default=0, ge=0)
    test: int = Field(default=0, ge=0)


class Spec(Settings):
    """A comparison at one scale."""

    name: Name
    title: str
    what: str
    metric: str | None = None
    model: ModelName = "best"
    part: ScoredPart | Annotated[tuple[ScoredPart, ...], Field(min_length=1), AfterValidator(_unique)] | None = None
    axes: Annotated[dict[str, Annotated[dict[str, Settings], Field(min_length=1)]], Field(min_length=1)]
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), AfterValidator(_unique)] = (0,)
    folds: Annotated[tuple[Annotated[int, Field(ge=1, le=FOLDS)], ...], AfterValidator(_unique)] = ()
    """Folds of a cross-validation over cases (``data.fold``): a row trains on each of them with each seed."""
    summaries: Annotated[tuple[Summary, ...], AfterValidator(_unique)] | None = None
    tests: tuple[tuple[str, str], ...] = ()
    claims: tuple[tuple[str, str], ...] = ()
    """Orders that the paper claims, [higher, lower]: the tables begin with whether they are confirmed."""
    pairs: Pairs = "seeds"
    average: Average = "sites"
    tuning: str | Tuning = ""
    published: Published | None = None
    differences: str = ""
    samples: Samples | None = None
    every_method: EveryMethod | None = None
    ranking: Ranking | None = None
    finished: str = ""
    """A folder with the results of finished cells, as ``<name>_<scale>/cells.json``, relative to the spec's folder."""

    @property
    def rows(self) -> list[str]:
        """The labels of the first axis."""
        return list(next(iter(self.axes.values())))

    @property
    def draws(self) -> int:
        """Settings of each row."""
        return self.tuning.draws if isinstance(self.tuning, Tuning) else 1

    def parts(self, run: str) -> tuple[ScoredPart, ...]:
        """The scored parts for a kind of run; by default ``test``, or ``held_out`` for ``leave_one_out``."""
        if self.part is None:
            return ("held_out",) if run == "leave_one_out" else ("test",)
        return (self.part,) if isinstance(self.part, str) else self.part


def cell_name(labels: Mapping[str, str], seed: int, fold: int | None, draw: int) -> str:
    """What a cell is called in messages and tables."""
    parts = [f"fold {fold}"] if fold is not None else []
    parts += [f"draw {draw}"] if draw else []
    return ", ".join([*labels.values(), f"seed {seed}", *parts])


def read_spec(path: Path, scale: str | None = None) -> tuple[Spec, str]:
    """Read a spec at a scale, by default ``quick`` if the spec has it, otherwise its first scale.

    A spec without scales, or with only ``quick``, also has the scale ``full``, the unchanged spec. Every scale is
    checked, not only the selected one.

    Returns:
        The spec at the scale, and the scale's name.

    Raises:
        ConfigError: the file or scale does not exist, or the file is not valid YAML or has an invalid key.
    """
    raw = read_yaml(path)
    scales = raw.pop("scales", None) or {}
    if not isinstance(scales, dict) or not all(isinstance(changes, dict | None) for changes in scales.values()):
        raise ConfigError(f"{path}: 'scales' must map names to settings, such as quick: {{seeds: [0]}}")
    found = {
        str(name): _parse(_merge(raw, changes or {}, f"{path}: scales.{name}"), f"{path}: scale {name}")
        for name, changes in scales.items()
    }
    if found.keys() <= {QUICK}:
        found[FULL] = _parse(raw, str(path))
    rows = {row for spec in found.values() for row in spec.rows}
    for name, spec in found.items():
        for row in spec.published.rows if spec.published else ():
            if row not in rows:
                raise ConfigError(f"{path}: scale {name}: published.rows: there is no row {row!r}{nearest(row, rows)}")
    chosen = scale or (QUICK if QUICK in found else next(iter(found)))
    if chosen not in found:
        raise ConfigError(f"{path} has no scale {chosen!r}{nearest(chosen, found)}")
    return found[chosen], chosen


def _parse(raw: Mapping[str, Any], where: str) -> Spec:
    axes = _mapping(raw.get("axes"), f"{where}: axes")
    parsed: dict[str, dict[str, Settings]] = {}
    for axis, values in axes.items():
        # YAML reads labels such as 0.17 or 5 as numbers.
        parsed[_label(axis, where)] = {
            _label(label, where): Settings.parse(value or {}, where=f"{where}: axes.{axis}.{label}")
            for label, value in _mapping(values, f"{where}: axes.{axis}").items()
        }
    published = raw.get("published")
    if isinstance(published, dict):
        labels = {key: _labels(published[key], where) for key in ("rows", "columns") if published.get(key)}
        published = Published.parse({**published, **labels}, where=f"{where}: published")
    spec = Spec.parse({**raw, "axes": parsed, "published": published}, where=where)
    if isinstance(spec.part, tuple) and len({"test", "val", "domains"} & set(spec.part)) > 1:
        raise ConfigError(
            f"{where}: part: test, val and domains are all of the training sites: name only one of them (held_out may "
            "be added)"
        )
    if DOMAINS in spec.parts("federation"):
        if spec.metric not in GRADIENT_NORMS:
            raise ConfigError(
                f"{where}: part: domains have gradient norms only: set metric to {' or '.join(GRADIENT_NORMS)}"
            )
        if spec.average == "samples":
            raise ConfigError(f"{where}: part: domains count equally in averages: leave out average: samples")
    if spec.folds and any(FOLD in settings.options for settings in _all_settings(spec)):
        raise ConfigError(f"{where}: folds sets {FOLD} for each cell: leave the option out")
    if spec.pairs == "sites_and_folds" and not spec.folds:
        raise ConfigError(f"{where}: pairs: sites_and_folds needs folds, such as folds: [1, 2, 3, 4, 5]")
    for key, pairs in (("tests", spec.tests), ("claims", spec.claims)):
        for pair in pairs:
            for label in pair:
                if label not in spec.rows:
                    raise ConfigError(f"{where}: {key}: there is no row {label!r}{nearest(label, spec.rows)}")
            if pair[0] == pair[1]:
                raise ConfigError(f"{where}: {key}: {pair[0]} cannot be tested against itself")
    for higher, lower in spec.claims:
        if not {(higher, lower), (lower, higher)} & set(spec.tests):
            raise ConfigError(f"{where}: claims: add [{higher}, {lower}] to tests, so that its figures are shown too")
    for label in (spec.ranking.against, *spec.ranking.references) if spec.ranking else ():
        if label not in spec.rows:
            raise ConfigError(f"{where}: ranking: there is no row {label!r}{nearest(label, spec.rows)}")
    return spec


def _all_settings(spec: Spec) -> list[Settings]:
    return [spec, *(value for values in spec.axes.values() for value in values.values())]


def _label(value: object, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{where}: YAML does not read the label {value} as text: put it in quotes")
    return str(value)


def _labels(value: object, where: str) -> Any:
    if not isinstance(value, dict):
        return value
    return {_label(ours, where): printed for ours, printed in value.items()}


def _mapping(value: object, where: str) -> dict[Any, Any]:
    if not isinstance(value, dict) or not value:
        raise ConfigError(f"{where} must map names to settings, not be {value!r}")
    return value


def _settings(value: object, where: str) -> dict[Any, Any]:
    """The settings of a label, which may have none."""
    return {} if value is None or value == {} else _mapping(value, where)


def _merge(raw: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The spec's keys overridden by a scale's: options by key, axes by label; null removes a label or an axis."""
    merged = dict(raw)
    for key, value in changes.items():
        if key == "axes":
            axes = _mapping(raw.get(key), f"{where}: the spec's own axes")
            merged[key] = _merge_axes(axes, _mapping(value, f"{where}: axes"), where)
        else:
            merged[key] = _override(raw.get(key), value) if key == "options" else value
    return merged


def _merge_axes(axes: dict[Any, Any], changes: dict[Any, Any], where: str) -> dict[Any, Any]:
    merged = dict(axes)
    for axis, values in changes.items():
        if values is None:
            merged.pop(axis, None)
            continue
        labels = {} if axes.get(axis) is None else dict(_mapping(axes[axis], f"{where}: the spec's own axes.{axis}"))
        for label, value in _mapping(values, f"{where}: axes.{axis}").items():
            if value is None:
                if label not in labels:
                    known = nearest(str(label), map(str, labels))
                    raise ConfigError(f"{where}: axes.{axis}: there is no {label!r} to remove{known}")
                del labels[label]
            else:
                before = _settings(labels.get(label), f"{where}: the spec's own axes.{axis}.{label}")
                value = _settings(value, f"{where}: axes.{axis}.{label}")
                options = _override(before.get("options"), value.get("options"))
                labels[label] = {**before, **value, **({"options": options} if options else {})}
        merged[axis] = labels
    return merged


def _override(before: Any, value: Any) -> Any:
    """Merge two mappings; anything else is replaced, unless the new value is empty."""
    return {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value or before
