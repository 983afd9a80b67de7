"""FLARE's job of a validation: the files of a job that trains, with other components, and with its models."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from nvflare.apis.fl_context import FLContext

from fedshift.flare import codec
from fedshift.flare.context import config_folder
from fedshift.flare.export import APP, SPEC, write_folder
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import FILE_NAME
from fedshift.schema.validation import KEY, ModelRef, ValidationSpec
from fedshift.schema.yaml_file import read_yaml
from flare_armour.patches.submissions import LARGEST

MODELS = "models"
"""Folder of the models, beside ``fedshift.yaml``."""
HEADER = """\
# A validation: each site scores these models on its own cases, as its own policy allows, and nothing is trained.
# Written by 'fedshift job --evaluate'. Where a site's data are is not in here: only the site knows.
"""


def write_validation_job(
    spec: ValidationSpec, models: Mapping[str, Path], folder: Path, *, production: bool = False, with_code: bool = False
) -> ValidationSpec:
    """Write a validation's job folder, completely or not at all; returns what it asks, with the models' hashes.

    Args:
        spec: what is asked; the hashes of its models are filled in.
        models: name -> model file, or folder of a MONAI bundle.
        folder: the job folder itself.
        production: as for `fedshift.flare.export.write_job`.
        with_code: likewise.

    Raises:
        ConfigError: the folder holds something other than a job; a model cannot be used, or all together are too large.
    """
    from fedshift.federation.carried_model import SUFFIX, pack_model  # brings torch
    from fedshift.inference.carried_bundle import pack_bundle

    if folder.exists() and not (folder / SPEC).is_file():
        raise ConfigError("output-exists", f"{folder} is there and is no fedshift job: give another --name or --out")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.models-", dir=folder.parent) as scratch:
        packed = Path(scratch)
        refs = [
            ModelRef(name=name, sha256=(pack_bundle if file.is_dir() else pack_model)(file, packed / f"{name}{SUFFIX}"))
            for name, file in models.items()
        ]
        size = sum(file.stat().st_size for file in packed.iterdir())
        if size > LARGEST * 0.95:
            raise ConfigError(
                "job-too-large",
                f"the models have {size / 1e6:.0f} MB together, and a job may have {LARGEST / 1e6:.0f}: write several "
                "jobs with the same first model",
            )
        spec = ValidationSpec.parse(spec.model_dump() | {"models": refs}, where="--evaluate")
        write_folder(
            folder,
            meta={
                "name": spec.validation,
                "resource_spec": {},
                "min_clients": 1,
                "deploy_map": {APP: ["server", *spec.sites]},
            },
            server=server_config(),
            client=client_config(),
            spec=HEADER + yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False),
            production=production,
            with_code=with_code,
            beside={f"{MODELS}/{file.name}": file for file in sorted(packed.iterdir())},
        )
    return spec


def models_of(folder: Path) -> Path:
    """The models of a job folder."""
    return folder / SPEC.parent / MODELS


def is_validation(folder: Path) -> bool:
    """Whether a folder is a job of this kind."""
    return (folder / SPEC).is_file() and KEY in read_yaml(folder / SPEC)


def read_validation_spec(path: Path) -> ValidationSpec:
    """Read the ``fedshift.yaml`` of a validation's job."""
    return ValidationSpec.parse(read_yaml(path), where=str(path))


def deployed(fl_ctx: FLContext) -> tuple[ValidationSpec, Path]:
    """The validation that FLARE has deployed at this party, and the folder of its models."""
    config = config_folder(fl_ctx)
    return read_validation_spec(config / FILE_NAME), config / MODELS


def server_config() -> dict[str, Any]:
    """``config_fed_server.json``."""
    return {
        "format_version": 2,
        "server": {"task_request_interval": 0.1},
        "workflows": [{"id": KEY, "path": "fedshift.flare.validation.workflow.ValidationWorkflow", "args": {}}],
        "components": [],
    }


def client_config() -> dict[str, Any]:
    """``config_fed_client.json``."""
    path = "fedshift.flare.validation.executor.ValidationExecutor"
    return {
        "format_version": 2,
        "executors": [{"tasks": [codec.SCORE], "executor": {"path": path, "args": {}}}],
        "components": [],
    }
