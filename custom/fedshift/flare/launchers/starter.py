"""What starts the processes of jobs for `fedshift.flare.guard.SiteJobLauncher`, by the site's own settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.job_launcher_spec import JobHandleSpec

from fedshift.data.locate import SITE_FILE
from flare_armour.restart import Kill


class Starter(Protocol):
    """Starts processes elsewhere. A job decides nothing of it."""

    def begin(self, fl_ctx: FLContext) -> None:
        """Before the site is connected: end what a former process of this site has left behind.

        Raises:
            UnsafeComponentError: the launcher cannot work here; NVFlare then ends the site.
        """
        ...

    def start(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        """Start the process of a job."""
        ...

    def killed(self, process: Any) -> Kill | None:
        """Of what `start` returned, once it has ended: that it was killed, or None."""
        ...

    def close(self) -> None:
        """The site ends: nothing of it may go on elsewhere."""
        ...


def require_no_orders(job_meta: Mapping[str, Any]) -> None:
    """A job that says how it is started could name an image, and so bring code.

    Raises:
        RuntimeError: it says so; NVFlare tells the server that the site cannot run the job.
    """
    for key in (JobMetaKey.JOB_LAUNCHER_SPEC.value, JobMetaKey.RESOURCE_SPEC.value):
        if any((job_meta.get(key) or {}).values()):
            raise RuntimeError(
                f"the job's meta.json has {key}, and only the site decides how its processes are started: leave it "
                f"out, and see launcher in {SITE_FILE}"
            )
