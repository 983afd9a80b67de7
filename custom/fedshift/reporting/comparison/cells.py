"""The cells of a grid: one value of each axis and a seed, resolved and told apart by what they compute."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from fedshift.data.locate import find_site
from fedshift.federation.resolve import split_methods
from fedshift.methods import method_set
from fedshift.reporting.comparison.plan import Kind, Plan, command, make_plan
from fedshift.reporting.comparison.spec import Settings, Spec
from fedshift.schema.errors import ConfigError, FedshiftError
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import manifest_sha256, read_manifest
from fedshift.schema.strict import Strict, nearest

DIGITS = 16
"""Of a cell's hash, which names its folder."""


class Work(Strict):
    """What a cell's folder says that it holds: enough to run it, and to know it again."""

    kind: Kind
    name: str
    jobs: dict[str, JobSpec]
    data: dict[str, str]
    """Site -> hash of its manifest."""

    @property
    def key(self) -> str:
        """The cell's hash: kind of run, jobs without their names, and data."""
        content = {
            "kind": self.kind,
            "jobs": {
                site if self.kind == "leave_one_out" else "": {k: v for k, v in job.dump().items() if k != "name"}
                for site, job in self.jobs.items()
            },
            "data": self.data,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:DIGITS]


@dataclass(frozen=True)
class Cell:
    """One value of each axis, and a seed. ``work`` is None where something is lacking on this machine."""

    labels: Mapping[str, str]
    seed: int
    settings: Settings
    plan: Plan
    work: Work | None
    lacking: tuple[str, ...] = ()
    data: Mapping[str, Path] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``FedFA, 0.17, seed 2``."""
        return ", ".join([*self.labels.values(), f"seed {self.seed}"])

    @property
    def commands(self) -> list[str]:
        """What repeats this cell alone."""
        return command(self.settings, self.seed, name=self.plan.name, is_pooled=self.plan.is_pooled)


def make_cells(
    spec: Spec, *, folder: Path, on_resolved: Callable[[int, int], None] = lambda done, of: None
) -> list[Cell]:
    """All cells of a spec, rows first, seeds last.

    Args:
        spec: the spec at its scale.
        folder: where its file is.
        on_resolved: told how many combinations of labels are resolved, and of how many.

    Raises:
        ConfigError: a cell does not resolve; the sentence names its labels.
    """
    plans: dict[str, Plan] = {}
    places: dict[tuple[str, tuple[str, ...]], _Data] = {}
    combinations = list(product(*(values.items() for values in spec.axes.values())))
    cells = []
    for number, chosen in enumerate(combinations):
        labels = dict(zip(spec.axes, (label for label, _ in chosen), strict=True))
        where = ", ".join(labels.values())
        try:
            settings = merge(spec, [value for _, value in chosen])
            same = settings.model_dump_json()
            if same not in plans:
                plans[same] = make_plan(settings, metric=spec.metric, folder=folder)
        except ConfigError as error:
            raise ConfigError(f"cell {where}: {error}") from None
        plan = plans[same]
        sites = tuple(dict.fromkeys(site for job in plan.jobs.values() for site in job.task.everyone))
        asked = (plan.job.task.dataset, sites)
        if asked not in places:
            places[asked] = _find_data(*asked)
        data = places[asked]
        lacking = (*plan.lacking, *data.lacking)
        for seed in spec.seeds:
            work = None
            if not lacking:
                work = Work(kind=plan.kind, name=plan.name, jobs=plan.at(seed), data=dict(data.hashes))
            cells.append(Cell(labels, seed, settings, plan, work, lacking, data.folders))
        on_resolved(number + 1, len(combinations))
    metrics = sorted({cell.plan.metric for cell in cells})
    if spec.metric is None and len(metrics) > 1:
        raise ConfigError(f"cells have different metrics ({', '.join(metrics)}): name one with 'metric'")
    return cells


def merge(spec: Spec, values: Sequence[Settings]) -> Settings:
    """What is said for all cells, then each axis' value over it; options key by key.

    An option of a method that the cell does not use is left out, so that one value may serve several rows; not so
    beside the ``methods`` that it is meant for.
    """
    shared = Settings.model_validate({key: getattr(spec, key) for key in Settings.model_fields if key != "options"})
    merged: dict[str, Any] = dict(shared)
    for value in values:
        merged |= {key: getattr(value, key) for key in value.model_fields_set if key != "options"}
    named = split_methods(merged["methods"]) if merged["methods"] else []
    used = {method.name for method in method_set.load({name: {} for name in named})}
    known = set(method_set.available())
    options: dict[str, Any] = {}
    for layer in (spec, *values):
        bound = layer.methods is not None and layer is not spec
        for key, option in layer.options.items():
            first = key.partition(".")[0]
            if bound or first not in known or first in used:
                options[key] = option
    return Settings.model_validate({**merged, "options": options})


def choose(cells: Sequence[Cell], only: Sequence[str]) -> list[Cell]:
    """Cells whose labels are among those named, for each axis of which one is named.

    Raises:
        ConfigError: no axis has such a label.
    """
    labels: dict[str, set[str]] = {}
    for cell in cells:
        for axis, label in cell.labels.items():
            labels.setdefault(axis, set()).add(label)
    known = set().union(*labels.values()) if labels else set()
    for label in only:
        if label not in known:
            raise ConfigError(f"--only {label}: no axis has such a label{nearest(label, known)}")
    asked = {axis: found & set(only) for axis, found in labels.items()}
    return [cell for cell in cells if all(not asked[a] or label in asked[a] for a, label in cell.labels.items())]


@dataclass
class _Data:
    folders: dict[str, Path] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    lacking: list[str] = field(default_factory=list)


def _find_data(dataset: str, sites: Sequence[str]) -> _Data:
    """Where sites' data are; what is not there is said in one line for all such sites."""
    found, absent, reason = _Data(), [], ""
    kinds: dict[str, list[str]] = {}
    for site in sites:
        try:
            folder = find_site(dataset, site, local=None, simulator=True)
            kinds.setdefault("phantom" if read_manifest(folder).kind == "phantom" else "real", []).append(site)
        except FedshiftError as error:
            absent.append(site)
            reason = reason or str(error)
            continue
        found.folders[site], found.hashes[site] = folder, manifest_sha256(folder)
    if absent:
        which = ", ".join(absent) if len(absent) <= 20 else f"{len(absent)} sites, {absent[0]} to {absent[-1]}"
        found.lacking.append(f"data of {dataset} at {which} ({reason})")
    if len(kinds) > 1:
        simulated = ", ".join(kinds["phantom"])
        found.lacking.append(f"data of {dataset} at {simulated}: only the phantom is there, which mixes with no other")
    return found
