"""The commands that repeat a run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fedshift.reporting.report.runs import Run
from fedshift.reporting.report.section import Block, Commands, Section, paragraph
from fedshift.schema.components import admit, packages_of
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import BY_CLOCK, JobSpec
from fedshift.schema.manifest import PhantomOptions
from fedshift.schema.results import FROM_SCRATCH, JobRecord

JOB, POOLED, CROSS_SITE = "job", "pooled", "cross-site"
"""``fedshift`` commands: make a job (which is then run), train a centralised reference, run a cross-site evaluation."""


def repeat_section(run: Run, *, command: str | None = None) -> Section:
    """The section with the commands, built from the job in the model file or, without that, from the record.

    ``command`` is the command that made the record. By default it is ``pooled`` for a centralised reference, and
    otherwise ``job``, followed by ``run``.
    """
    results = run.results
    made_with = {site: record.phantom for site, record in results.data.items() if record.kind == "phantom"}
    lines = _phantom_commands(made_with)
    job = None if run.model is None else _without_shares(run.model.job)
    methods, options, is_exact = _command_arguments(job, results.job, list(run.trained))
    command = command or (POOLED if _is_pooled(results.job) else JOB)
    what = [results.job.task, "--methods", methods] if command == CROSS_SITE else [methods, results.job.task]
    lines.append(shlex.join(["fedshift", command, *what, *options]))
    if command == JOB:
        name = job.name if job is not None else results.job.name
        devices = {machine.devices for site, machine in results.machines.items() if site in run.trained}
        shared = ["--devices", str(*devices)] if len(devices) == 1 and devices != {1} else []
        lines.append(shlex.join(["fedshift", "run", f"jobs/{name}", *shared]))
    blocks: list[Block] = [Commands(lines)]
    if None in made_with.values():
        blocks.append(paragraph("phantom_unknown", sites=_sites_made_with(made_with, None)))
    if not is_exact:
        blocks.append(paragraph("reconstructed"))
    elif command != POOLED:
        blocks.append(paragraph("exact_commands"))
    if "auto" in (results.job.precision, results.job.threads):
        blocks.append(paragraph("auto_settings"))
    if len({machine.precision for machine in results.machines.values()}) > 1:
        blocks.append(paragraph("precisions_differ"))
    in_parts = sorted(
        {site for each in results.rounds for site, site_record in each.sites.items() if site_record.parts > 1}
    )
    if in_parts:
        blocks.append(paragraph("in_parts", sites=in_parts))
    if results.job.initial_weights != FROM_SCRATCH:
        blocks.append(paragraph("started_from", weights=results.job.initial_weights))
    return Section(
        "repeat",
        "How to repeat it",
        paragraph("same_bits") if results.job.minutes is None else paragraph("other_bits", why=BY_CLOCK),
        blocks,
    )


def command_at_round(record: JobRecord, sites: Sequence[str], round_: int, *, task: str | None = None) -> str:
    """The command that trains on ``sites`` with a record's settings and takes the model of a round.

    ``task``: the task's file, if it has one of its own.
    """
    evaluation = {**record.settings.get("evaluation", {}), "select": round_}
    settings = {**record.settings, "evaluation": evaluation}
    named = record.model_copy(update={"settings": settings, "held_out": [], "task": task or record.task})
    methods, options, _ = _command_arguments(None, named, list(sites))
    return shlex.join(["fedshift", POOLED if _is_pooled(record) else JOB, methods, named.task, *options])


def _phantom_commands(made_with: Mapping[str, PhantomOptions | None]) -> list[str]:
    """The commands that make the sites' simulated scans, one for all sites with the same options."""
    return [
        shlex.join(["fedshift", "data", "phantom", *([] if options is None else _phantom_options(options, sites))])
        for options in dict.fromkeys(made_with.values())
        for sites in (_sites_made_with(made_with, options),)
    ]


def _sites_made_with(made_with: Mapping[str, PhantomOptions | None], options: PhantomOptions | None) -> list[str]:
    return [site for site, phantom in made_with.items() if phantom == options]


def _phantom_options(options: PhantomOptions, sites: list[str]) -> list[str]:
    arguments = ["--sites", ",".join(sites), "--cases", str(options.cases), "--seed", str(options.seed)]
    if options.task != "prostate":
        arguments += ["--task", options.task]
    if options.matrices:
        arguments += ["--matrix", ",".join(map(str, options.matrices))]
    if options.zones:
        arguments.append("--zones")
    return arguments + (["--sequences", "2"] if options.sequences == 2 else [])


def _without_shares(job: JobSpec) -> JobSpec:
    """The job without the assignment of sites to workers by ``fedshift run``, which changes no results."""
    if not job.federation.shares:
        return job
    return job.model_copy(update={"federation": job.federation.model_copy(update={"hosts": None, "shares": ()})})


def _command_arguments(job: JobSpec | None, record: JobRecord, sites: list[str]) -> tuple[str, list[str], bool]:
    """A command's methods and arguments, and whether they were verified to make exactly the same job.

    What jobs are refused for is not asked again: the server refused it when the run started.
    """
    from fedshift.federation.resolve import default_name, resolve

    its_packages_are_here = _admit_packages(record)
    methods = "+".join(_short_methods([method.name for method in record.methods]))
    protocol = None if record.protocol == "default" else record.protocol
    settings = _flatten(_known_settings(job, record))
    arguments: list[str] = []
    trained = list(job.task.sites) if job is not None else sites
    held_out = list(job.task.held_out) if job is not None else record.held_out
    chosen: dict[str, Any] = {"protocol": protocol, "seed": record.seed, "checked": False}
    options: list[str] = []
    is_exact = False
    try:
        if not its_packages_are_here:
            raise ConfigError("package-differs", "their code is not looked at: use the settings in the record")
        base = resolve(record.task, methods, **chosen)
        if held_out != list(base.task.held_out):
            chosen["held_out"] = held_out
            base = resolve(record.task, methods, **chosen)
        if trained != list(base.task.sites):
            chosen["sites"] = trained
            base = resolve(record.task, methods, **chosen)
        options = _differences(_flatten(_settings(base)), settings)
        name = job.name if job is not None else record.name
        repeated = resolve(record.task, methods, options=options, name=name, **chosen)
        is_exact = job is not None and repeated.dump() == job.dump()
    except (ConfigError, TypeError, ValueError):
        # The task is a user's own file or comes from another version: use the settings in the record.
        options = options or [f"{path}={_value(value)}" for path, value in settings.items()]
    if protocol is not None:
        arguments += ["--protocol", protocol]
    for key in ("held_out", "sites"):
        if key in chosen:
            arguments += [f"--{key.replace('_', '-')}", ",".join(chosen[key])]
    if options:
        arguments += ["--set", *options]
    arguments += ["--seed", str(record.seed)]
    if record.name != default_name(methods.split("+"), record.task):
        arguments += ["--name", record.name]
    return methods, arguments, is_exact


def _admit_packages(record: JobRecord) -> bool:
    """Whether the packages that the run's parts are of are installed here as they were then; nothing is imported."""
    parts = (*(method.name for method in record.methods), record.network.get("name"), record.settings.get("loss"))
    if not {*packages_of(part for part in parts if isinstance(part, str))} <= record.packages.keys():
        return False
    try:
        admit(record.packages, where=record.name)
    except ConfigError:
        return False
    return True


def _is_pooled(record: JobRecord) -> bool:
    """Whether the record is of a centralised reference."""
    from fedshift.methods import method_set

    try:
        return method_set.pooled_reference({method.name: {} for method in record.methods}) is not None
    except ConfigError:  # a method that this version does not have
        return False


def _short_methods(names: list[str]) -> list[str]:
    """The methods as a user writes them: without FedAvg where it is the default aggregation."""
    from fedshift.methods import method_set

    fewer = [name for name in names if name != method_set.DEFAULT_COMBINE]
    try:
        implied = bool(fewer) and [m.name for m in method_set.load({name: {} for name in fewer})] == names
    except ConfigError:  # a method that this version does not have
        return names
    return fewer if implied else names


def _known_settings(job: JobSpec | None, record: JobRecord) -> dict[str, Any]:
    """The settings that ``--set`` can change, as far as they are known."""
    if job is not None:
        return _settings(job)
    return {
        "data": record.data,
        "network": {key: value for key, value in record.network.items() if key != "weights"},
        **{key: record.settings[key] for key in ("loss", "optimizer", "federation") if key in record.settings},
        "schedule": {
            **record.settings.get("schedule", {}),
            "rounds": record.rounds,
            "precision": record.precision,
            "threads": record.threads,
            **({} if record.minutes is None else {"minutes": record.minutes}),
        },
        "evaluation": {**record.settings.get("evaluation", {}), **({"local": True} if record.local else {})},
        **{method.name: method.options for method in record.methods},
    }


def _settings(job: JobSpec) -> dict[str, Any]:
    task = job.task.model_dump(mode="json")
    kept = {key: task[key] for key in ("data", "network", "loss", "optimizer", "schedule")}
    kept["network"] = {key: value for key, value in task["network"].items() if key != "weights"}
    parts = {name: getattr(job, name).model_dump(mode="json") for name in ("federation", "evaluation")}
    return {**kept, **parts, **job.methods}


def _differences(defaults: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """``path=value`` for every setting that differs from its default."""
    changed = {path: value for path, value in settings.items() if path not in defaults or defaults[path] != value}
    return [f"{path}={_value(changed[path])}" for path in sorted(changed)]


def _flatten(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Nested settings as one mapping with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= _flatten(value, f"{path}{key}.")
        elif not isinstance(value, Mapping):
            flat[f"{path}{key}"] = value
    return flat


def _value(value: Any) -> str:
    """A value in a form that YAML reads back."""
    return value if isinstance(value, str) else json.dumps(value)
