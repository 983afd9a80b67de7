"""NVFlare's bare command forks its workers too, and no process is left when it ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from flare_armour.patches.fork_server import Forks

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only"),
]

WORKER = """
import sys, time
sys.stdout.write("has torch\\n" if "torch" in sys.modules else "would import torch\\n")
sys.stdout.flush()
time.sleep(600)
"""
SIMULATOR = """
from nvflare.private.fed.app.simulator import simulator_runner
from flare_armour.patches.fork_server import Forks
from flare_armour.patches.simulator_sleeps import Clock
from flare_armour.patches.simulator_workers import use_in_bare_simulator

use_in_bare_simulator()
forks = simulator_runner.subprocess
assert isinstance(forks, Forks), forks
assert simulator_runner.time is Clock
use_in_bare_simulator()
assert simulator_runner.subprocess is forks, "once is enough"
import os, sys
worker = forks.Popen([sys.executable, "-m", "the_worker"], env=dict(os.environ))
sys.stdout.write(f"{worker.pid}\\n")
sys.stdout.flush()
sys.stdin.readline()
"""
# Both write to one pipe, each its line at once: print may write the line's end by itself, after the other's words.


@pytest.mark.slow
def test_workers_of_the_bare_simulator_have_imported_all_and_end_with_it(tmp_path: Path) -> None:
    (tmp_path / "the_worker.py").write_text(WORKER, encoding="utf-8")
    paths = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    simulator = subprocess.Popen(
        [sys.executable, "-c", SIMULATOR],
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert simulator.stdout is not None and simulator.stderr is not None
    said = sorted([simulator.stdout.readline().strip(), simulator.stdout.readline().strip()])
    assert said[0] and said[1:] == ["has torch"], said
    worker = psutil.Process(int(said[0]))
    fork_server = worker.parent()
    assert fork_server is not None and "flare_armour.patches.simulator_workers" in fork_server.cmdline()
    simulator.kill()
    simulator.communicate()
    gone, alive = psutil.wait_procs([fork_server, worker], timeout=120)
    assert not alive, f"{[process.cmdline() for process in alive]} go on without their simulator"
    assert len(gone) == 2


def test_a_fork_server_that_cannot_start_is_an_error_at_once() -> None:
    ours, theirs = socket.socketpair()
    forks = Forks(ours)
    theirs.close()
    started = time.monotonic()
    with pytest.raises(OSError, match="no worker could be started"):
        forks.Popen([sys.executable, "-m", "anything"], env={})
    assert time.monotonic() - started < 30
