"""A site's return code does not end the job.

NVFlare 2.9: some return codes of a site end the job.
Cost: one site can end the job of all.
Instead: such an answer reaches the workflow as one with any other return code does, and only its site is left out.
Fixed in NVFlare when: ``ServerRunner.ABORT_RETURN_CODES`` is a setting.
"""

from __future__ import annotations

from typing import Any

from flare_armour.patches.patch import Patch

RUNNER = "nvflare.private.fed.server.server_runner:ServerRunner"
PATCH = Patch(
    name="return_codes",
    without="one site can end the job of all by a return code",
    replaces={f"{RUNNER}._process_submission": "001447aac81d"},
)


def outlive(runner: Any) -> None:
    """Let no return code end the job of this ``ServerRunner``."""
    if PATCH.fits():
        runner.ABORT_RETURN_CODES = ()
