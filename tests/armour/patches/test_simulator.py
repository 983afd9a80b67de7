"""FLARE's simulator: names, paths and workers."""

from __future__ import annotations

import os
import pickle
import shlex
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from flare_armour.patches.fork_server import Forks
from flare_armour.patches.simulator import CLIENT_NAME, Command, ThreadNames


def test_threads_that_start_at_the_same_moment_send_their_own_names() -> None:
    context, sent = ThreadNames({"server_config": 1}), {}
    both_set = threading.Barrier(2)

    def start(name: str) -> None:
        context[CLIENT_NAME] = name
        both_set.wait(timeout=10)
        sent[name] = pickle.loads(pickle.dumps({"build_ctx": context}))["build_ctx"]

    threads = [threading.Thread(target=start, args=(name,)) for name in ("BIDMC", "HK")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert sent == {name: {"server_config": 1, CLIENT_NAME: name} for name in ("BIDMC", "HK")}


def test_what_was_there_before_any_thread_stays() -> None:
    context = ThreadNames({CLIENT_NAME: "first", "retry": 2})
    context["retry"] = 3
    assert pickle.loads(pickle.dumps(context)) == {CLIENT_NAME: "first", "retry": 3}


OPTIONS = ("-m", "nvflare.the_worker", "-o", "{folder}/site-1", "--logging_config", "{folder}/log.json", "--gpu", "0,1")


@pytest.mark.parametrize("folder", ["/plain", "/mit blank", "/Dr. O'Hara's \"data\"", "/a - b/-o", "/# 1", "/ends "])
def test_a_value_is_one_argument(folder: str) -> None:
    arguments = [f"{folder}/bin/python", *(option.format(folder=folder) for option in OPTIONS)]
    assert Command.split(" ".join(arguments), True) == arguments


def test_usual_paths_are_divided_as_nvflare_divides_them() -> None:
    command = " ".join(["python", *(option.format(folder="/plain") for option in OPTIONS)])
    assert Command.split(command, True) == shlex.split(command, True)


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
from flare_armour.patches.simulator import Clock, use_in_bare_simulator

use_in_bare_simulator(["fedshift.flare.executor"])
forks = simulator_runner.subprocess
assert isinstance(forks, Forks), forks
assert simulator_runner.time is Clock
use_in_bare_simulator(["fedshift.flare.executor"])
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
    lines = sorted([simulator.stdout.readline().strip(), simulator.stdout.readline().strip()])
    assert lines[0] and lines[1:] == ["has torch"], lines
    worker = psutil.Process(int(lines[0]))
    fork_server = worker.parent()
    assert fork_server is not None and "flare_armour.patches.simulator" in fork_server.cmdline()
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
    with pytest.raises(OSError):
        forks.Popen([sys.executable, "-m", "anything"], env={})
    assert time.monotonic() - started < 30
