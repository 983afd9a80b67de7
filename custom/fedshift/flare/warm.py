"""Forked workers for ``nvflare simulator``, which would start a process for every task of every site.

The command is FLARE's own. The first that runs of this package is the server's workflow, in the simulator's process and
before any client: it calls `warm`. What is forked is a process of its own, ``python -m fedshift.flare.warm SOCKET``, as
the simulator's has threads.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from fedshift.flare.zygote import CAN_FORK, Forks, Zygote


def warm() -> None:
    """Have this process's simulator fork its workers; nothing changes where ``fedshift run`` has seen to it."""
    from fedshift.flare.mended import is_mended, mend  # FLARE's simulator: nothing for a deployed server

    if not is_mended():
        mend(Forks(_zygote()) if CAN_FORK else None)


def _zygote() -> socket.socket:
    """The socket of a new one, which ends with this process."""
    ours, theirs = socket.socketpair()
    with theirs:
        subprocess.Popen(
            [sys.executable, "-m", "fedshift.flare.warm", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    return ours


def _main() -> int:
    import fedshift.flare.executor  # noqa: F401  what workers import

    with socket.socket(fileno=int(sys.argv[1])) as asked:
        return Zygote(asked).run()


if __name__ == "__main__":
    sys.exit(_main())
