"""What FLARE's own files of a job may hold: of jobs that train, of validations, and of the satellites' jobs."""

from __future__ import annotations

from typing import Any

from fedshift.flare.export import client_config, server_config
from fedshift.flare.validation import job as validation
from fedshift.schema.identity import parts_of_satellites


def server_configs() -> list[dict[str, Any]]:
    """All that ``config_fed_server.json`` may hold."""
    others = (kind.server_config() for kind in parts_of_satellites("fedshift.jobs"))
    return [server_config(), validation.server_config(), *others]


def client_configs() -> list[dict[str, Any]]:
    """All that ``config_fed_client.json`` may hold."""
    others = (kind.client_config() for kind in parts_of_satellites("fedshift.jobs"))
    return [client_config(), client_config(masks=True), validation.client_config(), *others]
