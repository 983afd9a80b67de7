"""The cells of a grid: one value of each axis and a seed, resolved, and identified by a hash of what they compute."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from fedshift.data.locate import find_site
from fedshift.federation.resolve import split_methods
from fedshift.methods import method_set
from fedshift.methods.shared import search
from fedshift.methods.shared.search import Distribution, around
from fedshift.schema.errors import ConfigError, FedshiftError
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import manifest_sha256, read_manifest
from fedshift.schema.strict import Strict, nearest
from fedshift_bench.plan import CellKind, Plan, command, make_plan
from fedshift_bench.spec import DOMAINS, FOLD, Settings, Spec, Tuning, cell_name

LEARNING_RATE = "optimizer.lr"
"""The option that every row draws."""
HASH_DIGITS = 16
"""Hexadecimal digits of a cell's hash, the name of its folder."""


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
    """One value of each axis, a seed, and a fold if there are any.

    ``work`` is None if the cell cannot run because of ``missing_inputs``.
    """

    labels: Mapping[str, str]
    seed: int
    settings: Settings
    plan: Plan
    work: WorkItem | None
    draw: int = 0
    """The number of its setting; 0 is the row's own."""
    drawn: Mapping[str, Any] = field(default_factory=dict)
    """The options of that setting."""
    missing_inputs: tuple[str, ...] = ()
    data: Mapping[str, Path] = field(default_factory=dict)
    fold: int | None = None

    @property
    def name(self) -> str:
        """The labels, the seed, the fold and the draw: ``FedFA, 0.17, seed 2, fold 3, draw 1``."""
        return cell_name(self.labels, self.seed, self.fold, self.draw)

    @property
    def commands(self) -> list[str]:
        """The shell commands that repeat this cell alone."""
        return command(self.settings, self.seed, name=self.plan.name, is_pooled=self.plan.is_pooled)


def make_cells(
    spec: Spec, *, folder: Path, on_resolved: Callable[[int, int], None] = lambda done, of: None
) -> list[Cell]:
    """Resolve all cells of a spec. The first axis varies slowest, then the others, the draw, the seed, the fold.

    Args:
        spec: the spec at its scale.
        folder: the folder of the spec's file.
        on_resolved: called with the number of resolved combinations of labels and their total.

    Raises:
        ConfigError: a cell cannot be resolved (the message names its labels), or metrics differ between cells.
    """
    plans: dict[str, Plan] = {}
    found_data: dict[tuple[str, tuple[str, ...]], _Data] = {}
    combinations = list(product(*(values.items() for values in spec.axes.values())))
    cells = []
    for number, chosen in enumerate(combinations):
        labels = dict(zip(spec.axes, (label for label, _ in chosen), strict=True))
        name = ", ".join(labels.values())

        def planned(settings: Settings) -> Plan:
            key = settings.model_dump_json()
            if key not in plans:
                plans[key] = make_plan(settings, metric=spec.metric, folder=folder)
            return plans[key]

        try:
            values = [value for _, value in chosen]
            settings = merge(spec, values)
            plan = planned(settings)
            if DOMAINS in spec.parts(plan.kind):
                _require_domains(plan)
            if spec.folds and plan.job.task.kind != "segmentation":
                raise ConfigError(f"folds are dealt of cases, and task {plan.job.task.name} has none: leave out folds")
            fixed = {key for value in values for key in value.options}
            drawn = [{}, *draw_settings(spec.tuning, plan.job, fixed)] if isinstance(spec.tuning, Tuning) else [{}]
            tried = [[_with(settings, options, fold) for fold in spec.folds or (None,)] for options in drawn]
            plans_of_draws = [[planned(one) for one in of_draw] for of_draw in tried]
        except ConfigError as error:
            raise ConfigError(f"cell {name}: {error}") from None
        sites = tuple(dict.fromkeys(site for job in plan.jobs.values() for site in job.task.everyone))
        data_key = (plan.job.task.dataset, sites)
        if data_key not in found_data:
            found_data[data_key] = _find_data(*data_key)
        data = found_data[data_key]
        missing_inputs = (*plan.missing_inputs, *data.missing_inputs)
        for draw, (options, of_draw, settings_of_draw) in enumerate(zip(drawn, plans_of_draws, tried, strict=True)):
            for seed in spec.seeds:
                for fold, one, made in zip(spec.folds or (None,), settings_of_draw, of_draw, strict=True):
                    work = None
                    if not missing_inputs:
                        work = WorkItem(kind=made.kind, name=made.name, jobs=made.at(seed), data=dict(data.hashes))
                    cells.append(Cell(labels, seed, one, made, work, draw, options, missing_inputs, data.folders, fold))
        on_resolved(number + 1, len(combinations))
    metrics = sorted({cell.plan.metric for cell in cells})
    if spec.metric is None and len(metrics) > 1:
        raise ConfigError(f"cells have different metrics ({', '.join(metrics)}): name one with 'metric'")
    return cells


def _with(settings: Settings, options: Mapping[str, Any], fold: int | None) -> Settings:
    """Settings with the options of a draw, at a fold."""
    at_fold = {} if fold is None else {FOLD: fold}
    return settings.model_copy(update={"options": {**settings.options, **options, **at_fold}})


def _require_domains(plan: Plan) -> None:
    """Refuse ``part: domains`` for runs that do not have them."""
    if plan.kind != "federation":
        raise ConfigError("part: only a federation has gradient norms of domains: set part to val")
    if not plan.job.task.domains:
        raise ConfigError("part: the task has no domains, that is, sites that are parts of one: set part to val")
    if not plan.job.evaluation.gradient_norm:
        raise ConfigError("part: domains need gradient norms: set the option evaluation.gradient_norm to true")


def draw_settings(tuning: Tuning, job: JobSpec, fixed: Collection[str]) -> list[dict[str, Any]]:
    """The settings of a row after its own: options of the job, by their paths.

    Args:
        tuning: the spec's.
        job: the row's own job; `Distribution.draw` does not depend on it, so rows share the draws of shared options.
        fixed: options that are not drawn, as an axis sets them.

    Raises:
        ConfigError: a range is given for a method's option that it does not have.
    """
    space: dict[str, Distribution | None] = {LEARNING_RATE: around(job.task.optimizer.lr)}
    for method in job.methods:
        space |= {f"{method}.{name}": where for name, where in search.space(method_set.find(method)).items()}
    others = [key for key in tuning.options if key.partition(".")[0] in method_set.available()]
    space |= {key: where for key, where in tuning.options.items() if key not in others}
    for key in others:
        method, _, option = key.partition(".")
        if option not in method_set.find(method).Config.model_fields:
            raise ConfigError(f"tuning.options: method {method} has no option {option!r}")
        if method in job.methods:
            space[key] = tuning.options[key]
    kept = {key: where for key, where in space.items() if where is not None and key not in fixed}
    return [
        {key: where.draw(key, number=number, seed=tuning.seed) for key, where in kept.items()}
        for number in range(1, tuning.draws)
    ]


def merge(spec: Spec, values: Sequence[Settings]) -> Settings:
    """Combine the settings of all cells with the values of the axes; later values override, options key by key.

    An option of a method that the cell does not use is dropped, so that one value can apply to several rows. It is kept
    (and later refused) if the same axis value also sets ``methods``.
    """
    shared = Settings.model_validate({key: getattr(spec, key) for key in Settings.model_fields if key != "options"})
    merged: dict[str, Any] = dict(shared)
    for value in values:
        merged |= {key: getattr(value, key) for key in value.model_fields_set if key != "options"}
    names = split_methods(merged["methods"]) if merged["methods"] else []
    used = {method.name for method in method_set.load({name: {} for name in names})}
    known = set(method_set.available())
    options: dict[str, Any] = {}
    for layer in (spec, *values):
        sets_methods = layer.methods is not None and layer is not spec
        for key, option in layer.options.items():
            prefix = key.partition(".")[0]
            if sets_methods or prefix not in known or prefix in used:
                options[key] = option
    return Settings.model_validate({**merged, "options": options})


def choose(
    cells: Sequence[Cell], only: Sequence[str], seeds: Sequence[int] = (), folds: Sequence[int] = ()
) -> list[Cell]:
    """Select cells by label, seed and fold. Axes without a label in ``only`` are not restricted; no ``seeds`` are all.

    Raises:
        ConfigError: no axis has such a label, or the spec has no such seed or fold.
    """
    known_seeds = sorted({cell.seed for cell in cells})
    known_folds = sorted({cell.fold for cell in cells if cell.fold is not None})
    for what, wanted, have in (("seeds", seeds, known_seeds), ("folds", folds, known_folds)):
        for number in wanted:
            if number not in have:
                listed = f"the {what} {', '.join(map(str, have))}" if have else f"no {what}"
                raise ConfigError(f"--{what} {number}: the spec has {listed}")
    cells = [cell for cell in cells if (not seeds or cell.seed in seeds) and (not folds or cell.fold in folds)]
    labels: dict[str, set[str]] = {}
    for cell in cells:
        for axis, label in cell.labels.items():
            labels.setdefault(axis, set()).add(label)
    known = set().union(*labels.values()) if labels else set()
    for label in only:
        if label not in known:
            raise ConfigError(f"--only {label}: no axis has this label{nearest(label, known)}")
    selected = {axis: found & set(only) for axis, found in labels.items()}
    return [cell for cell in cells if all(not selected[a] or label in selected[a] for a, label in cell.labels.items())]


@dataclass
class _Data:
    """Folders and manifest hashes of sites' data, and sentences on what is missing."""

    folders: dict[str, Path] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    missing_inputs: list[str] = field(default_factory=list)


def _find_data(dataset: str, sites: Sequence[str]) -> _Data:
    """Find the sites' data; all sites without data share one sentence."""
    result, absent, reason = _Data(), [], ""
    kinds: dict[str, list[str]] = {}
    for site in sites:
        try:
            folder = find_site(dataset, site, local=None, simulator=True)
            kinds.setdefault("phantom" if read_manifest(folder).kind == "phantom" else "real", []).append(site)
        except FedshiftError as error:
            absent.append(site)
            reason = reason or str(error)
            continue
        result.folders[site], result.hashes[site] = folder, manifest_sha256(folder)
    if absent:
        names = ", ".join(absent) if len(absent) <= 20 else f"{len(absent)} sites, {absent[0]} to {absent[-1]}"
        result.missing_inputs.append(f"data of {dataset} at {names} ({reason})")
    if len(kinds) > 1:
        simulated = ", ".join(kinds["phantom"])
        result.missing_inputs.append(
            f"data of {dataset} at {simulated}: only the phantom is there, which cannot be mixed with real data"
        )
    return result
