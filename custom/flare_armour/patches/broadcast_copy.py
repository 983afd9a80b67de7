"""The data of a broadcast task are not copied.

NVFlare 2.9: makes a deep copy of a broadcast's data before the first client gets it, in case somebody changes them.
Cost: one more model in the server's memory in every round.
Instead: the data themselves stand where NVFlare looks for its copy. Our arrays are read-only, so nobody can change
them.
Fixed in NVFlare when: ``WFCommServer`` no longer sets ``task._broadcast_data``.
"""

from __future__ import annotations

from typing import Any

from nvflare.apis.controller_spec import Task

from flare_armour.patches.patch import Patch

PATCH = Patch(
    name="broadcast_copy",
    without="the server holds one more copy of the model",
    replaces={"nvflare.apis.impl.wf_comm_server:WFCommServer._do_process_task_request": "7e9c07e2cb58"},
)


def share_data(task: Task) -> None:
    """Make all clients get the task's data themselves."""
    if PATCH.fits():
        attributes: Any = task
        attributes._broadcast_data = task.data
