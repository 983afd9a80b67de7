"""The server's end: it takes the pieces of sites' answers, and hands out those of the task."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply

from flare_armour.patches.server_memory import collect_after_round
from flare_armour.pieces.array_files import FOLDER, TASK, FileOf, NotInFileError, file_of, put_back, take_out
from flare_armour.pieces.held_file import HeldFile, WrongDigestError
from flare_armour.pieces.transfer_log import TransferLog
from flare_armour.pieces.wire import CHANNEL, FETCH, SEND, Ask, Reply

log = logging.getLogger("flare_armour")

COLLECT = 64 * 1024 * 1024
"""Bytes of pieces after which the reference cycles that FLARE's messages form are collected."""


@dataclass
class _Transfer:
    """What one client has sent and fetched in the open round."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    held: HeldFile | None = None
    fetched: int = 0
    incoming: TransferLog | None = None
    outgoing: TransferLog | None = None
    warned: bool = False

    def warn(self, text: str, *values: object) -> None:
        """Log a fault, once a round: it may be the client's wish that there are many."""
        if not self.warned:
            self.warned = True
            log.warning(text, *values)


@dataclass
class _Round:
    """Who may send and fetch what."""

    place: str
    task: FileOf | None
    clients: dict[str, _Transfer]
    answered: set[str] = field(default_factory=set)


class ServerEnd:
    """The pieces of one job. Only clients that are asked in the open round are answered, until they have answered."""

    def __init__(self, folder: Path, *, largest: int, on_line: Callable[[], None] = lambda: None) -> None:
        """Take over what an earlier process of the job has received.

        Args:
            folder: the job's.
            largest: bytes that an answer may have.
            on_line: called after a line about a transfer was logged.
        """
        self._folder, self._largest, self._on_line = folder / FOLDER, largest, on_line
        self._round: _Round | None = None
        self._moved: dict[str, float] = {}
        self._uncollected = 0

    def register(self, cell: Any) -> None:
        """Answer the requests that come to this process, from now on."""
        for topic in (SEND, FETCH):
            cell.register_request_cb(channel=CHANNEL, topic=topic, cb=self._handler(topic))

    def _handler(self, topic: str) -> Callable[[Any], Any]:
        def handle(message: Any) -> Any:
            # The guard has compared the origin with the certificate of the connection.
            client = FQCN.split(str(message.get_header(MessageHeaderKey.ORIGIN)))[0]
            return make_reply(ReturnCode.OK, body=self.answer(client, topic, message.payload).encode())

        return handle

    def open(self, task: Shareable, clients: Iterable[str], *, place: str) -> None:
        """A task is sent to these clients; its arrays are taken out if they are many bytes.

        Args:
            task: the message.
            clients: those that are asked.
            place: ``round 3``, for the log.
        """
        try:
            file = take_out(task, self._folder / TASK)
        except OSError as error:
            log.warning("the model of %s is sent in one, and again if a line is cut: %s", place, error)
            file = None
        self._moved = {}
        self._round = _Round(place, file, {client: _Transfer() for client in clients})

    def close(self) -> None:
        """The round is over: what has come, and the task, are deleted."""
        self._round = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def moved(self, *, since: float = 0.0) -> dict[str, float]:
        """Client → when its latest new piece came or went, in seconds after ``since``, a time of `time.monotonic`."""
        return {client: when - since for client, when in dict(self._moved).items()}

    def answer(self, client: str, topic: str, content: object) -> Reply:
        """Answer a request of a client, whose name is certain; ``content`` is what it sent."""
        ask, current = Ask.decode(content), self._round
        transfer = None if current is None else current.clients.get(client)
        if ask is None or current is None or transfer is None or client in current.answered:
            return Reply(closed=True)
        with transfer.lock:
            take = self._take if topic == SEND else self._give
            reply = take(client, current, transfer, ask)
        self._uncollected += len(ask.piece) + len(reply.piece)
        if self._uncollected > COLLECT:
            self._uncollected = 0
            collect_after_round()
        return reply

    def restore(self, client: str, answer: Shareable) -> None:
        """Put the arrays of a client's answer back, if they came in pieces. No more of them is taken then.

        Raises:
            NotInFileError: they have not come whole, or are not what the answer says.
        """
        current, file = self._round, file_of(answer)
        transfer = None if current is None else current.clients.get(client)
        if file is None or current is None or transfer is None or client in current.answered:
            return
        with transfer.lock:
            held = self._held(client, transfer, file) if file.size <= self._largest else None
            if held is None or not held.whole:
                raise NotInFileError("its arrays have not come whole")
            put_back(answer, held.path, writable=False)
            current.answered.add(client)
            held.path.unlink(missing_ok=True)

    def _take(self, client: str, current: _Round, transfer: _Transfer, ask: Ask) -> Reply:
        if ask.file.size > self._largest:
            text = "an answer of site %s is refused: it has %d bytes, allowed are %d"
            transfer.warn(text, client, ask.file.size, self._largest)
            return Reply(closed=True)
        try:
            held = self._held(client, transfer, ask.file)
            if transfer.incoming is None:
                what = f"receiving {client}'s update of {current.place}"
                transfer.incoming = TransferLog(what, ask.file.size, held.held)
            if held.add(ask.offset, ask.piece):
                self._note(client, transfer.incoming, held.held)
        except WrongDigestError as fault:
            transfer.warn("%s's update of %s has to come again: %s", client, current.place, fault)
        except OSError as error:
            if self._round is not current:
                return Reply(closed=True)  # it has just ended
            transfer.warn("a piece of %s's update cannot be kept, and is asked for again: %s", client, error)
        return Reply(held=0 if transfer.held is None else transfer.held.held)

    def _held(self, client: str, transfer: _Transfer, file: FileOf) -> HeldFile:
        if transfer.held is None or transfer.held.file != file:
            transfer.held, transfer.incoming = HeldFile(self._folder / client, file), None
        return transfer.held

    def _give(self, client: str, current: _Round, transfer: _Transfer, ask: Ask) -> Reply:
        if ask.file != current.task:
            return Reply(closed=True)
        try:
            with (self._folder / TASK).open("rb") as opened:
                opened.seek(ask.offset)
                piece = opened.read(ask.length)
        except OSError:
            return Reply(closed=True)  # the round has just ended
        if transfer.outgoing is None:
            what = f"sending the model of {current.place} to {client}"
            transfer.outgoing = TransferLog(what, ask.file.size, ask.offset)
        # Asking for a piece says that all before it has come.
        if ask.offset > transfer.fetched:
            transfer.fetched = ask.offset
            self._note(client, transfer.outgoing, ask.offset)
        return Reply(piece=piece)

    def _note(self, client: str, progress: TransferLog, held: int) -> None:
        self._moved[client] = time.monotonic()
        if progress.at(held):
            self._on_line()
