"""From a cell's settings to what is run: resolved jobs, and the command that repeats it alone."""

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
from fedshift.reporting.comparison.measures import KNOWN
from fedshift.reporting.comparison.spec import Settings
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec, WeightsSpec
from fedshift.schema.strict import nearest
from fedshift.tasks import pretrained
from fedshift.tasks.kinds import build_task

Kind = Literal["federation", "pooled", "leave_one_out", "cross_site"]


@dataclass(frozen=True)
class Plan:
    """What a cell runs, for seed 0.

    ``jobs`` has one job under its own name, or for ``leave_one_out`` one for each site that is held out. ``lacking``
    says what is missing on this machine besides data, ``metric`` is the task's.
    """

    kind: Kind
    name: str
    jobs: Mapping[str, JobSpec]
    metric: str
    is_pooled: bool
    lacking: tuple[str, ...] = ()

    def at(self, seed: int) -> dict[str, JobSpec]:
        """The jobs with another seed."""
        return {name: job.model_copy(update={"seed": seed}) for name, job in self.jobs.items()}

    @property
    def job(self) -> JobSpec:
        """The only job, or the first."""
        return next(iter(self.jobs.values()))


def make_plan(settings: Settings, *, metric: str | None, folder: Path) -> Plan:
    """Resolve a cell.

    Args:
        settings: all that was said of the cell.
        metric: the score that its table shows; None is the task's.
        folder: the spec's, where own tasks and weights may be.

    Raises:
        ConfigError: any name, key or value that does not fit.
    """
    if settings.task is None or settings.methods is None:
        key = "task" if settings.task is None else "methods"
        raise ConfigError(f"no {key!r} is given: name it for all cells, or at a value of an axis")
    weights, lacking = _weights(settings.weights, folder)
    common: dict[str, Any] = {
        "protocol": settings.protocol,
        "options": [f"{key}={_inline(value)}" for key, value in settings.options.items()],
        "weights": weights,
    }
    task, names = _task(settings.task, folder), settings.methods
    run = settings.run or "federation"
    held_out = settings.held_out if run == "federation" else ()
    whole = resolve(task, names, sites=settings.sites, held_out=held_out, **common)
    is_pooled = method_set.pooled_reference(whole.methods) is not None
    built = build_task(whole)
    _check_metric(metric, {*built.metrics, *KNOWN})
    if settings.weights is not None and weights is not None:
        path = _find(settings.weights, folder)
        assert path is not None
        pretrained.take(built.network(), pretrained.read(path), where=str(path))
        pretrained.keep(path, weights)
    jobs = {whole.name: whole}
    if run == "leave_one_out":
        turns = whole.task.sites
        if len(turns) < 2:
            raise ConfigError(f"only site {turns[0]} is there: leave_one_out needs at least two")
        jobs = {
            site: resolve(
                task,
                names,
                sites=[other for other in turns if other != site],
                held_out=[site],
                name=f"{whole.name}_without_{site}",
                **common,
            )
            for site in turns
        }
    if run == "cross_site":
        method_set.require_federation(whole)
    kind: Kind = "pooled" if run == "federation" and is_pooled else run
    return Plan(kind, whole.name, jobs, built.metric, is_pooled, lacking)


def command(settings: Settings, seed: int, *, name: str, is_pooled: bool) -> list[str]:
    """Shell lines that repeat one cell alone."""
    words = [*([str(settings.methods)] if settings.run != "cross_site" else []), str(settings.task)]
    if settings.protocol is not None:
        words += ["--protocol", settings.protocol]
    if settings.sites is not None:
        words += ["--sites", ",".join(settings.sites)]
    if settings.held_out is not None and settings.run in (None, "federation"):
        words += ["--held-out", ",".join(settings.held_out)]
    if settings.options:
        words += ["--set", *(f"{key}={_inline(value)}" for key, value in settings.options.items())]
    if settings.weights is not None:
        words += ["--weights", settings.weights]
    words += ["--seed", str(seed)]

    def line(*start: str) -> str:
        return shlex.join(("fedshift", *start))

    if settings.run == "leave_one_out":
        return [line("leave-one-out", *words)]
    if settings.run == "cross_site":
        return [line("cross-site", *words, "--methods", str(settings.methods))]
    if is_pooled:
        return [line("pooled", *words)]
    return [line("job", *words), line("run", f"jobs/{name}", "--in-process")]


def _inline(value: Any) -> str:
    """A value as ``--set`` reads it."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True).strip()
    return text.removesuffix("...").strip()


def _task(name: str, folder: Path) -> str:
    """A task's name, or the file of one, which may lie beside the spec."""
    if name.endswith((".yaml", ".yml")) and (folder / name).is_file():
        return str(folder / name)
    return name


def _check_metric(metric: str | None, known: set[str]) -> None:
    if metric is not None and metric not in known:
        raise ConfigError(f"there is no metric {metric!r}{nearest(metric, known)}")


def _weights(name: str | None, folder: Path) -> tuple[WeightsSpec | None, tuple[str, ...]]:
    """The file of a name, or what to say of one that is not here."""
    if name is None:
        return None, ()
    path = _find(name, folder)
    if path is None:
        return None, (f"starting weights {name}: put the file into {data_home() / 'weights'}",)
    return pretrained.identify(path), ()


def _find(name: str, folder: Path) -> Path | None:
    """Beside the spec, as a path, or where jobs look for weights."""
    kept = [Path(os.environ["FEDSHIFT_WEIGHTS"])] if os.environ.get("FEDSHIFT_WEIGHTS") else []
    kept.append(data_home() / "weights")
    places = [folder / name, Path(name), *(place / name for place in kept)]
    places += [path for place in kept for path in sorted(place.glob(f"*-{Path(name).name}"))]
    return next((place for place in places if place.is_file()), None)
