"""The file that ``fedshift compare`` reads: axes of a grid, what all cells share, scales, what stands beside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from fedshift.schema.errors import ConfigError
from fedshift.schema.job import Name, read_yaml
from fedshift.schema.strict import Strict, nearest

RunKind = Literal["federation", "leave_one_out", "cross_site"]
Model = Literal["best", "last", "personal"]
Part = Literal["test", "val", "held_out"]
Summary = Literal["average", "held_out", "everywhere", "spread"]
FULL = "full"
"""The scale of a spec that names none but perhaps `QUICK`: the spec as it stands."""
QUICK = "quick"


def _unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    twice = [value for number, value in enumerate(values) if value in values[:number]]
    if twice:
        raise ValueError(f"{twice[0]} is named twice")
    return values


class Settings(Strict):
    """What makes a cell; given for all cells or for one value of an axis. ``options`` are what ``--set`` takes.

    ``weights`` names a file of starting weights, beside the spec, or where jobs look for them.
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
    """A paper's figures: a file in ``published/`` beside the spec's folder, and its labels for ours."""

    file: str
    rows: dict[str, str] = {}
    columns: dict[str, str] = {}


class Samples(Strict):
    """How many samples a site has: only for the estimate, where data are lacking."""

    train: int = Field(ge=1)
    val: int = Field(default=0, ge=0)
    test: int = Field(default=0, ge=0)


class Spec(Settings):
    """A comparison at one scale."""

    name: Name
    title: str
    what: str
    metric: str | None = None
    model: Model = "best"
    part: Part | Annotated[tuple[Part, ...], Field(min_length=1), AfterValidator(_unique)] | None = None
    axes: Annotated[dict[str, Annotated[dict[str, Settings], Field(min_length=1)]], Field(min_length=1)]
    seeds: Annotated[tuple[int, ...], Field(min_length=1), AfterValidator(_unique)] = (0,)
    summaries: Annotated[tuple[Summary, ...], AfterValidator(_unique)] | None = None
    tests: tuple[tuple[str, str], ...] = ()
    tuning: str | dict[str, Any] = ""
    published: Published | None = None
    differences: str = ""
    samples: Samples | None = None

    @property
    def rows(self) -> list[str]:
        """Labels of the first axis."""
        return list(next(iter(self.axes.values())))

    def parts(self, run: str) -> tuple[Part, ...]:
        """The parts that are scored; by default ``test``, and all of a site that leave-one-out holds out."""
        if self.part is None:
            return ("held_out",) if run == "leave_one_out" else ("test",)
        return (self.part,) if isinstance(self.part, str) else self.part


def read_spec(path: Path, scale: str | None = None) -> tuple[Spec, str]:
    """A spec at a scale, and the scale's name; by default ``quick`` if the spec has it, else its first.

    A spec without scales, or with ``quick`` alone, has the scale ``full``: the spec as it stands. Every scale is
    checked, also those that are not asked for.

    Raises:
        ConfigError: no such file, not YAML, no such scale, or a key that does not fit.
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
        # Labels such as 0.17 or 5 are numbers to YAML.
        parsed[_label(axis, where)] = {
            _label(label, where): Settings.parse(value or {}, where=f"{where}: axes.{axis}.{label}")
            for label, value in _mapping(values, f"{where}: axes.{axis}").items()
        }
    published = raw.get("published")
    if isinstance(published, dict):
        labels = {key: _labels(published[key], where) for key in ("rows", "columns") if published.get(key)}
        published = Published.parse({**published, **labels}, where=f"{where}: published")
    spec = Spec.parse({**raw, "axes": parsed, "published": published}, where=where)
    if isinstance(spec.part, tuple) and {"test", "val"} <= set(spec.part):
        raise ConfigError(f"{where}: part: test and val are of the same sites: name one of them, beside held_out")
    for pair in spec.tests:
        for label in pair:
            if label not in spec.rows:
                raise ConfigError(f"{where}: tests: there is no row {label!r}{nearest(label, spec.rows)}")
        if pair[0] == pair[1]:
            raise ConfigError(f"{where}: tests: {pair[0]} cannot be tested against itself")
    return spec


def _label(value: object, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{where}: the label {value} is no text to YAML: put it into quotes")
    return str(value)


def _labels(value: object, where: str) -> Any:
    if not isinstance(value, dict):
        return value
    return {_label(ours, where): printed for ours, printed in value.items()}


def _mapping(value: object, where: str) -> dict[Any, Any]:
    if not isinstance(value, dict) or not value:
        raise ConfigError(f"{where} must hold names and settings, not {value!r}")
    return value


def _merge(raw: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A scale's keys over the spec's: options key by key, axes label by label; null takes a label or an axis away."""
    merged = dict(raw)
    for key, value in changes.items():
        if key == "axes":
            merged[key] = _merge_axes(_mapping(raw.get(key), where), _mapping(value, f"{where}: axes"), where)
        else:
            merged[key] = _over(raw.get(key), value) if key == "options" else value
    return merged


def _merge_axes(axes: dict[Any, Any], changes: dict[Any, Any], where: str) -> dict[Any, Any]:
    merged = dict(axes)
    for axis, values in changes.items():
        if values is None:
            merged.pop(axis, None)
            continue
        labels = dict(axes.get(axis) or {})
        for label, value in _mapping(values, f"{where}: axes.{axis}").items():
            if value is None:
                if label not in labels:
                    known = nearest(str(label), map(str, labels))
                    raise ConfigError(f"{where}: axes.{axis}: there is no {label!r} to take away{known}")
                del labels[label]
            else:
                before = labels.get(label) or {}
                options = _over(before.get("options"), value.get("options")) if isinstance(value, dict) else None
                labels[label] = {**before, **value, **({"options": options} if options else {})}
        merged[axis] = labels
    return merged


def _over(before: Any, value: Any) -> Any:
    return {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value or before
