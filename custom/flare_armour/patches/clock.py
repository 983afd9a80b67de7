"""NVFlare measures how long something takes with a clock that nobody sets.

NVFlare 2.9: how long a site has been silent, when the next heartbeat is due, and how long a transfer or a question may
take is reckoned with ``time.time``, the time of day. That jumps when a clock is set, by hand, by NTP after a start, or
in a virtual machine that was paused.
Cost: a server whose clock is set forward by more than ten minutes takes all sites for dead at once, until it hears of
them again; one whose clock is set back looks for dead sites, and a site whose clock is set back sends heartbeats, only
when the former time is reached.
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

SERVER = "nvflare.private.fed.server"
MODULES = (
    "nvflare.apis.client",
    "nvflare.apis.controller_spec",
    "nvflare.apis.impl.bcast_manager",
    "nvflare.apis.impl.send_manager",
    "nvflare.apis.impl.wf_comm_server",
    "nvflare.fuel.f3.sfm.conn_manager",
    "nvflare.fuel.f3.sfm.heartbeat_monitor",
    "nvflare.fuel.f3.sfm.sfm_conn",
    "nvflare.fuel.f3.streaming.download_service",
    "nvflare.fuel.f3.streaming.transfer_outcome",
    "nvflare.private.aux_runner",
    "nvflare.private.defs",
    "nvflare.private.fed.authenticator",
    "nvflare.private.fed.client.client_executor",
    "nvflare.private.fed.client.client_runner",
    "nvflare.private.fed.client.communicator",
    "nvflare.private.fed.client.fed_client_base",
    f"{SERVER}.admin",
    f"{SERVER}.client_manager",
    f"{SERVER}.fed_server",
    f"{SERVER}.server_engine",
    f"{SERVER}.server_runner",
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


def apply(modules: tuple[str, ...] = MODULES) -> None:
    """Give these modules of NVFlare a steady clock."""
    clock = Clock()
    for name in modules:
        module = importlib.import_module(name)
        if module.__dict__.get("time") is time:
            module.__dict__["time"] = clock


PATCH = Patch(
    name="steady_clock",
    kind="correct",
    apply=apply,
    without="a clock that is set during a run can make the server take its sites for dead",
    replaces={
        f"{SERVER}.fed_server:BaseServer.remove_dead_clients": "faf4aff2ab4a",
        f"{SERVER}.fed_server:BaseServer.client_cleanup": "7121bb10df15",
        f"{SERVER}.client_manager:ClientManager.heartbeat": "bf35137b2cbc",
        "nvflare.private.fed.client.client_runner:ClientRunner._send_job_heartbeat": "00e5f2d4faa1",
        "nvflare.apis.impl.wf_comm_server:WFCommServer._check_dead_clients": "c30b796f451b",
        "nvflare.apis.impl.wf_comm_server:WFCommServer._get_task_dead_clients": "e05eee8dc202",
    },
)
