"""The simulator looks more often for what it waits for.

NVFlare 2.9: the threads that start workers, and those that wait for a worker's connection, sleep for a second at a
time.
Cost: up to a second whenever a worker is started: at launch, and for every task with the bare command.
Instead: they sleep for at most `SHORT` seconds at a time.
Fixed in NVFlare when: ``SimulatorClientRunner.run_client_thread`` no longer sleeps before it starts a worker.
"""

from __future__ import annotations

import time

from flare_armour.patches.patch import Patch, find

SHORT = 0.05
RUNNER = "nvflare.private.fed.app.simulator.simulator_runner:SimulatorClientRunner"
PATCH = Patch(
    name="simulator_sleeps",
    without="the simulator takes a second longer to start a worker",
    replaces={f"{RUNNER}.run_client_thread": "543328f3de8e", f"{RUNNER}._create_connection": "ed32258220ad"},
)


class Clock:
    """Stands where the simulator's module expects Python's ``time``."""

    time = staticmethod(time.time)

    @staticmethod
    def sleep(seconds: float) -> None:
        """Sleep for at most `SHORT`: every caller does so in a loop."""
        time.sleep(min(seconds, SHORT))


def apply() -> None:
    """Replace ``time`` in the simulator's module."""
    find("nvflare.private.fed.app.simulator:simulator_runner").time = Clock
