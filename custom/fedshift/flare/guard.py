"""The armour's components of ``local/resources.json``, with what they need to know of fedshift."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.job_launcher_spec import JobHandleSpec

from fedshift.flare.job_kinds import client_configs, server_configs
from fedshift.flare.launchers.choice import starter
from fedshift.flare.launchers.starter import Starter
from fedshift.flare.validation.job import MODELS
from fedshift.reporting.progress import mark_failed
from fedshift.schema.errors import FedshiftError
from fedshift.schema.job import FILE_NAME
from flare_armour import readmission, restart
from flare_armour.guard import component, orders

log = logging.getLogger(__name__)

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
    """For a site's ``components``: starts processes of jobs where the site's settings say, killed ones again."""

    _starter: Starter | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Read the settings before the site is connected.

        Raises:
            UnsafeComponentError: they are not valid, or what they name does not work here; NVFlare then ends the site.
        """
        if event_type == EventType.SYSTEM_BOOTSTRAP:  # in the process between jobs only
            try:
                self._starter = starter(Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir()))
                if self._starter is not None:
                    self._starter.begin(fl_ctx)
            except (FedshiftError, UnsafeComponentError) as error:
                log.error("%s", error)
                raise UnsafeComponentError(str(error)) from None
        elif event_type == EventType.SYSTEM_END and self._starter is not None:
            self._starter.close()
        super().handle_event(event_type, fl_ctx)

    def start(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        return super().start(job_meta, fl_ctx) if self._starter is None else self._starter.start(job_meta, fl_ctx)

    def killed(self, process: Any) -> restart.Kill | None:
        return super().killed(process) if self._starter is None else self._starter.killed(process)


class ServerJobLauncher(restart.ServerJobLauncher):
    """For the server's ``components``: starts killed processes of jobs again."""

    @staticmethod
    def ended(folder: Path) -> None:
        """A process that died has left its job's progress as it was."""
        mark_failed(folder, DIED)
