"""The cells of a grid: one value of each axis and a seed, resolved, and identified by a hash of what they compute."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from fedshift.data.locate import find_site
from fedshift.federation.resolve import split_methods
from fedshift.methods import method_set
from fedshift.methods.shared import search
from fedshift.methods.shared.search import Distribution, around
from fedshift.schema import components
from fedshift.schema.errors import ConfigError, FedshiftError
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import manifest_sha256, read_manifest
from fedshift.schema.strict import Strict, nearest
from fedshift_bench.cell_plan import CellKind, CellPlan, command, make_plan
from fedshift_bench.spec import DOMAINS, FOLD, Settings, Spec, Tuning, cell_name

LEARNING_RATE = "optimizer.lr"
"""The option that every row draws."""
HASH_DIGITS = 16
"""Hexadecimal digits of a cell's hash, the name of its folder."""
MAX_SITES_NAMED = 20


class WorkItem(Strict):
    """The content of a cell's ``cell.json``: everything needed to run the cell and to identify it."""

    kind: CellKind
    name: str
    jobs: dict[str, JobSpec]
    data: dict[str, str]
    """Site -> SHA-256 of its manifest."""

    @property
    def key(self) -> str:
        """The cell's hash over the kind of run, the jobs without their names, and the data."""
        content = {
            "kind": self.kind,
            "jobs": {
                site if self.kind == "leave_one_out" else "": {k: v for k, v in job.dump().items() if k != "name"}
                for site, job in self.jobs.items()
            },
            "data": self.data,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:HASH_DIGITS]


@dataclass(frozen=True)
class Cell:
    """One value of each axis, a seed, and a fold if there are any; it can run if it has ``work``.

    ``draw`` is the number of its setting, 0 being the row's own, and ``drawn`` are that setting's options.
    """

    labels: Mapping[str, str]
    seed: int
    settings: Settings
    plan: CellPlan
    work: WorkItem | None
    draw: int = 0
    drawn: Mapping[str, Any] = field(default_factory=dict)
    missing_inputs: tuple[str, ...] = ()
    data: Mapping[str, Path] = field(default_factory=dict)
    fold: int | None = None

    @property
    def name(self) -> str:
        return cell_name(self.labels, self.seed, self.fold, self.draw)

    @property
    def row(self) -> str:
        """Its label of the first axis."""
        return next(iter(self.labels.values()))

    @property
    def commands(self) -> list[str]:
        """The shell commands that repeat this cell alone."""
        return command(self.settings, self.seed, name=self.plan.name, is_pooled=self.plan.is_pooled)

    def work_on(self, data: Mapping[str, str]) -> WorkItem:
        """What the cell is with sites' data of these hashes."""
        return WorkItem(kind=self.plan.kind, name=self.plan.name, jobs=self.plan.at(self.seed), data=dict(data))


OnCount = Callable[[int, int], None]
"""Gets how many are done, and their total."""


def ignore_count(n_done: int, n_all: int) -> None:
    """An `OnCount` that shows nothing."""


def make_cells(spec: Spec, *, folder: Path, on_resolved: OnCount = ignore_count) -> list[Cell]:
    """Resolve all cells of a spec, whose file is in ``folder``.

    The first axis varies slowest, then the others, the draw, the seed, the fold.

    Raises:
        ConfigError: a cell cannot be resolved (the message names its labels), or metrics differ between cells.
    """
    resolver = _Resolver(spec, folder)
    combinations = list(product(*(values.items() for values in spec.axes.values())))
    cells: list[Cell] = []
    for number, chosen in enumerate(combinations, 1):
        cells += resolver.cells_of(dict(zip(spec.axes, (label for label, _ in chosen), strict=True)))
        on_resolved(number, len(combinations))
    metrics = sorted({cell.plan.metric for cell in cells})
    if spec.metric is None and len(metrics) > 1:
        what = f"cells have different metrics ({', '.join(metrics)})"
        raise ConfigError("different-metrics", f"{what}: name one with 'metric'")
    return cells


class _Resolver:
    """Resolves each setting, and looks for each site's data, once."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        self._spec, self._folder = spec, folder
        self._plans: dict[str, CellPlan] = {}
        self._data: dict[tuple[str, tuple[str, ...]], _Data] = {}

    def cells_of(self, labels: Mapping[str, str]) -> list[Cell]:
        """All cells with these labels."""
        spec = self._spec
        try:
            values = [spec.axes[axis][label] for axis, label in labels.items()]
            settings = merge(spec, values)
            plan = self._plan(settings)
            self._check(plan)
            fixed = {key for value in values for key in value.options}
            drawn = [{}, *draw_settings(spec.tuning, plan.job, fixed)] if isinstance(spec.tuning, Tuning) else [{}]
            tried = [
                (draw, options, fold, each, self._plan(each))
                for draw, options in enumerate(drawn)
                for fold in spec.folds or (None,)
                for each in (_with_options(settings, {**options, **({} if fold is None else {FOLD: fold})}),)
            ]
        except ConfigError as error:
            raise ConfigError(error.code, f"cell {', '.join(labels.values())}: {error}") from None
        data = self._find_data(plan)
        missing = (*plan.missing_inputs, *data.missing_inputs)
        cells = [
            Cell(labels, seed, each, cell_plan, None, draw, options, missing, data.folders, fold)
            for seed in spec.seeds
            for draw, options, fold, each, cell_plan in tried
        ]
        cells.sort(key=lambda cell: cell.draw)
        return cells if missing else [replace(cell, work=cell.work_on(data.hashes)) for cell in cells]

    def _plan(self, settings: Settings) -> CellPlan:
        key = settings.model_dump_json()
        if key not in self._plans:
            self._plans[key] = make_plan(settings, metric=self._spec.metric, folder=self._folder)
        return self._plans[key]

    def _check(self, plan: CellPlan) -> None:
        """Refuse domains and folds for runs that do not have them."""
        if DOMAINS in self._spec.parts(plan.kind):
            if plan.kind != "federation":
                what = "only a federation has gradient norms of domains"
                raise ConfigError("domains-missing", f"part: {what}: set part to val")
            if not plan.job.task.domains:
                what = "the task has no domains, that is, sites that are parts of one"
                raise ConfigError("domains-missing", f"part: {what}: set part to val")
            if not plan.job.evaluation.gradient_norm:
                what = "domains need gradient norms: set the option evaluation.gradient_norm to true"
                raise ConfigError("gradient-norms-missing", f"part: {what}")
        if self._spec.folds and plan.job.task.kind != "segmentation":
            what = f"folds are dealt of cases, and task {plan.job.task.name} has none"
            raise ConfigError("cases-missing", f"{what}: leave out folds")

    def _find_data(self, plan: CellPlan) -> _Data:
        sites = tuple(dict.fromkeys(site for job in plan.jobs.values() for site in job.task.everyone))
        key = (plan.job.task.dataset, sites)
        if key not in self._data:
            self._data[key] = _find_data(*key)
        return self._data[key]


def _with_options(settings: Settings, options: Mapping[str, Any]) -> Settings:
    return settings.model_copy(update={"options": {**settings.options, **options}})


def draw_settings(tuning: Tuning, job: JobSpec, fixed: Collection[str]) -> list[dict[str, Any]]:
    """The settings of a row after its own, without options that an axis has ``fixed``; rows share draws of options."""
    space: dict[str, Distribution | None] = {LEARNING_RATE: around(job.task.optimizer.lr)}
    for method in job.methods:
        space |= {f"{method}.{name}": where for name, where in search.space(method_set.find(method)).items()}
    space |= {key: where for key, where in tuning.options.items() if not method_set.is_method(key.partition(".")[0])}
    for key, where in tuning.options.items():
        method, _, option = key.partition(".")
        components.choose([method])
        if method_set.is_method(method) and option not in method_set.find(method).Config.model_fields:
            raise ConfigError("unknown-option", f"tuning.options: method {method} has no option {option!r}")
        if method in job.methods:
            space[key] = where
    drawn = {key: where for key, where in space.items() if where is not None and key not in fixed}
    return [
        {key: where.draw(key, number=number, seed=tuning.seed) for key, where in drawn.items()}
        for number in range(1, tuning.draws)
    ]


def merge(spec: Spec, values: Sequence[Settings]) -> Settings:
    """Combine the settings of all cells with the values of the axes; later values override, options key by key.

    An option of a method that the cell does not use is dropped, unless the same axis value sets ``methods``.
    """
    merged: dict[str, Any] = {key: getattr(spec, key) for key in Settings.model_fields}
    for value in values:
        merged |= {key: getattr(value, key) for key in value.model_fields_set}
    names = split_methods(merged["methods"]) if merged["methods"] else []
    components.choose(names)
    used = {method.name for method in method_set.load({name: {} for name in names})}
    options: dict[str, Any] = {}
    for layer in (spec, *values):
        sets_methods = layer.methods is not None and layer is not spec
        for key, option in layer.options.items():
            method = key.partition(".")[0]
            if sets_methods or not method_set.is_method(method) or method in used:
                options[key] = option
    return Settings.model_validate({**merged, "options": options})


def choose(
    cells: Sequence[Cell], only: Sequence[str], seeds: Sequence[int] = (), folds: Sequence[int] = ()
) -> list[Cell]:
    """Select cells by label, seed and fold; an axis without a label in ``only``, and no ``seeds``, restrict nothing."""
    known_seeds = sorted({cell.seed for cell in cells})
    known_folds = sorted({cell.fold for cell in cells if cell.fold is not None})
    for what, wanted, have in (("seeds", seeds, known_seeds), ("folds", folds, known_folds)):
        for number in set(wanted) - set(have):
            listed = f"the {what} {', '.join(map(str, have))}" if have else f"no {what}"
            raise ConfigError("unknown-number", f"--{what} {number}: the spec has {listed}")
    cells = [cell for cell in cells if (not seeds or cell.seed in seeds) and (not folds or cell.fold in folds)]
    labels: dict[str, set[str]] = {}
    for cell in cells:
        for axis, label in cell.labels.items():
            labels.setdefault(axis, set()).add(label)
    known = {label for names in labels.values() for label in names}
    for label in only:
        if label not in known:
            raise ConfigError("unknown-label", f"--only {label}: no axis has this label{nearest(label, known)}")
    wanted_labels = {axis: names & set(only) or names for axis, names in labels.items()}
    return [cell for cell in cells if all(label in wanted_labels[axis] for axis, label in cell.labels.items())]


@dataclass
class _Data:
    """Folders and manifest hashes of sites' data, and sentences on what is missing."""

    folders: dict[str, Path] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    missing_inputs: list[str] = field(default_factory=list)


def _find_data(dataset: str, sites: Sequence[str]) -> _Data:
    """Find the sites' data; all sites without data share one sentence."""
    result = _Data()
    absent: dict[str, str] = {}
    phantoms = []
    for site in sites:
        try:
            folder = find_site(dataset, site, local=None, simulator=True)
            phantoms += [site] if read_manifest(folder).kind == "phantom" else []
        except FedshiftError as error:
            absent[site] = str(error)
            continue
        result.folders[site], result.hashes[site] = folder, manifest_sha256(folder)
    if absent:
        first, *_, last = [*absent, *absent]
        names = ", ".join(absent) if len(absent) <= MAX_SITES_NAMED else f"{len(absent)} sites, {first} to {last}"
        result.missing_inputs.append(f"data of {dataset} at {names} ({absent[first]})")
    if 0 < len(phantoms) < len(result.folders):
        what = "only the phantom is there, which cannot be mixed with real data"
        result.missing_inputs.append(f"data of {dataset} at {', '.join(phantoms)}: {what}")
    return result


REFERENCE = "trains on all sites' images in one place: a reference, and no federated method"
"""Why a centralised reference gets no row unless the spec names it."""


def expand(spec: Spec, *, folder: Path, on_tried: OnCount = ignore_count) -> tuple[Spec, dict[str, str]]:
    """Add a row for every method that the spec asks for (`Spec.every_method`) and does not name itself.

    Returned too are the methods without a row, and why: the spec leaves them out, they are centralised references, or
    their job is refused.
    """
    if spec.every_method is None:
        return spec, {}
    for name in spec.every_method.without:
        method_set.find(name)
    rows, left_out = dict(spec.axes[spec.row_axis]), {}
    named = {tuple(split_methods(row.methods)) for row in rows.values() if row.methods is not None}
    new = [name for name in method_set.available() if (name,) not in named]
    for number, name in enumerate(new, 1):
        settings = Settings(methods=name)
        reason = spec.every_method.without.get(name) or _refusal(spec, settings, folder)
        if reason:
            left_out[name] = " ".join(reason.split())
        else:
            rows[name] = settings
        on_tried(number, len(new))
    return spec.with_rows(rows), left_out


def add_rows(spec: Spec, methods: Sequence[str], options: Mapping[str, Any]) -> tuple[Spec, list[str]]:
    """Add rows of a user's own to an expanded spec, or find those that it has; and their labels, in order.

    ``methods`` are names as for ``fedshift job``, or rows' labels; a row with ``options`` is called after them.
    """
    rows, labels = dict(spec.axes[spec.row_axis]), []
    text = ", ".join(f"{key}={value}" for key, value in options.items())
    for name in methods:
        known = {label.lower(): label for label in rows}.get(name.lower())
        row = rows[known] if known is not None else Settings(methods=name)
        label = known or "+".join(split_methods(name))
        if options:
            label = f"{label} ({text})"
            row = row.model_copy(update={"options": {**row.options, **options}})
        rows.setdefault(label, row)
        labels.append(label)
    return spec.with_rows(rows), labels


def _refusal(spec: Spec, settings: Settings, folder: Path) -> str:
    """Why the task refuses the method, at the first value of each further axis; empty if it takes it."""
    if method_set.pooled_reference({str(settings.methods): {}}) is not None:
        return REFERENCE
    further = [next(iter(values.values())) for values in list(spec.axes.values())[1:]]
    try:
        make_plan(merge(spec, [settings, *further]), metric=spec.metric, folder=folder)
    except ConfigError as error:
        return str(error)
    return ""
