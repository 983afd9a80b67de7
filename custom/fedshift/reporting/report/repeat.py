"""The commands that run it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from fedshift.reporting.report.runs import Run
from fedshift.reporting.report.section import Block, Commands, Section, Text
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.results import FROM_SCRATCH, JobRecord

JOB, POOLED, CROSS_SITE = "job", "pooled", "cross-site"
"""Commands: of a job, which is then run; of a centralised reference, which no federation can run; of models abroad."""


def again(run: Run, *, command: str | None = None) -> Section:
    """From the job in the model file, or from what the record says of it.

    ``command`` is that which did it all, by default of the methods: ``fedshift job``, and then ``run``, or ``pooled``.
    """
    results = run.results
    job = None if run.model is None else _as_written(run.model.job)
    methods, options, whole = _words(job, results.job, list(run.trained))
    command = command or (POOLED if _is_pooled(results.job) else JOB)
    what = [results.job.task, "--methods", methods] if command == CROSS_SITE else [methods, results.job.task]
    lines = [shlex.join(["fedshift", command, *what, *options])]
    if command == JOB:
        name = job.name if job is not None else results.job.name
        lines.append(shlex.join(["fedshift", "run", f"jobs/{name}"]))
    if results.is_phantom:
        lines = ["fedshift data phantom", *lines]
    blocks: list[Block] = [Commands(lines)]
    if not whole:
        blocks.append(
            Text(
                "These commands are put together from what the record says; compare the settings above with the job "
                "they make."
            )
        )
    elif command != POOLED:
        blocks.append(Text("These commands make the very job that the model file holds."))
    if "auto" in (results.job.precision, results.job.threads):
        blocks.append(Text("What the job leaves to the machine (auto) is above, as the sites computed."))
    if len({machine.precision for machine in results.machines.values()}) > 1:
        blocks.append(
            Text("The sites did not compute in one precision: schedule.precision=fp32 is the same everywhere.")
        )
    if results.job.initial_weights != FROM_SCRATCH:
        blocks.append(Text(f"The run started from {results.job.initial_weights}: name that file with --weights FILE."))
    return Section(
        "repeat",
        "How to repeat it",
        "With the same data, versions, processor type, precision and threads the weights come out the same to the bit.",
        blocks,
    )


def _as_written(job: JobSpec) -> JobSpec:
    """The job before ``fedshift run`` shared its sites out among workers, which changes no number."""
    if not job.federation.shares:
        return job
    return job.model_copy(update={"federation": job.federation.model_copy(update={"hosts": None, "shares": ()})})


def _words(job: JobSpec | None, record: JobRecord, sites: list[str]) -> tuple[str, list[str], bool]:
    """A command's methods and options, and whether they were seen to make the same job."""
    from fedshift.federation.resolve import resolve

    methods = "+".join(_named([method.name for method in record.methods]))
    protocol = None if record.protocol == "default" else record.protocol
    told = _told(job, record)
    words: list[str] = []
    trained = list(job.task.sites) if job is not None else sites
    held_out = list(job.task.held_out) if job is not None else record.held_out
    chosen: dict[str, Any] = {"protocol": protocol, "seed": record.seed}
    options: list[str] = []
    whole = False
    try:
        plain = resolve(record.task, methods, **chosen)
        if held_out != list(plain.task.held_out):
            chosen["held_out"] = held_out
        if trained != list(resolve(record.task, methods, **chosen).task.sites):
            chosen["sites"] = trained
        base = resolve(record.task, methods, **chosen)
        options = _differences(_settings(base), told)
        name = job.name if job is not None else record.name
        made = resolve(record.task, methods, options=options, name=name, **chosen)
        whole = job is not None and made.dump() == job.dump()
    except (ConfigError, TypeError, ValueError):
        # The task is somebody's own file, or of another version: the record alone must do.
        options = options or [f"{path}={_value(value)}" for path, value in _flat(told).items()]
    if protocol is not None:
        words += ["--protocol", protocol]
    for key in ("held_out", "sites"):
        if key in chosen:
            words += [f"--{key.replace('_', '-')}", ",".join(chosen[key])]
    if options:
        words += ["--set", *options]
    words += ["--seed", str(record.seed)]
    default = "_".join([*methods.split("+"), record.task])
    if record.name != default:
        words += ["--name", record.name]
    return methods, words, whole


def _is_pooled(record: JobRecord) -> bool:
    """Whether a centralised reference was trained."""
    from fedshift.methods import method_set

    try:
        return method_set.pooled_reference({method.name: {} for method in record.methods}) is not None
    except ConfigError:  # a method that this version does not have
        return False


def _named(names: list[str]) -> list[str]:
    """What a person writes: FedAvg is there anyway where nothing else combines updates."""
    from fedshift.methods import method_set

    fewer = [name for name in names if name != method_set.DEFAULT_COMBINE]
    try:
        implied = bool(fewer) and [m.name for m in method_set.load({name: {} for name in fewer})] == names
    except ConfigError:  # a method that this version does not have
        return names
    return fewer if implied else names


def _told(job: JobSpec | None, record: JobRecord) -> dict[str, Any]:
    """Settings that options can make, as far as they are known."""
    if job is not None:
        return _settings(job)
    return {
        "data": record.data,
        "network": {key: value for key, value in record.network.items() if key != "weights"},
        "schedule": {"rounds": record.rounds, "precision": record.precision, "threads": record.threads},
        **{method.name: method.options for method in record.methods},
    }


def _settings(job: JobSpec) -> dict[str, Any]:
    task = job.task.model_dump(mode="json")
    kept = {key: task[key] for key in ("data", "network", "loss", "optimizer", "schedule")}
    kept["network"] = {key: value for key, value in task["network"].items() if key != "weights"}
    return {**kept, "federation": job.federation.model_dump(mode="json"), **job.methods}


def _differences(base: Mapping[str, Any], told: Mapping[str, Any]) -> list[str]:
    """``path=value`` for every setting that differs from its default in ``base``."""
    had, now = _flat(base), _flat(told)
    changed = {path: value for path, value in now.items() if path not in had or had[path] != value}
    return [f"{path}={_value(changed[path])}" for path in sorted(changed)]


def _flat(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{path}{key}.")
        elif not isinstance(value, Mapping):
            flat[f"{path}{key}"] = value
    return flat


def _value(value: Any) -> str:
    """As YAML reads it back."""
    return value if isinstance(value, str) else json.dumps(value)
