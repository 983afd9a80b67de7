"""Whom a survey asks: the sites of a task, of a job, or of a data set that is prepared on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from fedshift.data.locate import find_site, prepared_datasets, prepared_sites
from fedshift.schema.errors import ConfigError
from fedshift.schema.fingerprint import SurveySpec
from fedshift.schema.manifest import read_manifest
from fedshift.schema.regions import make_regions
from fedshift.schema.strict import nearest
from fedshift.schema.task import with_overlapping
from fedshift.schema.task_files import Numbered, apps_dir, tasks
from fedshift.schema.yaml_file import read_yaml

YAML = (".yaml", ".yml")


def question(what: str, *, sites: Sequence[str] | None = None, held_out: Sequence[str] | None = None) -> SurveySpec:
    """Whom to ask.

    Args:
        what: a task's name, a ``.yaml`` file of a task or job, or a data set's name. Of a task file only ``dataset``,
            ``sites`` and ``held_out`` are read, and of structures that overlap ``regions`` and what they are made of,
            so that it need not be complete; of a prepared data set what its sites record of them. A name of both is the
            one that is prepared on this machine; if both are, the one that has all of ``sites`` and ``held_out``.
        sites: only these of the sites that are planned for.
        held_out: these are on the map only.

    Raises:
        ConfigError: ``unknown-task``, ``unknown-site``, ``no-site``; ``which-data`` if a name is of both a task and
            another data set.
    """
    raw, where = _read(what, named={*(sites or ()), *(held_out or ())})
    raw = raw.get("task", raw)
    dataset = str(raw.get("dataset") or "")
    inside, outside = (_names(raw.get(key) or [], where, key) for key in ("sites", "held_out"))
    inside, outside = _chosen(inside, outside, sites=sites, held_out=held_out, where=where)
    spec = {"survey": f"survey_{dataset}", "dataset": dataset, "sites": inside, "held_out": outside}
    return SurveySpec.parse(spec | _regions(raw, where), where=where)


def narrowed(
    spec: SurveySpec, *, sites: Sequence[str] | None = None, held_out: Sequence[str] | None = None, where: str
) -> SurveySpec:
    """Of the sites that a survey has asked, those that are wanted; ``sites`` and ``held_out`` as in `question`."""
    inside, outside = _chosen(spec.sites, spec.held_out, sites=sites, held_out=held_out, where=where)
    return SurveySpec.parse(spec.model_dump(by_alias=True) | {"sites": inside, "held_out": outside}, where=where)


def _chosen(
    inside: Sequence[str],
    outside: Sequence[str],
    *,
    sites: Sequence[str] | None,
    held_out: Sequence[str] | None,
    where: str,
) -> tuple[list[str], list[str]]:
    """Sites to plan for, and sites that are on the map only. Whoever is named twice stays, for the schema to refuse."""
    everyone = [*inside, *outside]
    for site in (*(sites or ()), *(held_out or ())):
        if site not in everyone:
            raise ConfigError("unknown-site", f"{where} has no site {site!r}{nearest(site, everyone)}")
    if held_out is not None:
        inside, outside = [site for site in everyone if site not in held_out], held_out
    if sites is not None:
        inside = sorted(sites, key=everyone.index)
        outside = outside if held_out is not None else [site for site in outside if site not in sites]
    if not inside:
        raise ConfigError("no-site", f"{where} leaves no site to plan for: name some with --sites")
    return list(inside), list(outside)


def _read(what: str, *, named: Set[str]) -> tuple[dict[str, Any], str]:
    """A task's or job's settings, and how to name them in errors; ``named`` are sites that the settings should have."""
    if what.endswith(YAML):
        return read_yaml(Path(what)), what
    prepared = prepared_sites(what)
    if what in tasks():
        raw = read_yaml(apps_dir() / f"{what}.yaml")
        # The task `hippocampus` is of simulated sites; who has prepared the data set of that name means these data.
        if not prepared or raw["dataset"] == what or _is_of_task(what, raw, prepared, named):
            return raw, f"apps/{what}.yaml"
    if prepared:
        return _of_prepared(what, prepared), f"the prepared data set {what}"
    known = sorted({*tasks(), *prepared_datasets()})
    raise ConfigError(
        "unknown-task", f"there is no task and no prepared data set {what!r}{nearest(what, known)}, or a .yaml file"
    )


def _of_prepared(dataset: str, sites: Sequence[str]) -> dict[str, Any]:
    """What a task of prepared sites has to say of their masks, as their manifests do."""
    question: dict[str, Any] = {"dataset": dataset, "sites": sites}
    first = ""
    for site in sites:
        manifest = read_manifest(find_site(dataset, site, local=None, simulator=True))
        question["ignore"] = question.get("ignore", False) or manifest.ignore
        regions = {key: manifest.preparation.get(key) for key in ("regions", "regions_class_order")}
        if regions["regions"] and first and regions != {key: question[key] for key in regions}:
            raise ConfigError(
                "regions-differ",
                f"sites {first} and {site} of {dataset} were prepared with other regions: prepare one of them again, "
                "or name a .yaml file of a task with 'regions'",
            )
        if regions["regions"]:
            first = first or site
            question |= regions
    return question


def _is_of_task(what: str, raw: Mapping[str, Any], prepared: Sequence[str], named: Set[str]) -> bool:
    """Whether a name of a task and of another data set, which is prepared, means the task."""
    if not (simulated := prepared_sites(raw["dataset"])):
        return False
    in_task, in_data = (bool(named) and named <= set(sites) for sites in (simulated, prepared))
    if in_task == in_data:
        raise ConfigError(
            "which-data",
            f"{what} is a task, of the data set {raw['dataset']}, and another data set that is prepared here: name "
            f"sites of the one that you mean, --sites {','.join(simulated)} or --sites {','.join(prepared)}",
        )
    return in_task


def _regions(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """What a task says of regions and of voxels to ignore, for its plan."""
    try:
        description = with_overlapping(raw)
        declared = {key: description[key] for key in SurveySpec.RARE if description.get(key)}
        if declared.get("regions") and description.get("classes"):
            make_regions(declared["regions"], description["classes"], declared.get("regions_class_order", ()))
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError("invalid-value", f"{where}: {error}") from None
    return declared


def _names(value: Any, where: str, key: str) -> list[str]:
    if isinstance(value, dict):
        return Numbered.parse(value, where=f"{where}: {key}").names
    if not isinstance(value, list):
        raise ConfigError("invalid-value", f"{where}: {key!r} must be a list of names")
    return [str(name) for name in value]
