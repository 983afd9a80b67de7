"""FLARE's simulator for ``fedshift run``, with forked workers.

``python -m fedshift.flare.simulator JOB_FOLDER [--measure]`` imports what the run needs. It then prints `READY`, with
``--measure`` followed by what `fedshift.federation.footprint` has measured, and waits for a `Start` line on standard
input. If the input ends instead, so does the process.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import socket
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedshift.flare.export import read_job_folder
from fedshift.flare.start import MEASURE, READY, Start
from fedshift.schema.errors import FedshiftError
from flare_armour.patches import simulator
from flare_armour.patches.fork_server import CAN_FORK, run_in_child, serve_child


def _simulator(fork_server: socket.socket | None) -> int:
    simulator.use(fork_server)
    runpy.run_module("nvflare.private.fed.app.simulator.simulator", run_name="__main__", alter_sys=True)
    return 0


def _main() -> int:
    # Import what server and workers need, before anything is forked.
    import fedshift.flare.executor
    import fedshift.flare.workflow  # noqa: F401
    from fedshift.federation.footprint import measure
    from fedshift.tasks.libraries import libraries
    from fedshift.tasks.precision import use_threads

    found, folder = None, Path(sys.argv[1])
    with suppress(FedshiftError):  # a survey, or a job with which the server's workflow will end at once
        for name in libraries(read_job_folder(folder).task):
            importlib.import_module(name)

    def measured() -> dict[str, Any]:
        use_threads(1)
        return asdict(measure(read_job_folder(folder), several=True))

    if MEASURE in sys.argv:
        found = run_in_child(measured) if CAN_FORK else measured()
    sys.stdout.write(f"{READY}{json.dumps(found)}\n")
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        return 0
    start: Start = json.loads(line)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # the simulator must not read from the terminal
    sys.argv = [sys.argv[0], *start["argv"]]
    os.environ.update(start["env"])
    return serve_child(_simulator) if CAN_FORK and simulator.WORKERS.fits() else _simulator(None)


if __name__ == "__main__":
    sys.exit(_main())
