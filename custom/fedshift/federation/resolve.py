"""From names on a command line to a resolved job: app file, protocol, methods, ``--set`` options."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from fedshift.data.locate import PHANTOM, find_site
from fedshift.data.resampled import Preparation
from fedshift.federation import refusals
from fedshift.federation.options import APART, apply_options
from fedshift.methods import method_set
from fedshift.methods.method_set import MethodSet
from fedshift.schema import components
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.job import EvaluationSpec, FederationSpec, JobSpec
from fedshift.schema.manifest import Manifest, read_manifest
from fedshift.schema.policy import USUAL_SITES_IN_SUM
from fedshift.schema.strict import nearest
from fedshift.schema.task import Practical, ProtocolExpects, TaskSpec, WeightsSpec
from fedshift.schema.task_files import Numbered, apps_dir, tasks
from fedshift.schema.yaml_file import read_yaml
from fedshift.tasks import trial
from fedshift.tasks.base import Task
from fedshift.tasks.kinds import build_task

PRACTICAL = "practical"
"""Key of a task file: what `practical` reads."""


def resolve(
    task: str,
    method_names: str,
    *,
    protocol: str | None = None,
    sites: Sequence[str] | None = None,
    held_out: Sequence[str] | None = None,
    options: Sequence[str] = (),
    seed: int = 0,
    name: str | None = None,
    weights: WeightsSpec | None = None,
    checked: bool = True,
) -> JobSpec:
    """A job from names.

    Args:
        task: a file of ``apps/`` without its ending, the path of such a file of one's own, ending in ``.yaml``, or a
            task of an installed package, as ``acme-nets:shapes``.
        method_names: method names joined by ``+``, in upper or lower case.
        protocol: one of the task's protocols.
        sites: a part of the sites that train.
        held_out: these of the task's sites only score the final models, all others train. By default as the task says.
        options: ``path=value`` in any order; a path begins with a method, ``federation``, ``evaluation``, a task key.
        seed: the seed of the whole job.
        name: the job's name; by default methods and task joined by ``_``.
        weights: the file to start from; in place of one that the task names.
        checked: whether to refuse what the task's network, the methods or the federation cannot do together. For a job
            that has been trained, which was checked then, its settings alone are enough.

    Raises:
        ConfigError: any name, key or value that does not fit.
    """
    raw, where = read_task(task)
    expects = ProtocolExpects()
    raw.pop(PHANTOM, None)
    raw.pop(PRACTICAL, None)
    protocols: dict[str, Any] = raw.pop("protocols", None) or {}
    if not isinstance(protocols, dict) or not all(isinstance(changes, dict) for changes in protocols.values()):
        raise ConfigError("task-form", f"{where}: 'protocols' must map names to settings")
    names = split_methods(method_names)
    packages = components.choose(names)
    # With FedAvg among them if nothing else combines updates; options may then name it.
    chosen: dict[str, dict[str, Any]] = {m.name: {} for m in method_set.load({part: {} for part in names})}
    if protocol is not None:
        if protocol not in protocols:
            raise ConfigError("unknown-protocol", f"{where} has no protocol {protocol!r}{nearest(protocol, protocols)}")
        changes: dict[str, Any] = dict(protocols[protocol])
        absent = [method for method in changes.pop("requires", ()) if method not in chosen]
        if absent:
            raise ConfigError(
                "method-missing",
                f"protocol {protocol} of task {raw['name']} needs the method {absent[0]}: write "
                f"{'+'.join([method_names, *absent])}",
            )
        expects = ProtocolExpects.parse(changes.pop("expects", {}), where=f"{where}: protocol {protocol}: expects")
        for method, method_options in changes.pop("methods", {}).items():
            if method in chosen:
                chosen[method].update(method_options)
        for key in changes.pop("replaces", ()):
            raw.pop(key, None)
        raw = _merge(raw, changes)
        raw["protocol"] = protocol
    apart = {key: _mapping(raw.pop(key, None), f"{where}: {key!r}") for key in APART}
    named = apply_options(options, raw=raw, chosen=chosen, apart=apart)
    for key in ("sites", "held_out"):
        if isinstance(raw.get(key), dict):
            raw[key] = Numbered.parse(raw[key], where=f"{where}: {key}").names
    if sites is not None or held_out is not None:
        _choose_sites(raw, sites, held_out, where)
    if weights is not None and isinstance(raw.get("network"), dict):
        raw["network"] = raw["network"] | {"weights": weights.model_dump()}
    spec = TaskSpec.parse(raw, where=where)
    departures = expects.departures(spec.protocol, methods=chosen, weights=spec.network.weights)
    spec = spec.model_copy(update={"departures": departures})
    packages |= components.choose((spec.network.name, spec.loss.name))
    loaded = method_set.load(chosen)
    federation_spec = _federation(apart["federation"], len(spec.sites), where=f"{where}: federation")
    raw_job = {
        "schema": 1,
        "name": name or default_name(names, spec.name),
        "seed": seed,
        "task": spec,
        "methods": {m.name: m.config.model_dump(mode="json") for m in loaded},
        "federation": federation_spec,
        "evaluation": EvaluationSpec.parse(apart["evaluation"], where=f"{where}: evaluation"),
        "packages": packages,
    }
    job = JobSpec.parse(raw_job, where="job")
    if checked:
        _check(job, named)
    return job


def _check(job: JobSpec, named: Collection[tuple[str, str]]) -> None:
    """Refuse what depends on the network, the task's kind or a method now, not when the sites start.

    Also options in ``named`` that change nothing. Those of a protocol are for all jobs that it is used for.
    """
    methods = MethodSet(job, _network(build_task(job), job.task))
    methods.check()
    refusals.check(methods)
    refusals.check_idle(job, named)
    configs = {method.name: method.config for method in methods}
    for (method, option), why in methods.idle.items():
        default = type(configs[method]).model_fields[option].default
        if (method, option) in named and getattr(configs[method], option) != default:
            raise ConfigError("no-effect", f"method {method}: {option} has no effect: {why}")


def split_methods(text: str) -> list[str]:
    """Names joined by ``+``, in any case (``FedFA``), as those of methods' files; refuses an empty or a second one."""
    names = [part.strip().lower() for part in text.split("+")]
    if not all(names):
        raise ConfigError(
            "method-names", f"a method's name is missing in {text!r}: join names by one +, such as fedfa+fedrdn"
        )
    if len(set(names)) != len(names):
        raise ConfigError("method-names", f"method named twice in {text!r}: leave one out")
    return names


def default_name(method_names: Sequence[str], task: str) -> str:
    """A job's name if none is given; also its folder's, so without the colon of what a package offers."""
    return "_".join([*method_names, task]).replace(components.SIGN, "_")


def _mapping(value: Any, what: str) -> dict[str, Any]:
    """A copy that options may change."""
    if not isinstance(value or {}, dict):
        raise ConfigError("task-form", f"{what} must hold keys and values, not {value!r}")
    return dict(value or {})


def _choose_sites(raw: dict[str, Any], sites: Sequence[str] | None, held_out: Sequence[str] | None, where: str) -> None:
    """Put the named sites into ``raw``, in the task's order."""
    for key, value in (("sites", raw.get("sites")), ("held_out", raw.get("held_out", []))):
        if not isinstance(value, list):
            raise ConfigError("task-form", f"{where}: {key!r} must be a list of names")
    everyone = [*raw["sites"], *raw.get("held_out", [])]
    for site in (*(sites or ()), *(held_out or ())):
        if site not in everyone:
            raise ConfigError("unknown-site", f"{where} has no site {site!r}{nearest(site, everyone)}")
    if held_out is not None:
        raw["held_out"] = sorted(held_out, key=everyone.index)  # whoever is named twice stays, for the schema to refuse
        raw["sites"] = [site for site in everyone if site not in held_out]
    if sites is not None:
        out = [site for site in sites if site in raw.get("held_out", [])]
        if out:
            raise ConfigError(
                "held-out",
                f"{where}: {', '.join(out)} cannot train, as the job holds it out: leave it out of --sites, or name "
                "others with --held-out",
            )
        raw["sites"] = sorted(sites, key=everyone.index)


_fitting: dict[str, nn.Module] = {}
"""Networks that `_try` has tried with success, without values: a comparison resolves hundreds of jobs."""


def _network(task: Task, spec: TaskSpec) -> nn.Module:
    """The task's network as far as checks need it: its parameters have shapes and may have no values."""
    what = [spec.kind, spec.outputs, task.spatial, task.preparation(), spec.network.model_dump(mode="json")]
    key = json.dumps(what, sort_keys=True)
    if key not in _fitting:
        net = task.network()
        _try(net, task, spec)
        _fitting[key] = net.to("meta")
    return _fitting[key]


def _try(net: nn.Module, task: Task, spec: TaskSpec) -> None:
    """An image without values through the network: what does not fit would else be found at every site."""
    wanted = (spec.outputs, *task.spatial) if task.dense else (spec.outputs,)
    try:
        shape = tuple(trial.run(net, task.spatial).shape)[1:]
    except trial.UNFIT as error:
        if task.dense and not isinstance(getattr(net, "head", None), nn.Linear):
            trial.check_patch(net, task.spatial, name=spec.network.name)
        size = " x ".join(map(str, task.spatial))
        raise ConfigError(
            "network-unfit",
            f"task {spec.name}: network {spec.network.name} cannot take images of {size} "
            f"({str(error).splitlines()[0]}): change network.name, network.options or data",
        ) from None
    if shape != wanted:
        raise ConfigError(
            "network-unfit",
            f"task {spec.name}: network {spec.network.name} answers an image with {shape}, {spec.kind} needs {wanted}: "
            "change network.name",
        )
    if task.dense:
        trial.check_patch(net, task.spatial, name=spec.network.name)


def _federation(raw: dict[str, Any], n_sites: int, *, where: str) -> FederationSpec:
    """By default all sites but one must answer, and at least two where there are as many; with masks three."""
    written = FederationSpec.parse({"min_sites": 1, **raw}, where=where)
    asked = written.sites_per_round or n_sites
    fewest = USUAL_SITES_IN_SUM if written.encryption == "masks" else 2
    spec = FederationSpec.parse({"min_sites": min(asked, max(fewest, asked - 1)), **raw}, where=where)
    for key, value, most, what in (
        ("sites_per_round", spec.sites_per_round or n_sites, n_sites, "the job has only"),
        ("hosts", spec.hosts or n_sites, n_sites, "the job has only"),
        ("min_sites", spec.min_sites, asked, "a round has only"),
    ):
        if value > most:
            raise ConfigError("too-few-sites", f"federation.{key} is {value}, but {what} {most} sites")
    return spec


def practical(task: str) -> Practical:
    """What a task recommends for patients' scans.

    Raises:
        ConfigError: the task, named as for `resolve`, is not there or recommends nothing.
    """
    raw, where = read_task(task)
    if raw.get(PRACTICAL) is None:
        others = [name for name in tasks() if read_yaml(apps_dir() / f"{name}.yaml").get(PRACTICAL) is not None]
        raise ConfigError(
            "no-recipe",
            f"{where} has no practical recipe, only {', '.join(others)} has: name the methods instead, or give the "
            f"task file a {PRACTICAL!r} key",
        )
    return Practical.parse(raw[PRACTICAL], where=f"{where}: {PRACTICAL}")


def read_task(task: str) -> tuple[dict[str, Any], str]:
    """A task file, and how to name it in errors."""
    if task.endswith((".yaml", ".yml")):
        return read_yaml(Path(task)), task
    if components.package_of(task) is not None:
        return read_yaml(components.task_file(task)), task
    if task not in tasks():
        raise ConfigError(
            "unknown-task", f"there is no task {task!r}{nearest(task, tasks())}, or the path of a .yaml file"
        )
    return read_yaml(apps_dir() / f"{task}.yaml"), f"apps/{task}.yaml"


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``changes`` over ``base``, mapping by mapping; a network is replaced whole."""
    merged = dict(base)
    for key, value in changes.items():
        inner = isinstance(value, dict) and isinstance(merged.get(key), dict) and key != "network"
        merged[key] = _merge(merged[key], value) if inner else value
    return merged


def misfits(job: JobSpec) -> list[str]:
    """How the job's sites that are prepared on this machine do not fit it, before anything is sent, a sentence each.

    Other classes, a missing sequence, a class that no training site outlines, or a finding that none knows of. Sites
    that are not prepared here are not asked; each site checks its own data when the job comes.
    """
    manifests: dict[str, Manifest] = {}
    sentences = []
    for site in job.task.everyone:
        try:
            folder = find_site(job.task.dataset, site, local=None, simulator=True)
        except DataError:
            continue  # it is elsewhere
        try:
            manifests[site] = read_manifest(folder)
            manifests[site].check_is(folder, dataset=job.task.dataset, site=site, classes=job.task.classes)
            if manifests[site].cases:
                Preparation(sequences=getattr(build_task(job), "sequences", ())).numbers(manifests[site], folder)
        except DataError as error:
            sentences.append(str(error))
    training = [manifests.get(site) for site in job.task.sites]
    outlined = [None if manifest is None else manifest.annotated for manifest in training]
    regions, classes = job.task.made_regions, job.task.classes
    if regions is not None:  # by their names
        outlined = [
            None
            if names is None
            else tuple(regions.names[k] for k in regions.known(classes.index(n) for n in names if n in classes))
            for names in outlined
        ]
    missing = [c for c in job.task.structures if all(names is not None and c not in names for names in outlined)]
    if missing and not sentences:
        sentences.append(
            f"the masks of no site outline {', '.join(missing)}: prepare a site whose masks do, or leave it out of the "
            "task's classes and prepare the sites with these"
        )
    if not sentences and all(manifest is not None and manifest.has_findings for manifest in training):
        known = {name for manifest in training if manifest for entry in manifest.entries for name in entry.findings}
        unknown = [name for name in job.task.classes if name not in known]
        if unknown:
            sentences.append(
                f"no site has a label of {', '.join(unknown)}: add the column to the table of one, or leave it out of "
                "the task's classes and prepare the sites with these"
            )
    return sentences
