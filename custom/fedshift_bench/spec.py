"""The spec file of ``fedshift compare``: the axes of a grid, shared settings, scales and published values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from fedshift.data.splits import FOLDS
from fedshift.methods.shared.search import Distribution
from fedshift.schema.errors import ConfigError
from fedshift.schema.names import Name
from fedshift.schema.strict import Strict, nearest
from fedshift.schema.yaml_file import read_yaml

RunKind = Literal["federation", "leave_one_out", "cross_site"]
ModelName = Literal["best", "last", "personal", "site_best"]
ScoredPart = Literal["test", "val", "held_out", "domains"]
"""``domains``: gradient norms of the task's domains, whose sites' validation samples count together."""
Pairs = Literal["seeds", "sites_and_seeds", "sites_and_folds"]
"""The pairs of a test: both rows' averages over sites for each seed; their scores at each site for each seed; or, in a
cross-validation, those of each site's test part of each fold, averaged over seeds."""
Average = Literal["sites", "samples"]
"""What counts equally in averages over sites; with samples of one test set that is dealt to sites: the score on it."""
Summary = Literal["average", "held_out", "everywhere", "spread"]
FULL, QUICK = "full", "quick"
"""Scales; ``full`` is the unchanged spec, of a spec that defines no scale or only ``quick``."""
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
    """A row for each method that the task takes, but those in ``without``, which has the reasons."""

    without: dict[str, str] = {}


class Ranking(Strict):
    """Mean ranks of the rows, tested against the row ``against``; ``references`` are shown but not ranked."""

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
    def row_axis(self) -> str:
        """The first axis, whose values are the rows of tables."""
        return next(iter(self.axes))

    @property
    def rows(self) -> list[str]:
        return list(self.axes[self.row_axis])

    @property
    def draws(self) -> int:
        """Settings of each row."""
        return self.tuning.draws if isinstance(self.tuning, Tuning) else 1

    def with_rows(self, rows: Mapping[str, Settings]) -> Spec:
        """The spec with other rows."""
        return self.model_copy(update={"axes": {**self.axes, self.row_axis: dict(rows)}})

    def parts(self, run: str) -> tuple[ScoredPart, ...]:
        """The scored parts for a kind of run; by default ``test``, or ``held_out`` for ``leave_one_out``."""
        if self.part is None:
            return ("held_out",) if run == "leave_one_out" else ("test",)
        return (self.part,) if isinstance(self.part, str) else self.part

    def check(self, where: str) -> None:
        """Check what no single key shows; ``where`` begins the sentence."""
        parts = set(self.parts("federation"))
        settings = [self, *(value for values in self.axes.values() for value in values.values())]
        if len(parts & {"test", "val", DOMAINS}) > 1:
            why = "are all of the training sites: name only one of them (held_out may be added)"
            raise ConfigError("parts-together", f"{where}: part: test, val and domains {why}")
        if DOMAINS in parts and self.metric not in GRADIENT_NORMS:
            why = f"have gradient norms only: set metric to {' or '.join(GRADIENT_NORMS)}"
            raise ConfigError("domain-metric", f"{where}: part: domains {why}")
        if DOMAINS in parts and self.average == "samples":
            why = "count equally in averages: leave out average: samples"
            raise ConfigError("domain-average", f"{where}: part: domains {why}")
        if self.folds and any(FOLD in layer.options for layer in settings):
            raise ConfigError("fold-option", f"{where}: folds sets {FOLD} for each cell: leave the option out")
        if self.pairs == "sites_and_folds" and not self.folds:
            why = "needs folds, such as folds: [1, 2, 3, 4, 5]"
            raise ConfigError("folds-missing", f"{where}: pairs: sites_and_folds {why}")
        for key, pairs in (("tests", self.tests), ("claims", self.claims)):
            for pair in pairs:
                self._check_rows(pair, f"{where}: {key}")
                if pair[0] == pair[1]:
                    raise ConfigError("same-row", f"{where}: {key}: {pair[0]} cannot be tested against itself")
        for pair in self.claims:
            if not {pair, pair[::-1]} & set(self.tests):
                why = f"add [{', '.join(pair)}] to tests, so that its figures are shown too"
                raise ConfigError("claim-untested", f"{where}: claims: {why}")
        if self.ranking is not None:
            self._check_rows((self.ranking.against, *self.ranking.references), f"{where}: ranking")

    def _check_rows(self, labels: Iterable[str], where: str) -> None:
        for label in labels:
            if label not in self.rows:
                raise ConfigError("unknown-row", f"{where}: there is no row {label!r}{nearest(label, self.rows)}")


def cell_name(labels: Mapping[str, str], seed: int, fold: int | None, draw: int) -> str:
    """What a cell is called in messages and tables: ``FedFA, 0.17, seed 2, fold 3, draw 1``."""
    parts = [f"fold {fold}"] if fold is not None else []
    parts += [f"draw {draw}"] if draw else []
    return ", ".join([*labels.values(), f"seed {seed}", *parts])


def folder_name(name: str, scale: str) -> str:
    """The name of the folder of a spec's tables."""
    return name if scale == FULL else f"{name}_{scale}"


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
        raise ConfigError("spec-scales", f"{path}: 'scales' must map names to settings, such as quick: {{seeds: [0]}}")
    specs = {
        str(name): _parse(_merge(raw, changes or {}, f"{path}: scales.{name}"), f"{path}: scale {name}")
        for name, changes in scales.items()
    }
    if specs.keys() <= {QUICK}:
        specs[FULL] = _parse(raw, str(path))
    rows = {row for spec in specs.values() for row in spec.rows}
    for name, spec in specs.items():
        for row in spec.published.rows if spec.published else ():
            if row not in rows:
                where = f"{path}: scale {name}: published.rows"
                raise ConfigError("unknown-row", f"{where}: there is no row {row!r}{nearest(row, rows)}")
    chosen = scale or (QUICK if QUICK in specs else next(iter(specs)))
    if chosen not in specs:
        raise ConfigError("unknown-scale", f"{path} has no scale {chosen!r}{nearest(chosen, specs)}")
    return specs[chosen], chosen


def _parse(raw: Mapping[str, Any], where: str) -> Spec:
    axes = {
        _label(axis, where): {
            _label(label, where): Settings.parse(value or {}, where=f"{where}: axes.{axis}.{label}")
            for label, value in _mapping(values, f"{where}: axes.{axis}").items()
        }
        for axis, values in _mapping(raw.get("axes"), f"{where}: axes").items()
    }
    published = raw.get("published")
    if isinstance(published, dict):
        labels = {
            key: {_label(ours, where): theirs for ours, theirs in published[key].items()}
            for key in ("rows", "columns")
            if isinstance(published.get(key), dict)
        }
        published = Published.parse({**published, **labels}, where=f"{where}: published")
    spec = Spec.parse({**raw, "axes": axes, "published": published}, where=where)
    spec.check(where)
    return spec


def _label(value: object, where: str) -> str:
    """A label as text: YAML reads those such as 0.17 or 5 as numbers."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError("label-text", f"{where}: YAML does not read the label {value} as text: put it in quotes")
    return str(value)


def _mapping(value: object, where: str, *, may_be_empty: bool = False) -> dict[Any, Any]:
    if may_be_empty and (value is None or value == {}):
        return {}
    if not isinstance(value, dict) or not value:
        raise ConfigError("no-mapping", f"{where} must map names to settings, not be {value!r}")
    return value


def _merge(raw: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The spec's keys overridden by a scale's: options by key, axes by label; null removes a label or an axis."""
    merged = dict(raw) | {key: value for key, value in changes.items() if key not in ("axes", "options")}
    if "options" in changes:
        merged["options"] = _override(raw.get("options"), changes["options"])
    if "axes" in changes:
        axes = merged["axes"] = dict(_mapping(raw.get("axes"), f"{where}: the spec's own axes"))
        for axis, values in _mapping(changes["axes"], f"{where}: axes").items():
            if values is None:
                axes.pop(axis, None)
            else:
                axes[axis] = _merge_labels(axes.get(axis), values, where, f"axes.{axis}")
    return merged


def _merge_labels(before: object, changes: object, where: str, axis: str) -> dict[Any, Any]:
    ours = f"{where}: the spec's own {axis}"
    labels = {} if before is None else dict(_mapping(before, ours))
    for label, value in _mapping(changes, f"{where}: {axis}").items():
        if value is None and label in labels:
            del labels[label]
        elif value is None:
            known = nearest(str(label), map(str, labels))
            raise ConfigError("unknown-label", f"{where}: {axis}: there is no {label!r} to remove{known}")
        else:
            old = _mapping(labels.get(label), f"{ours}.{label}", may_be_empty=True)
            new = _mapping(value, f"{where}: {axis}.{label}", may_be_empty=True)
            options = _override(old.get("options"), new.get("options"))
            labels[label] = {**old, **new, **({"options": options} if options else {})}
    return labels


def _override(before: Any, value: Any) -> Any:
    """Merge two mappings; anything else is replaced, unless the new value is empty."""
    return {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value or before
