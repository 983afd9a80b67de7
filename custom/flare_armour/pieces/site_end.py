"""A site's end: it sends the pieces of its answer, and fetches those of a task."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import new_cell_message

from flare_armour.patches.server_memory import release
from flare_armour.pieces.array_files import FOLDER, NotInFileError, file_of, put_back, take_out
from flare_armour.pieces.held_file import HeldFile, WrongDigestError
from flare_armour.pieces.transfer_log import TransferLog
from flare_armour.pieces.wire import CHANNEL, FETCH, LEAST, SEND, Ask, Reply, piece_size

log = logging.getLogger("flare_armour")

SILENCE = 15.0
"""Seconds without a byte after which a piece is sent, or asked for, again."""
PAUSE = 2.0
"""Seconds before a piece is sent, or asked for, again."""
QUICK, SLOW = 1.0, 4.0
"""Seconds of a piece, below which the next one is twice as large, and above which it is half as large."""
TIMES = 3
"""How often a whole file may come, or be sent, before it is given up."""

AskServer = Callable[[str, dict[str, Any]], object]
"""Topic and request to the server's answer; None if there was none."""


class GivenUpError(Exception):
    """The server does not want the file any more, or the job has ended."""


class SiteEnd:
    """The pieces of one site in one job."""

    def __init__(
        self,
        folder: Path,
        ask: AskServer,
        *,
        clients: int,
        largest: int,
        stopped: Callable[[], bool],
        pause: float = PAUSE,
    ) -> None:
        """``folder``: the site's of the job. ``largest``: bytes that a task may have. ``stopped``: the job's end."""
        self._folder, self._ask, self._stopped, self._pause = folder / FOLDER, ask, stopped, pause
        self._most, self._size, self._largest = piece_size(clients), LEAST, largest

    def send(self, answer: Shareable, what: str) -> None:
        """Send the arrays of an answer if they are many bytes, and return when the server has all of them.

        Args:
            answer: only the places of its arrays stay in it.
            what: ``the update of round 3``, for the log.

        Raises:
            GivenUpError: the server does not want them.
        """
        path = self._folder / "answer"
        try:
            file = take_out(answer, path)
        except OSError as error:
            log.warning("%s is sent in one, and again if the line is cut: %s", what, error)
            return
        if file is None:
            return
        try:
            held = self._asked(SEND, Ask(file, 0)).held
            progress, again = TransferLog(f"sending {what}", file.size, held), 0
            with path.open("rb") as opened:
                while held < file.size:
                    opened.seek(held)
                    reply = self._asked(SEND, Ask(file, held, opened.read(self._size)))
                    again += reply.held < held
                    if again >= TIMES:
                        raise GivenUpError(f"{what} was sent {TIMES} times, and never arrived as it was sent")
                    if reply.held <= held:
                        time.sleep(self._pause)
                    held = reply.held
                    progress.at(held)
        finally:
            path.unlink(missing_ok=True)

    def fetch(self, task: Shareable, what: str) -> None:
        """Fetch the arrays of a task, if they are not in it, and put them back.

        Args:
            task: as it came.
            what: ``the model of round 3``, for the log.

        Raises:
            GivenUpError: the server does not give them.
            NotInFileError: they are not what the task says, or too large.
        """
        file = file_of(task)
        if file is None:
            return
        if file.size > self._largest:
            raise NotInFileError(f"it has {file.size} bytes, allowed are {self._largest}")
        held, progress, again = None, None, 0
        while held is None or not held.whole:
            try:
                held = held or HeldFile(self._folder / "task", file)
                progress = progress or TransferLog(f"fetching {what}", file.size, held.held)
                if held.whole:
                    break
                length = min(self._size, file.size - held.held)
                if not held.add(held.held, self._asked(FETCH, Ask(file, held.held, length=length)).piece):
                    time.sleep(self._pause)
                progress.at(held.held)
            except WrongDigestError as fault:
                again += 1
                if again >= TIMES:
                    raise GivenUpError(f"{what} came {TIMES} times, and never as it was announced") from fault
            except OSError as error:
                log.warning("%s cannot be kept, and is fetched again: make room (%s)", what, error)
                self._go_on()
                time.sleep(self._pause)
        put_back(task, held.path, writable=True)

    def end(self) -> None:
        """The job is over: nothing is left of its pieces."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _asked(self, topic: str, ask: Ask) -> Reply:
        """Ask until there is an answer.

        Raises:
            GivenUpError: the server has closed the file, or the job has ended.
        """
        while True:
            self._go_on()
            release()  # memory of the pieces before
            began = time.monotonic()
            reply = Reply.decode(self._ask(topic, ask.encode()))
            took = time.monotonic() - began
            if reply is not None and reply.closed:
                raise GivenUpError("the server does not want it any more")
            if reply is not None:
                if took < QUICK:
                    self._size = min(2 * self._size, self._most)
                elif took > SLOW:
                    self._size = max(self._size // 2, LEAST)
                return reply
            self._size = LEAST
            time.sleep(self._pause)
            if ask.piece:
                ask = Ask(ask.file, ask.offset)  # the piece may have come: ask before it is sent again

    def _go_on(self) -> None:
        if self._stopped():
            raise GivenUpError("the job has ended")


def ask_server(cell: Any, job_id: str, abort: Signal) -> AskServer:
    """Ask the server's process of a job by FLARE's cell of this process."""
    server = FQCN.join([FQCN.ROOT_SERVER, job_id])

    def ask(topic: str, content: dict[str, Any]) -> object:
        try:
            reply = cell.send_request(
                channel=CHANNEL,
                target=server,
                topic=topic,
                request=new_cell_message({}, content),
                timeout=SILENCE,
                optional=True,
                abort_signal=abort,
            )
        except Exception as error:  # whatever FLARE raises, the line may be mended
            log.debug("no answer: %s", error)
            return None
        return reply.payload if reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK else None

    return ask
