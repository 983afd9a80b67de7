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
from fedshift.schema.job import JobSpec
from fedshift.schema.strict import nearest
from fedshift.schema.task import WeightsSpec
from fedshift.tasks import pretrained
from fedshift.tasks.kinds import build_task
from fedshift.tasks.starting import network_from
from fedshift_bench.spec import GRADIENT_NORMS, Settings

CellKind = Literal["federation", "pooled", "leave_one_out", "cross_site"]
FURTHER_METRICS = {
    *("hd95", "asd", "volume_difference", "false_positives", "ece", "macro_accuracy"),
    *("hd95_px", "asd_px", "area_difference_px", "false_positives_px"),
    *GRADIENT_NORMS,
}
"""Scores that a table may show though a task's own metrics need not include them."""


@dataclass(frozen=True)
class CellPlan:
    """The runs of a cell, for seed 0: one job by its name, or for ``leave_one_out`` one for each held-out site.

    ``missing_inputs`` is what is missing on this machine besides data, ``metric`` the task's.
    """

    kind: CellKind
    name: str
    jobs: Mapping[str, JobSpec]
    metric: str
    is_pooled: bool
    missing_inputs: tuple[str, ...] = ()

    @property
    def job(self) -> JobSpec:
        """The only or first job."""
        return next(iter(self.jobs.values()))

    def at(self, seed: int) -> dict[str, JobSpec]:
        """The jobs with the given seed."""
        return {name: job.model_copy(update={"seed": seed}) for name, job in self.jobs.items()}


def make_plan(settings: Settings, *, metric: str | None, folder: Path) -> CellPlan:
    """Resolve a cell's merged settings, whose tasks and weights may be in the spec's ``folder``.

    ``metric`` is the score in the table, if it is not the task's.
    """
    if settings.task is None or settings.methods is None:
        key = "task" if settings.task is None else "methods"
        raise ConfigError("key-missing", f"{key!r} is missing: set it for all cells or at each value of an axis")
    file = None if settings.weights is None else _find_weights(settings.weights, folder)
    weights: WeightsSpec | None = None if file is None else pretrained.identify(file)
    is_task_file = settings.task.endswith((".yaml", ".yml")) and (folder / settings.task).is_file()
    task, methods = str(folder / settings.task) if is_task_file else settings.task, settings.methods
    common: dict[str, Any] = {
        "protocol": settings.protocol,
        "options": [f"{key}={_inline(value)}" for key, value in settings.options.items()],
        "weights": weights,
    }
    run = settings.run or "federation"
    held_out = settings.held_out if run == "federation" else ()
    job = resolve(task, methods, sites=settings.sites, held_out=held_out, **common)
    is_pooled = method_set.pooled_reference(job.methods) is not None
    built = build_task(job)
    known = {*built.metrics, *FURTHER_METRICS}
    if metric is not None and metric not in known:
        raise ConfigError("unknown-metric", f"there is no metric {metric!r}{nearest(metric, known)}")
    if file is not None and weights is not None:
        network_from(job, file)
        pretrained.keep(file, weights)
    jobs = {job.name: job}
    if run == "leave_one_out":
        sites = job.task.sites
        if len(sites) < 2:
            what = f"the job has only site {sites[0]}"
            raise ConfigError("too-few-sites", f"{what}: leave_one_out needs at least two sites")
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
    missing = settings.weights is not None and weights is None
    where = f"starting weights {settings.weights}: put the file into {data_home() / 'weights'}"
    kind: CellKind = "pooled" if run == "federation" and is_pooled else run
    return CellPlan(kind, job.name, jobs, built.metric, is_pooled, (where,) if missing else ())


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
    if settings.run == "leave_one_out":
        words = [["leave-one-out", *arguments]]
    elif settings.run == "cross_site":
        words = [["cross-site", *arguments, "--methods", str(settings.methods)]]
    elif is_pooled:
        words = [["pooled", *arguments]]
    else:
        words = [["job", *arguments], ["run", f"jobs/{name}", "--in-process"]]
    return [shlex.join(("fedshift", *line)) for line in words]


def _inline(value: Any) -> str:
    """A value in a form that ``--set`` can read."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True).strip()
    return text.removesuffix("...").strip()


def _find_weights(name: str, folder: Path) -> Path | None:
    """Find a weights file in the spec's folder, as a path, or in the folders where jobs look for weights."""
    weight_folders = [Path(os.environ["FEDSHIFT_WEIGHTS"])] if os.environ.get("FEDSHIFT_WEIGHTS") else []
    weight_folders.append(data_home() / "weights")
    candidates = [folder / name, Path(name), *(weights / name for weights in weight_folders)]
    candidates += [path for weights in weight_folders for path in sorted(weights.glob(f"*-{Path(name).name}"))]
    return next((path for path in candidates if path.is_file()), None)
