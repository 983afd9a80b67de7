"""The guard ends the simulator's whole family when the process that has started both is gone."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil

from fedshift.flare.simulator import PROGRAM

FAMILY = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
PARENT = f"""
import subprocess, sys, time
family = subprocess.Popen([sys.executable, "-c", {FAMILY!r}])
guard = [*{PROGRAM}, "guard", str(family.pid)]
subprocess.Popen(guard, stdin=subprocess.PIPE, process_group=0)
time.sleep(600)
"""


def test_nobody_is_left_when_the_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT])
    family: list[psutil.Process] = []
    try:
        deadline = time.monotonic() + 60
        while len(family) < 3:
            assert time.monotonic() < deadline, family
            time.sleep(0.05)
            family = psutil.Process(parent.pid).children(recursive=True)
        guard = next(process for process in family if "guard" in process.cmdline())
        while "psutil" not in " ".join(module.path for module in guard.memory_maps()):  # it has begun to look
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert not psutil.wait_procs(family, timeout=1)[0], "while the parent is there, nobody ends"
        parent.kill()
        assert not psutil.wait_procs(family, timeout=30)[1]
    finally:
        parent.kill()
        parent.wait()
        for process in family:
            if process.is_running():
                process.kill()


def test_a_simulator_that_has_ended_needs_no_guard() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    guard = [*PROGRAM, "guard", str(ended.pid)]
    assert subprocess.run(guard, stdin=subprocess.DEVNULL, timeout=60, check=False).returncode == 0
