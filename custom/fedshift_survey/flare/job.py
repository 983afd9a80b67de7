"""FLARE's job of a survey: the same files as a job that trains, with other components."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fedshift.flare.export import APP, SPEC, write_folder
from fedshift.schema.errors import ConfigError
from fedshift.schema.fingerprint import SurveySpec
from fedshift.schema.yaml_file import read_yaml

TASK = "survey"
HEADER = """\
# A survey: each site tells sums over its cases, as its own policy allows, and nothing is trained.
# Written by 'fedshift survey --job'. 'fedshift survey SURVEY.JSON' makes the plan and the map from what it leaves.
"""


def write_survey_job(spec: SurveySpec, folder: Path, *, production: bool = False) -> Path:
    """Write a survey's job folder, completely or not at all. Returns ``folder``.

    Args:
        spec: who is asked.
        folder: the job folder itself.
        production: as for `fedshift.flare.export.write_job`.
    """
    if folder.exists() and not (folder / SPEC).is_file():
        raise ConfigError("folder-in-use", f"{folder} is there and is no fedshift job: name another folder with --job")
    text = yaml.safe_dump(spec.model_dump(mode="json", by_alias=True), sort_keys=False)
    return write_folder(
        folder,
        meta={
            "name": spec.survey,
            "resource_spec": {},
            "min_clients": 1,
            "deploy_map": {APP: ["server", *spec.everyone]},
        },
        server=server_config(),
        client=client_config(),
        spec=HEADER + text,
        production=production,
    )


def read_survey_spec(path: Path) -> SurveySpec:
    """Read the ``fedshift.yaml`` of a survey's job."""
    return SurveySpec.parse(read_yaml(path), where=str(path))


def server_config() -> dict[str, Any]:
    """``config_fed_server.json``."""
    return {
        "format_version": 2,
        "server": {"task_request_interval": 0.1},
        "workflows": [{"id": "survey", "path": "fedshift_survey.flare.workflow.SurveyWorkflow", "args": {}}],
        "components": [],
    }


def client_config() -> dict[str, Any]:
    """``config_fed_client.json``."""
    return {
        "format_version": 2,
        "executors": [
            {"tasks": [TASK], "executor": {"path": "fedshift_survey.flare.executor.SurveyExecutor", "args": {}}}
        ],
        "components": [],
    }
