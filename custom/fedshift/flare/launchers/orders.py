"""What a job may not say of how its processes are started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvflare.apis.job_def import JobMetaKey

from fedshift.data.locate import SITE_FILE


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
