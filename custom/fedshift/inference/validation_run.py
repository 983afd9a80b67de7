"""A validation from its models to its record: what the server begins with, and all sites in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedshift.federation.validation_record import ValidationAnswers
from fedshift.inference.carried import main_score, open_carried, structures_of
from fedshift.inference.model import Model
from fedshift.inference.monai_bundle import Bundle
from fedshift.inference.validation import answer
from fedshift.schema.errors import ConfigError, FedshiftError
from fedshift.schema.policy import Policy, listed_packages
from fedshift.schema.validation import ModelRecord, Validation, ValidationSpec

SITES = "sites"
"""In the folder of a validation in one process: a folder for each site, as under FLARE."""


def begin(
    spec: ValidationSpec, models: Path, *, on_change: Callable[[ValidationAnswers], None] = lambda answers: None
) -> ValidationAnswers:
    """Read the job's models before a site is asked.

    Raises:
        ConfigError: one of them cannot be used, or they segment or classify into different structures.
    """
    records: dict[str, ModelRecord] = {}
    structures, metric = {}, ""
    for ref in spec.models:
        model, source = open_carried(models, ref, device="cpu")
        metric, structures[ref.name] = metric or main_score(model), structures_of(model)
        about = {"task": f"bundle {model.name} {model.version}"} if isinstance(model, Bundle) else _about(model, spec)
        records[ref.name] = ModelRecord(file=source.file, file_sha256=source.sha256, **about)
    first = structures[spec.first]
    for name, its in structures.items():
        if its != first:
            raise ConfigError(
                "classes-differ",
                f"model {name} has {', '.join(its)}, and {spec.first} has {', '.join(first)}: write a job for each",
            )
    return ValidationAnswers(spec, classes=first, metric=metric, models=records, on_change=on_change)


def _about(model: Model, spec: ValidationSpec) -> dict[str, Any]:
    """What a model's header says of it."""
    header = model.header
    task = header.job.task
    dealt_anew = task.data.get("fold") or task.data.get("shares") or task.data.get("split") == "slice-legacy"
    has_seen = task.dataset == spec.dataset and (spec.part == "all" or dealt_anew)
    return {
        "task": task.name,
        "methods": list(header.job.methods),
        "round": header.round,
        "sites": list(header.sites),
        "seen_at": [site for site in spec.sites if has_seen and site in header.sites],
        "adapted_on": 0 if header.adaptation is None else header.adaptation.trained_on,
        "kind": header.kind,
    }


def validate_in_process(
    spec: ValidationSpec,
    models: Path,
    data: Mapping[str, Path],
    folder: Path,
    *,
    policies: Mapping[str, Policy] | None = None,
    device: str = "auto",
    on_change: Callable[[ValidationAnswers], None] = lambda answers: None,
    progress: Callable[[str, str, str], None] = lambda site, model, case: None,
) -> Validation:
    """Ask every site in this process, one after another, and write the record into ``folder``.

    Args:
        spec: what is asked.
        models: the folder with the job's models.
        data: each site's prepared folder.
        folder: of the run; each site's own scores go below it.
        policies: of sites that have one.
        device: a torch device name, or ``auto``.
        on_change: called after each answer.
        progress: called with site, model and case after each is scored.

    Raises:
        ConfigError: as `begin`.
    """
    answers = begin(spec, models, on_change=on_change)
    on_change(answers)
    for site in spec.sites:
        try:
            site_answer = answer(
                data[site],
                site,
                spec,
                models,
                (policies or {}).get(site),
                packages=listed_packages((policies or {}).get(site), simulated=True),
                scores_folder=folder / SITES / site,
                device=device,
                progress=partial(progress, site),
            )
        except FedshiftError as error:
            answers.refuse(site, str(error))
        else:
            answers.add(site, site_answer)
    record = answers.record()
    record.write(folder)
    return record
