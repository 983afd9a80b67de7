"""Job processes that are started again when they are killed.

NVFlare 2.9: ends a job when the job process of one site, or its own at the server, is killed (out of memory, by hand,
by a fault in a library).
Cost: the whole run, however many sites are left.
Instead: the parent process starts the killed process again, and the rest of NVFlare does not notice. The site asks for
its task once more and continues from its last state, the server from the last round that was closed. A process that
exits by itself, or that NVFlare ends, is not started again. `SiteJobLauncher` and `ServerJobLauncher`, or subclasses,
are named in ``local/resources.json`` in place of NVFlare's launchers, which is a public setting; private is only what
they use of `ProcessHandle`.
Fixed in NVFlare when: a job whose ``min_clients`` is below its number of sites survives ``kill -9`` of one site's job
process.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobReturnCode
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher

from flare_armour.patch import Patch, require
from flare_armour.patches import clock

log = logging.getLogger("flare_armour")

LAUNCHER = "nvflare.app_common.job_launcher.process_launcher"
PATCH = Patch(
    name="job_restart",
    kind="correct",
    without="a job ends when one of its processes is killed",
    sources={f"{LAUNCHER}:ProcessHandle": "563d9f116b64"},
    calls={f"{LAUNCHER}:ProcessJobLauncher.launch_job": "self, job_meta, fl_ctx"},
)


@dataclass(frozen=True)
class Kill:
    """That a job process was killed, and has not ended by itself.

    Attributes:
        how: by whom or by what, in a few words, for the log.
        again: whether it may be started again; not if somebody meant it.
    """

    how: str
    again: bool = True


def killed_by_signal(process: Any) -> Kill | None:
    """Of a process of this machine (NVFlare's `ProcessHandle`) that has ended: the signal that it was killed with."""
    code = process.adapter.poll()
    return None if code is None or code >= 0 else Kill(_name(code))


class PersistentHandle(JobHandleSpec):
    """A job process, or the one that was started after it was killed."""

    def __init__(
        self,
        launch: Callable[[], JobHandleSpec],
        *,
        killed: Callable[[Any], Kill | None] = killed_by_signal,
        restarts: int,
        pause: float,
        dispensable: bool,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the process.

        Args:
            launch: starts it.
            killed: of what ``launch`` returns, once it has ended: that it was killed, or None.
            restarts: how often it is started again at most.
            pause: seconds before the first restart; each further one waits twice as long.
            dispensable: whether the job continues without the process after the last restart.
            ended: called when the process has ended for good.
        """
        super().__init__()
        self._launch, self._restarts, self._pause, self._dispensable = launch, restarts, pause, dispensable
        self._killed, self._given_up, self._at_end = killed, False, ended
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._process = launch()

    def terminate(self) -> None:
        """End the process for good."""
        with self._lock:
            self._ended.set()
            self._process.terminate()

    def poll(self) -> Any:
        """NVFlare's code for how the process ended, or for one that still runs."""
        return JobReturnCode.SUCCESS if self._given_up and self._dispensable else self._process.poll()

    def wait(self) -> None:
        """Wait until the process has ended and is not started again."""
        self._wait()
        try:
            self._at_end()
        except Exception:  # NVFlare has yet to close the job
            log.exception("the end of the job process could not be recorded")

    def _wait(self) -> None:
        for number in range(self._restarts + 1):
            self._process.wait()
            kill = self._killed(self._process)
            if kill is None or self._ended.is_set():
                return
            if number == self._restarts or not kill.again:
                log.error("the job process was killed %s (%s): given up", _times(number + 1), kill.how)
                self._given_up = True
                return
            pause = self._pause * 2**number
            log.warning("the job process was killed (%s): started again in %g s", kill.how, pause)
            if self._ended.wait(pause):
                return
            with self._lock:
                if self._ended.is_set():
                    return
                try:
                    self._process = self._launch()
                except Exception:  # perhaps no memory: wait for the old process again, which counts as a restart
                    log.exception("the job process could not be started again")


class _Persistent:
    """What both launchers add to NVFlare's."""

    dispensable: ClassVar[bool]

    def __init__(self, restarts: int = 3, pause: float = 2.0) -> None:
        """``restarts`` and ``pause`` (seconds) as for `PersistentHandle`.

        Raises:
            NotAsExpectedError: the kit is of before there was a guard against other parties' messages.
        """
        require("gate")
        super().__init__()
        clock.PATCH.install()  # in a parent process, which imports nothing else of ours when it starts
        self._restarts, self._first_pause = restarts, pause

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        if not PATCH.fits():
            return self.start(job_meta, fl_ctx)
        # NVFlare uses the context for other jobs later on.
        engine, arguments = fl_ctx.get_engine(), fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)
        folder = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_run_dir(job_meta[JobMetaKey.JOB_ID]))

        def launch() -> JobHandleSpec:
            with engine.new_context() as context:
                context.set_prop(FLContextKey.JOB_PROCESS_ARGS, arguments, private=True, sticky=False)
                return self.start(job_meta, context)

        return PersistentHandle(
            launch,
            killed=self.killed,
            restarts=self._restarts,
            pause=self._first_pause,
            dispensable=self.dispensable,
            ended=partial(self.ended, folder),
        )

    def start(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        """Start the process once: as NVFlare does, unless a subclass starts it elsewhere."""
        handle: JobHandleSpec = super().launch_job(job_meta, fl_ctx)  # type: ignore[misc]
        return handle

    def killed(self, process: Any) -> Kill | None:
        """Of what `start` returned, once it has ended: that it was killed, or None."""
        return killed_by_signal(process)

    @staticmethod
    def ended(folder: Path) -> None:
        """The process of the job in ``folder`` has ended for good. A process that was killed has written nothing."""


class SiteJobLauncher(_Persistent, ClientProcessJobLauncher):
    """For a site's ``local/resources.json``. A process that is given up counts as ended well, lest the job fails."""

    dispensable = True


class ServerJobLauncher(_Persistent, ServerProcessJobLauncher):
    """For the server's ``local/resources.json``."""

    dispensable = False


def _name(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
