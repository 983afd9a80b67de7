"""A process that ends FLARE's simulator and all its workers when ``fedshift run`` is gone, however that has ended.

``python -m fedshift.flare.simulator_guard PID`` waits until its standard input ends, whose other end the system closes
with the process that has started it. Then it ends process PID, the simulator's, with all that descend from it. A thread
of the simulator cannot do that: what forks workers keeps to one thread (`flare_armour.patches.fork_server`).
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import psutil  # type: ignore[import-untyped]


def _main() -> int:
    try:
        simulator = psutil.Process(int(sys.argv[1]))
    except psutil.NoSuchProcess:
        return 0
    while os.read(0, 1024):
        pass
    with suppress(psutil.NoSuchProcess):  # psutil knows a process from a later one with its number
        simulator.suspend()  # it forks no more
        for process in (*simulator.children(recursive=True), simulator):
            with suppress(psutil.NoSuchProcess):
                process.kill()  # safe at any time: files are written atomically, and the run can be resumed
    return 0


if __name__ == "__main__":
    sys.exit(_main())
