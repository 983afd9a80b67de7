"""The armour's components of ``local/resources.json``, with what they need to know of fedshift."""

from __future__ import annotations

from pathlib import Path

from fedshift.flare.job_kinds import client_configs, server_configs
from fedshift.flare.validation.job import MODELS
from fedshift.reporting.progress import mark_failed
from fedshift.schema.job import FILE_NAME
from flare_armour import readmission, restart
from flare_armour.guard import component, orders

DIED = "the server's process of this job died; the server's log has the details"
JOB_FILES = orders.JobFiles(
    configs={"config/config_fed_server.json": server_configs, "config/config_fed_client.json": client_configs},
    others=(f"config/{FILE_NAME}",),
    arrays=f"config/{MODELS}/",
    written_by="'fedshift job'",
)


class Guard(component.Guard):
    """For ``components``, first of all: drops what a party of the federation may not say."""

    files = JOB_FILES


class AppFiles(orders.AppFiles):
    """For the server's ``app_validator``; a site's guard does that itself."""

    files = JOB_FILES


class Readmission(readmission.Readmission):
    """For the server's ``components``: lets late and restarted sites into a running job."""

    resumable = FILE_NAME


class SiteJobLauncher(restart.SiteJobLauncher):
    """For a site's ``components``: starts killed processes of jobs again."""


class ServerJobLauncher(restart.ServerJobLauncher):
    """For the server's ``components``: starts killed processes of jobs again."""

    @staticmethod
    def ended(folder: Path) -> None:
        """A process that died has left its job's progress as it was."""
        mark_failed(folder, DIED)
