"""NVFlare measures how long something takes with a clock that nobody sets.

NVFlare 2.9: how long a site has been silent, when the next heartbeat is due, and how long a transfer or a question may
take is reckoned with ``time.time``, the time of day, which jumps when a clock is set.
Cost: a server whose clock is set forward by more than ten minutes takes all sites for dead at once; one whose clock is
set back looks for dead sites, and a site whose clock is set back sends heartbeats, only when the former time is
reached.
Instead: the modules that reckon so (`MODULES`) see a `Clock`, whose ``time()`` is the time of day when the process
began plus the seconds since then. Logs still have the time of day, and nothing that is compared between machines is
changed. A console's session, which ends with its certificate too, keeps the time of day: log in again.
Fixed in NVFlare when: ``BaseServer.remove_dead_clients`` uses ``time.monotonic``.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from types import ModuleType

from flare_armour.patch import Patch

SERVER, CLIENT, F3 = "nvflare.private.fed.server", "nvflare.private.fed.client", "nvflare.fuel.f3"
MODULES = (
    "nvflare.apis.client",
    "nvflare.apis.controller_spec",
    "nvflare.apis.impl.bcast_manager",
    "nvflare.apis.impl.send_manager",
    "nvflare.apis.impl.wf_comm_server",
    *(f"{F3}.sfm.{name}" for name in ("conn_manager", "heartbeat_monitor", "sfm_conn")),
    *(f"{F3}.streaming.{name}" for name in ("download_service", "transfer_outcome")),
    "nvflare.private.aux_runner",
    "nvflare.private.defs",
    "nvflare.private.fed.authenticator",
    *(f"{CLIENT}.{name}" for name in ("client_executor", "client_runner", "communicator", "fed_client_base")),
    *(f"{SERVER}.{name}" for name in ("admin", "client_manager", "fed_server", "server_engine", "server_runner")),
)
"""They compare only times that one of them has noted in the same process."""


class Clock(ModuleType):
    """Python's module ``time``, but for ``time()``, which is steady."""

    def __init__(
        self, *, of_day: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin at the time of day. ``of_day`` and ``monotonic`` return seconds."""
        super().__init__("time")
        self.__dict__.update({name: value for name, value in vars(time).items() if not name.startswith("__")})
        start, began = of_day(), monotonic()
        self.time = lambda: start + monotonic() - began


def apply() -> None:
    """Give NVFlare's modules a steady clock."""
    clock = Clock()
    for name in MODULES:
        module = importlib.import_module(name)
        if module.__dict__.get("time") is time:
            module.__dict__["time"] = clock


PATCH = Patch(
    name="steady_clock",
    kind="correct",
    also=apply,
    without="a clock that is set during a run can make the server take its sites for dead",
    sources={
        f"{SERVER}.fed_server:BaseServer.remove_dead_clients": "faf4aff2ab4a",
        f"{SERVER}.fed_server:BaseServer.client_cleanup": "7121bb10df15",
        f"{SERVER}.client_manager:ClientManager.heartbeat": "bf35137b2cbc",
        f"{CLIENT}.client_runner:ClientRunner._send_job_heartbeat": "00e5f2d4faa1",
        "nvflare.apis.impl.wf_comm_server:WFCommServer._check_dead_clients": "c30b796f451b",
        "nvflare.apis.impl.wf_comm_server:WFCommServer._get_task_dead_clients": "e05eee8dc202",
    },
)
