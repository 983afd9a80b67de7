"""What protects one job in one process, as one object.

A server's workflow runs inside ``with protected_server(...) as protection``; a site's executor has a `SiteProtection`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import Task
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.defs import CellChannel

from flare_armour import patches
from flare_armour.disabled_sites import DISABLED, Disabling
from flare_armour.patches import messages
from flare_armour.patches.incoming_streams import USUAL, allow
from flare_armour.patches.server_memory import unmap_large_blocks
from flare_armour.patches.task_requests import TaskRequests
from flare_armour.pieces.array_files import NotInFileError
from flare_armour.pieces.server_end import ServerEnd
from flare_armour.pieces.shared_disk import SharedDisk
from flare_armour.pieces.site_end import GivenUpError, SiteEnd, ask_server

log = logging.getLogger("flare_armour")

TASK = f"{CellChannel.SERVER_COMMAND}:{ServerCommandNames.GET_TASK}"
"""Topic of the message that brings a task: the reply to the question for one."""


def allow_usual() -> None:
    """Messages to this process may have `USUAL` bytes: it sends and receives no arrays, or its job is not read yet."""
    allow(lambda channel, topic: USUAL)


@dataclass
class ServerProtection:
    """Of a job's process at the server; there are no ``pieces`` before the job has begun."""

    pieces: ServerEnd | SharedDisk | None = None
    requests: TaskRequests = field(default_factory=TaskRequests)

    @staticmethod
    def disabled() -> Mapping[str, Disabling]:
        """The sites that are disabled now, with who has done it."""
        return DISABLED.all()

    def begin_round(self, task: Task, clients: Collection[str], *, place: str) -> None:
        """Before a task is sent to these clients: ``place`` is as ``round 3``, for the log."""
        if self.pieces is not None:
            self.pieces.open(task.data, clients, place=place)

    def end_round(self) -> None:
        """What has come of answers, and the task, are deleted."""
        if self.pieces is not None:
            self.pieces.close()

    def moved(self, *, since: float = 0.0) -> dict[str, float]:
        """Clients → seconds after ``since`` when their latest piece moved, of those that have any in the open round."""
        return {} if self.pieces is None else self.pieces.moved(since=since)

    def restore(self, client: object, answer: Shareable) -> None:
        """Put back the arrays of an answer that came in pieces. Without them its reader will refuse it."""
        if self.pieces is None or not isinstance(client, Client):
            return
        try:
            self.pieces.restore(client.name, answer)
        except (NotInFileError, OSError) as fault:
            log.warning("the answer of site %s cannot be used: %s", client.name, fault)


@contextmanager
def protected_server(
    fl_ctx: FLContext,
    folder: Path,
    *,
    clients: int,
    largest_answer: int,
    simulated: bool,
    unusable: Callable[[str, str], None],
    on_transfer: Callable[[], None] = lambda: None,
) -> Iterator[ServerProtection]:
    """A job's process at the server, until the block ends.

    Args:
        fl_ctx: FLARE's.
        folder: the job's.
        clients: how many take part.
        largest_answer: bytes that an answer may have.
        simulated: FLARE's simulator has no other parties.
        unusable: called with who has sent an answer that cannot be used, and why.
        on_transfer: called after a line about a transfer was logged.

    Raises:
        ArmourError: the job must not run here.
    """
    protection = ServerProtection()
    if not simulated:
        patches.require_protection()
    protection.requests.attach(fl_ctx, clients=clients)
    messages.listen(unusable)
    unmap_large_blocks()
    allow(lambda channel, topic: largest_answer if topic == ServerCommandNames.SUBMIT_UPDATE else USUAL)
    if simulated:
        protection.pieces = SharedDisk(folder)
    else:
        server_end = ServerEnd(folder, largest=largest_answer, on_line=on_transfer)
        server_end.register(fl_ctx.get_engine().get_cell())
        protection.pieces = server_end
        DISABLED.use(Path(fl_ctx.get_workspace().get_root_dir()))
    try:
        yield protection
    finally:
        protection.requests.close()
        protection.end_round()


class SiteProtection:
    """Of a job's process at a site.

    Attributes:
        gave_up: whether the task that has come was not fetched to its end, so that it cannot be done.
    """

    def __init__(self, pieces: SiteEnd | SharedDisk | None = None) -> None:
        """Without ``pieces``, tasks and answers come and go in one."""
        self._pieces, self.gave_up = pieces, False

    @classmethod
    def begin(cls, fl_ctx: FLContext, *, clients: int, largest_task: int) -> SiteProtection:
        """For a provisioned site, when its process of the job starts. ``largest_task``: bytes that a task may have."""
        allow(lambda channel, topic: largest_task if topic == TASK else USUAL)
        abort = fl_ctx.get_run_abort_signal()
        pieces = SiteEnd(
            _folder(fl_ctx),
            ask_server(fl_ctx.get_engine().get_cell(), fl_ctx.get_job_id(), abort),
            clients=clients,
            largest=largest_task,
            stopped=lambda: bool(abort.triggered),
        )
        return cls(pieces)

    @classmethod
    def simulated(cls, fl_ctx: FLContext) -> SiteProtection:
        """For a site in FLARE's simulator, where nobody else is."""
        return cls(SharedDisk(_folder(fl_ctx)))

    def fetch(self, task: Shareable, what: str) -> None:
        """Fetch the arrays of a task that has left them at the server, before FLARE's filters see it."""
        self.gave_up = False
        if self._pieces is None:
            return
        try:
            self._pieces.fetch(task, what)
        except GivenUpError as reason:
            log.info("%s is not fetched to its end: %s", what, reason)
            self.gave_up = True
        except (NotInFileError, OSError) as fault:
            log.error("the task cannot be used: %s", fault)  # and is refused by its reader

    def send(self, answer: Shareable, what: str) -> None:
        """Send the arrays of a large answer ahead of it, after FLARE's filters have seen it."""
        if self._pieces is None:
            return
        try:
            self._pieces.send(answer, what)
        except GivenUpError as reason:
            # FLARE then asks the server, which says that it no longer waits for it.
            log.info("%s is not sent to its end: %s", what, reason)

    def end(self) -> None:
        if self._pieces is not None:
            self._pieces.end()


def _folder(fl_ctx: FLContext) -> Path:
    return Path(fl_ctx.get_workspace().get_run_dir(fl_ctx.get_job_id()))
