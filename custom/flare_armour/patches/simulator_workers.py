"""The simulator's workers are forks of one process that has imported torch.

NVFlare 2.9: starts every worker as a Python process of its own, which imports torch, MONAI and the job's code. With
fewer threads than clients it starts one for every task of every site.
Cost: seconds at launch, and 400 MB of memory for each worker. With the bare command, which runs one client at a time,
most of a round.
Instead: where the simulator's module expects ``subprocess``, `Forks` stands, which has workers forked by
`flare_armour.patches.fork_server`. ``fedshift run`` calls `use` with the process that it has prepared. With the bare
command the server's workflow, which runs before any client is started, calls `use_in_bare_simulator`.
Fixed in NVFlare when: workers are forked, or kept between tasks.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from flare_armour.patches import install, simulator_names, simulator_paths, simulator_sleeps
from flare_armour.patches.fork_server import CAN_FORK, Forks, ForkServer
from flare_armour.patches.patch import Patch

RUNNER = "nvflare.private.fed.app.simulator.simulator_runner"
PATCH = Patch(
    name="simulator_workers",
    without="every worker imports torch by itself",
    replaces={
        f"{RUNNER}:SimulatorClientRunner.do_one_task": "b087997b1053",
        f"{RUNNER}:SimulatorClientRunner._cleanup_process": "69000ee690b5",
    },
)

_done = False


def use(fork_server: socket.socket | None) -> None:
    """Patch the simulator of this process; without a fork server NVFlare starts its workers."""
    global _done
    _done = True
    # The check comes first: the other patches replace parts of the same class.
    fits = PATCH.fits()
    install((simulator_names, simulator_paths, simulator_sleeps))
    if fork_server is not None and fits:
        importlib.import_module(RUNNER).subprocess = Forks(fork_server)  # type: ignore[attr-defined]


def use_in_bare_simulator(libraries: Sequence[str] = ()) -> None:
    """Patch the simulator of this process, unless ``fedshift run`` has done so.

    Args:
        libraries: modules that workers need besides `fedshift.flare.executor`.
    """
    if not _done:
        use(_start(libraries) if CAN_FORK and PATCH.fits() else None)


def _start(libraries: Sequence[str]) -> socket.socket:
    """The socket of a new fork server, which ends with this process."""
    ours, theirs = socket.socketpair()
    with theirs:
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno()), *libraries],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    return ours


def _main() -> int:
    import fedshift.flare.executor  # noqa: F401  what workers import

    for name in sys.argv[2:]:
        importlib.import_module(name)
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        return ForkServer(requests).run()


if __name__ == "__main__":
    sys.exit(_main())
