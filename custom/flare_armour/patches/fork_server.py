"""A process that has imported what workers need, and forks one whenever it is asked to over a socket.

`ForkServer` keeps to one thread, because only such a process can be forked safely. In the simulator `Forks` stands
where NVFlare expects Python's ``subprocess`` (`flare_armour.patches.simulator`). Memory that nobody writes to
is shared by all workers.

CUDA cannot be used in a fork of a process that has used it, were it only to count GPUs. So nothing in this process may
use it: what must be asked is asked in a child (`run_in_child`), and a worker that finds CUDA unusable starts again as a
process of its own.
"""

from __future__ import annotations

import itertools
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NoReturn

CAN_FORK = sys.platform == "linux"
"""Elsewhere a process that has loaded libraries is not safe to fork."""
LOOK = 0.02
"""Seconds between looks at who has ended."""
START_TIMEOUT = 600.0
"""Seconds that the fork server may take to import everything, on a busy machine too; one that has died is noticed."""


class ForkServer:
    """Forks a worker for every line that arrives at its socket. Forks have what this process has imported."""

    def __init__(self, requests: socket.socket, simulator: int | None = None) -> None:
        """``simulator`` is the process id of the process that asks, if it is a child of this one."""
        self._requests, self._simulator = requests, simulator
        self._workers: dict[int, int] = {}

    def run(self) -> int:
        """Serve until the simulator has ended; its exit code, or 0 if it is not a child."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever interrupts the simulator also ends this process
        received = b""
        while True:
            ended = self._reap()
            if ended is not None:
                return self._close(ended)
            if not select.select([self._requests], [], [], LOOK)[0]:
                continue
            try:
                some = self._requests.recv(1 << 16)
            except ConnectionResetError:
                some = b""
            if not some:
                if self._simulator is None:
                    return self._close(0)
                time.sleep(LOOK)  # the simulator is ending
            *lines, received = (received + some).split(b"\n")
            for line in lines:
                self._start(json.loads(line))

    def _start(self, request: dict[str, Any]) -> None:
        pid = _fork(lambda: _work(request["argv"], request["env"]), self._requests)
        self._workers[pid] = request["number"]
        _report(self._requests, number=request["number"], pid=pid)

    def _reap(self) -> int | None:
        """Report workers that have ended; the simulator's exit code if it has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:  # there are none
                return None if self._simulator is None else 1
            if not pid:
                return None
            code = os.waitstatus_to_exitcode(status)
            if pid == self._simulator:
                return code
            _report(self._requests, number=self._workers.pop(pid), code=code)

    def _close(self, code: int) -> int:
        for worker in self._workers:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGTERM)
        return code


def serve_child(simulator: Callable[[socket.socket], int]) -> int:
    """Run ``simulator`` in a child with a socket to this process, which is its fork server; the child's exit code."""
    ours, theirs = socket.socketpair()
    with ours:
        main = _fork(lambda: simulator(theirs), ours)
        theirs.close()
        return ForkServer(ours, main).run()


class Forks:
    """What NVFlare's simulator uses of ``subprocess``, with workers that a `ForkServer` forks."""

    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self, fork_server: socket.socket) -> None:
        """``fork_server`` is the simulator's end of the socket."""
        self._socket = fork_server
        self._asking = threading.Lock()
        self._numbers = itertools.count()
        self._workers: dict[int, Worker] = {}
        self._listener: threading.Thread | None = None

    def Popen(self, argv: Sequence[str], *, env: Mapping[str, str], **others: Any) -> Worker:  # noqa: N802
        """Start ``python -m MODULE ARGUMENTS``.

        Raises:
            OSError: the fork server does not answer.
        """
        assert argv[1] == "-m", argv
        worker, number = Worker(), next(self._numbers)
        self._workers[number] = worker
        with self._asking:
            if self._listener is None:  # not earlier: NVFlare forks this process, and threads are not forked
                self._listener = threading.Thread(target=self._listen, name="fork server", daemon=True)
                self._listener.start()
            _report(self._socket, number=number, argv=list(argv[2:]), env=dict(env))
        worker.pid  # noqa: B018  waits until it exists
        return worker

    def _listen(self) -> None:
        with self._socket.makefile("r", encoding="utf-8") as answers:
            for line in answers:
                reported = json.loads(line)
                self._workers[reported["number"]].note(reported.get("pid"), reported.get("code"))
        for worker in self._workers.values():
            worker.note(None, 1)


class Worker:
    """A process that is not a child of this one, with as much of `subprocess.Popen` as NVFlare uses."""

    def __init__(self) -> None:
        """The process does not exist yet."""
        self._pid, self._code = Future[int](), Future[int]()

    def note(self, pid: int | None, code: int | None) -> None:
        """Take over what the fork server reports: its process id, or its exit code; without either it is gone."""
        if pid is not None:
            self._pid.set_result(pid)
        elif not self._pid.done():
            self._pid.set_exception(OSError("no worker could be started"))
        if code is not None and not self._code.done():
            self._code.set_result(code)

    @property
    def pid(self) -> int:
        """Its process id, once it exists.

        Raises:
            OSError: it could not be started.
        """
        try:
            return self._pid.result(START_TIMEOUT)
        except TimeoutError:
            raise OSError(f"no worker has started within {START_TIMEOUT:.0f} seconds") from None

    @property
    def returncode(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._code.result() if self._code.done() else None

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; its exit code.

        Raises:
            subprocess.TimeoutExpired: it has not ended within ``timeout`` seconds.
        """
        try:
            return self._code.result(timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0) from None

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _fork(work: Callable[[], int], ours: socket.socket) -> int:
    """Start a child that calls ``work`` and exits with what it returns; the child's process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    ours.close()
    _end(work)


def _end(work: Callable[[], int]) -> NoReturn:
    code = 1
    try:
        code = work()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _work(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Be a worker, as if Python had been started with these arguments and this environment."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    for folder in environment.get("PYTHONPATH", "").split(os.pathsep):
        if folder and folder not in sys.path:
            sys.path.append(folder)
    module, *words = argv
    if cuda_is_unusable():
        os.execve(sys.executable, [sys.executable, "-m", module, *words], dict(environment))
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def cuda_is_unusable() -> bool:
    """Whether this process is a fork of one that had used CUDA. Imports nothing."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda._is_in_bad_fork())


def run_in_child(work: Callable[[], Any]) -> Any:
    """Call ``work`` in a child process, so that it changes nothing in this one; what it returns, which must be JSON.

    None if it raises; the traceback is printed.
    """
    ours, theirs = socket.socketpair()
    pid = _fork(lambda: _answer(work, theirs), ours)
    theirs.close()
    with ours, ours.makefile("r", encoding="utf-8") as answer:
        received = answer.read()
    os.waitpid(pid, 0)
    return json.loads(received) if received else None


def _answer(work: Callable[[], Any], to: socket.socket) -> int:
    to.sendall(json.dumps(work()).encode())
    return 0


def _report(to: socket.socket, **content: Any) -> None:
    with suppress(BrokenPipeError):
        to.sendall((json.dumps(content) + "\n").encode())
