"""FLARE's simulator for ``fedshift run``: with forked workers, and all imported before it starts.

``python -m fedshift.flare.simulator JOB_FOLDER [--measure]`` imports what the run needs, prints `READY` and, if it is
asked to, what `fedshift.federation.footprint` has found; then it waits for a line with the simulator's arguments and
environment, `Start`, or for the end of its input.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedshift.flare.export import read_job_folder
from fedshift.flare.patches import simulator_workers
from fedshift.flare.patches.fork_server import CAN_FORK, run_in_child, serve_child
from fedshift.flare.start import MEASURE, READY, Start


def _simulator(fork_server: socket.socket | None) -> int:
    simulator_workers.use(fork_server)
    runpy.run_module("nvflare.private.fed.app.simulator.simulator", run_name="__main__", alter_sys=True)
    return 0


def _main() -> int:
    # What the server and the workers import, but for what their tasks ask for.
    import fedshift.flare.executor
    import fedshift.flare.workflow  # noqa: F401
    from fedshift.federation.footprint import measure
    from fedshift.tasks.precision import use_threads

    found = None

    def measured() -> dict[str, Any]:
        use_threads(1)
        return asdict(measure(read_job_folder(Path(sys.argv[1]))))

    if MEASURE in sys.argv:
        found = run_in_child(measured) if CAN_FORK else measured()
    sys.stdout.write(f"{READY}{json.dumps(found)}\n")
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        return 0
    start: Start = json.loads(line)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # nobody below waits for words
    sys.argv = [sys.argv[0], *start["argv"]]
    os.environ.update(start["env"])
    return serve_child(_simulator) if CAN_FORK and simulator_workers.PATCH.fits() else _simulator(None)


if __name__ == "__main__":
    sys.exit(_main())
