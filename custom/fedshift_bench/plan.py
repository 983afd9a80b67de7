"""Resolve a cell's settings to jobs, and to the command that repeats the cell alone."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from fedshift.data.locate import data_home
from fedshift.federation.resolve import resolve
from fedshift.methods import method_set
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec, WeightsSpec
from fedshift.schema.strict import nearest
from fedshift.tasks import pretrained
from fedshift.tasks.kinds import build_task
from fedshift_bench.measures import BESIDE_METRICS
from fedshift_bench.spec import Settings

CellKind = Literal["federation", "pooled", "leave_one_out", "cross_site"]


@dataclass(frozen=True)
class Plan:
    """The runs of a cell, for seed 0.

    ``jobs`` has one job by its name, or for ``leave_one_out`` one job for each held-out site. ``missing_inputs``
    describes what is missing on this machine besides data. ``metric`` is the task's.
    """

    kind: CellKind
    name: str
    jobs: Mapping[str, JobSpec]
    metric: str
    is_pooled: bool
    missing_inputs: tuple[str, ...] = ()

    def at(self, seed: int) -> dict[str, JobSpec]:
        """The jobs with the given seed."""
        return {name: job.model_copy(update={"seed": seed}) for name, job in self.jobs.items()}

    @property
    def job(self) -> JobSpec:
        """The only or first job."""
        return next(iter(self.jobs.values()))


def make_plan(settings: Settings, *, metric: str | None, folder: Path) -> Plan:
    """Resolve a cell.

    Args:
        settings: the cell's merged settings.
        metric: the score in the table; None for the task's.
        folder: the spec's folder, which may contain tasks and weights.

    Raises:
        ConfigError: a name, key or value is invalid.
    """
    if settings.task is None or settings.methods is None:
        key = "task" if settings.task is None else "methods"
        raise ConfigError(f"{key!r} is missing: set it for all cells or at each value of an axis")
    weights, missing_inputs = _weights(settings.weights, folder)
    common: dict[str, Any] = {
        "protocol": settings.protocol,
        "options": [f"{key}={_inline(value)}" for key, value in settings.options.items()],
        "weights": weights,
    }
    task, methods = _task(settings.task, folder), settings.methods
    run = settings.run or "federation"
    held_out = settings.held_out if run == "federation" else ()
    job = resolve(task, methods, sites=settings.sites, held_out=held_out, **common)
    is_pooled = method_set.pooled_reference(job.methods) is not None
    built = build_task(job)
    _check_metric(metric, {*built.metrics, *BESIDE_METRICS})
    if settings.weights is not None and weights is not None:
        path = _find(settings.weights, folder)
        assert path is not None
        pretrained.take(built.network(), pretrained.read(path), where=str(path))
        pretrained.keep(path, weights)
    jobs = {job.name: job}
    if run == "leave_one_out":
        sites = job.task.sites
        if len(sites) < 2:
            raise ConfigError(f"the job has only site {sites[0]}: leave_one_out needs at least two sites")
        jobs = {
            site: resolve(
                task,
                methods,
                sites=[other for other in sites if other != site],
                held_out=[site],
                name=f"{job.name}_without_{site}",
                **common,
            )
            for site in sites
        }
    if run == "cross_site":
        method_set.require_federation(job)
    kind: CellKind = "pooled" if run == "federation" and is_pooled else run
    return Plan(kind, job.name, jobs, built.metric, is_pooled, missing_inputs)


def command(settings: Settings, seed: int, *, name: str, is_pooled: bool) -> list[str]:
    """Shell commands that repeat one cell alone."""
    arguments = [*([str(settings.methods)] if settings.run != "cross_site" else []), str(settings.task)]
    if settings.protocol is not None:
        arguments += ["--protocol", settings.protocol]
    if settings.sites is not None:
        arguments += ["--sites", ",".join(settings.sites)]
    if settings.held_out is not None and settings.run in (None, "federation"):
        arguments += ["--held-out", ",".join(settings.held_out)]
    if settings.options:
        arguments += ["--set", *(f"{key}={_inline(value)}" for key, value in settings.options.items())]
    if settings.weights is not None:
        arguments += ["--weights", settings.weights]
    arguments += ["--seed", str(seed)]

    def line(*start: str) -> str:
        return shlex.join(("fedshift", *start))

    if settings.run == "leave_one_out":
        return [line("leave-one-out", *arguments)]
    if settings.run == "cross_site":
        return [line("cross-site", *arguments, "--methods", str(settings.methods))]
    if is_pooled:
        return [line("pooled", *arguments)]
    return [line("job", *arguments), line("run", f"jobs/{name}", "--in-process")]


def _inline(value: Any) -> str:
    """A value in a form that ``--set`` can read."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True).strip()
    return text.removesuffix("...").strip()


def _task(name: str, folder: Path) -> str:
    """A task's name, or the path of a task file, which may be in the spec's folder."""
    if name.endswith((".yaml", ".yml")) and (folder / name).is_file():
        return str(folder / name)
    return name


def _check_metric(metric: str | None, known: set[str]) -> None:
    if metric is not None and metric not in known:
        raise ConfigError(f"there is no metric {metric!r}{nearest(metric, known)}")


def _weights(name: str | None, folder: Path) -> tuple[WeightsSpec | None, tuple[str, ...]]:
    """The identified weights file, or a sentence that says what is missing."""
    if name is None:
        return None, ()
    path = _find(name, folder)
    if path is None:
        return None, (f"starting weights {name}: put the file into {data_home() / 'weights'}",)
    return pretrained.identify(path), ()


def _find(name: str, folder: Path) -> Path | None:
    """Find a weights file in the spec's folder, as a path, or in the folders where jobs look for weights."""
    weight_folders = [Path(os.environ["FEDSHIFT_WEIGHTS"])] if os.environ.get("FEDSHIFT_WEIGHTS") else []
    weight_folders.append(data_home() / "weights")
    candidates = [folder / name, Path(name), *(weights / name for weights in weight_folders)]
    candidates += [path for weights in weight_folders for path in sorted(weights.glob(f"*-{Path(name).name}"))]
    return next((path for path in candidates if path.is_file()), None)
