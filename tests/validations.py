"""Models and jobs of validations: networks with random weights, which score something, on sites made on the spot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from inference.conftest import save_model
from volumesites import blob_job, make_volume_site

from fedshift.federation.carried_model import pack_model
from fedshift.federation.tensors import read_weights
from fedshift.schema.manifest import read_manifest
from fedshift.schema.validation import ModelRef, ValidationSpec
from fedshift.tasks.kinds import build_task

NAMES = ("old", "new")


def blob_models(folder: Path, *names: str) -> dict[str, Path]:
    """Model files of `volumesites.BLOBS`; each has other weights."""
    folder.mkdir(parents=True, exist_ok=True)
    job, files = blob_job(folder), {}
    for number, name in enumerate(names or NAMES):
        torch.manual_seed(number)
        weights = read_weights(build_task(job).network())
        files[name] = save_model(folder / f"{name}.pt", job, weights)
    return files


def packed(models: Mapping[str, Path], folder: Path) -> tuple[ModelRef, ...]:
    """The models as a job carries them, in a folder."""
    return tuple(ModelRef(name=n, sha256=pack_model(file, folder / f"{n}.npz")) for n, file in models.items())


def blob_spec(refs: tuple[ModelRef, ...], **changes: Any) -> ValidationSpec:
    """A validation on `blob_sites`."""
    fields: dict[str, Any] = {"validation": "v", "task": "blobs", "dataset": "blobs", "sites": ("A", "B")}
    return ValidationSpec(**(fields | {"models": refs} | changes))


def blob_sites(root: Path, *, test: int = 12, **options: Any) -> dict[str, Path]:
    """Two sites with so many test cases."""
    return {
        site: make_volume_site(root, site, cases=test + 2, val=1, test=test, gain=gain, **options)
        for site, gain in (("A", 1.0), ("B", 2.0))
    }


def with_strata(folder: Path, **columns: list[str]) -> Path:
    """Write what a table says of the site's cases, in their order, into its manifest."""
    manifest = read_manifest(folder)
    cases = tuple(
        case.model_copy(update={"strata": {name: values[number] for name, values in columns.items() if values[number]}})
        for number, case in enumerate(manifest.cases)
    )
    manifest.model_copy(update={"cases": cases}).write(folder)
    return folder
