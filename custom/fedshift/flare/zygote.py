"""FLARE's workers as forks of one process that has imported what they need: no worker imports torch for itself.

`Zygote` is that process: it has imported everything, and forks a worker whenever the simulator asks for one over a
socket. It stays a process of one thread, which alone can be forked safely. In the simulator `Forks` stands where FLARE
expects Python's ``subprocess``. All their memory that nobody writes to is shared.

CUDA cannot be used in a fork of a process that has used it, were it only to count GPUs. So nothing here may; what has
to be asked is asked in a child (`apart`), and a worker that finds CUDA spoilt begins anew as a process of its own.
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
from contextlib import suppress
from typing import Any, NoReturn

CAN_FORK = sys.platform == "linux"
"""Elsewhere a process that has loaded libraries is not safe to fork."""
LOOK = 0.02
"""Seconds between looks at who has ended."""
PATIENCE = 60.0
"""Seconds that the zygote may take to import everything."""


class Zygote:
    """The process that is forked, into a worker for every line that comes through its socket."""

    def __init__(self, asked: socket.socket, simulator: int | None = None) -> None:
        """``simulator`` is the process that asks, if it is a child of this one. Forks have what is imported here."""
        self._asked, self._simulator = asked, simulator
        self._workers: dict[int, int] = {}

    def run(self) -> int:
        """Serve until the simulator has ended; returns its exit code, or 0 where it is no child."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever interrupts the simulator ends this too
        received = b""
        while True:
            ended = self._reap()
            if ended is not None:
                return self._close(ended)
            if not select.select([self._asked], [], [], LOOK)[0]:
                continue
            try:
                some = self._asked.recv(1 << 16)
            except ConnectionResetError:
                some = b""
            if not some:
                if self._simulator is None:
                    return self._close(0)
                time.sleep(LOOK)  # the simulator is ending
            *lines, received = (received + some).split(b"\n")
            for line in lines:
                self._start(json.loads(line))

    def _start(self, asked: dict[str, Any]) -> None:
        pid = _fork(lambda: _work(asked["argv"], asked["env"]), self._asked)
        self._workers[pid] = asked["number"]
        _tell(self._asked, number=asked["number"], pid=pid)

    def _reap(self) -> int | None:
        """Tell of workers that have ended; the simulator's exit code once it has."""
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
            _tell(self._asked, number=self._workers.pop(pid), code=code)

    def _close(self, code: int) -> int:
        for worker in self._workers:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGTERM)
        return code


def fork_with_zygote(simulator: Callable[[socket.socket], int]) -> int:
    """Run ``simulator`` in a child and be its zygote, which it asks through its socket; the child's exit code."""
    ours, theirs = socket.socketpair()
    with ours:
        main = _fork(lambda: simulator(theirs), ours)
        theirs.close()
        return Zygote(ours, main).run()


class Forks:
    """In the simulator: what FLARE uses of ``subprocess``, for workers that a `Zygote` forks."""

    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self, zygote: socket.socket) -> None:
        """``zygote`` is what `Zygote` has given to the simulator."""
        self._socket = zygote
        self._asking = threading.Lock()
        self._numbers = itertools.count()
        self._workers: dict[int, Worker] = {}
        self._listener: threading.Thread | None = None

    def Popen(self, argv: Sequence[str], *, env: Mapping[str, str], **others: Any) -> Worker:  # noqa: N802
        """Start ``python -m MODULE ARGUMENTS``.

        Raises:
            OSError: the zygote does not answer.
        """
        assert argv[1] == "-m", argv
        worker, number = Worker(), next(self._numbers)
        self._workers[number] = worker
        with self._asking:
            if self._listener is None:  # not before: FLARE forks, and threads are not forked
                self._listener = threading.Thread(target=self._listen, name="zygote", daemon=True)
                self._listener.start()
            _tell(self._socket, number=number, argv=list(argv[2:]), env=dict(env))
        worker.started()
        return worker

    def _listen(self) -> None:
        with self._socket.makefile("r", encoding="utf-8") as answers:
            for line in answers:
                told = json.loads(line)
                self._workers[told["number"]].note(told.get("pid"), told.get("code"))
        for worker in self._workers.values():
            worker.note(None, 1)


class Worker:
    """A process that is no child of this one, with as much of `subprocess.Popen` as FLARE uses."""

    def __init__(self) -> None:
        """It is not there yet."""
        self.pid = 0
        self.returncode: int | None = None
        self._there, self._ended = threading.Event(), threading.Event()

    def note(self, pid: int | None, code: int | None) -> None:
        """What the zygote says of it."""
        if pid is not None:
            self.pid = pid
        if code is not None and self.returncode is None:
            self.returncode = code
            self._ended.set()
        self._there.set()

    def started(self) -> None:
        """Wait until it is there.

        Raises:
            OSError: it does not come.
        """
        if not self._there.wait(PATIENCE) or not self.pid:
            raise OSError("no worker could be started")

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        """Ask it to end."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.pid and self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _fork(work: Callable[[], int], ours: socket.socket) -> int:
    """A child that does ``work`` and ends; its process id."""
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
    """A worker, as if Python had been started with these words."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    for folder in environment.get("PYTHONPATH", "").split(os.pathsep):
        if folder and folder not in sys.path:
            sys.path.append(folder)
    module, *words = argv
    if cuda_is_spoilt():
        os.execve(sys.executable, [sys.executable, "-m", module, *words], dict(environment))
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def cuda_is_spoilt() -> bool:
    """Whether this process is a fork of one that had used CUDA. It imports nothing."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda._is_in_bad_fork())


def apart(work: Callable[[], Any]) -> Any:
    """What ``work`` gives, as JSON can hold it, from a child: nothing that it does stays in this process.

    None if it fails; what it raises is printed.
    """
    ours, theirs = socket.socketpair()
    pid = _fork(lambda: _answer(work, theirs), ours)
    theirs.close()
    with ours, ours.makefile("r", encoding="utf-8") as answer:
        told = answer.read()
    os.waitpid(pid, 0)
    return json.loads(told) if told else None


def _answer(work: Callable[[], Any], to: socket.socket) -> int:
    to.sendall(json.dumps(work()).encode())
    return 0


def _tell(to: socket.socket, **said: Any) -> None:
    with suppress(BrokenPipeError):
        to.sendall((json.dumps(said) + "\n").encode())
