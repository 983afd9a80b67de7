"""What comes in from another party is bounded while it comes in.

NVFlare 2.9: streamed messages have limits of size only, and none for each sender.
Cost: one site can fill the memory of the server's process, or stop it for all others.
Instead: a message that declares or brings more than `allow` permits is refused, and so is one whose headers take more
than `MOST_HEADERS` in memory. Where a party has more than `MOST_OPEN` incomplete streams, or more bytes in them, in
their headers and in messages that wait than two of the largest messages, its most silent ones are closed, and so is any
stream that brings nothing for `SILENCE`. A slow one is not: only silence counts. Messages of one party have one party's
share of the threads (`stream_shares`). Of a stream that has ended its number is kept and no more, for `MOST_KEPT` of a
party. A process that ends waits for none.
Fixed in NVFlare when: limits on size, number and silence of incoming streams are settings that hold for each sender.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.streaming import blob_streamer
from nvflare.fuel.f3.streaming.byte_receiver import ByteReceiver, RxTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamError

from flare_armour.log_limits import PERSON, REFUSALS, party_of
from flare_armour.patch import Patch
from flare_armour.patches.messages import report
from flare_armour.patches.stream_shares import WAITING, MessageShares

log = logging.getLogger("flare_armour")

USUAL = 16 * 1024 * 1024
"""Bytes of a message that is no task and no answer, in a job's process."""
LARGEST = 256 * 1024 * 1024
"""Bytes of any message, in a party's process that runs no job."""
MOST_OPEN = 8
"""Streams of one party that may be open, which means incomplete."""
MOST_KEPT = 64
"""Streams of one party that may be remembered after their end, so that a piece that comes twice begins no new one."""
MOST_HEADERS = 64 * 1024
"""Bytes that a message's headers may take in memory. NVFlare's take about 5 kB."""
SILENCE = 300.0
"""Seconds without a piece. NVFlare waits as long where somebody reads a stream."""
LOOK = 5.0
"""Seconds between looks for silent streams."""

LONGEST_ID = 200
"""Characters of a request's id that are kept. NVFlare's has 36."""
RECEIVER = "nvflare.fuel.f3.streaming.byte_receiver"
STREAMER = "nvflare.fuel.f3.streaming.byte_streamer:ByteStreamer"
BLOB = "nvflare.fuel.f3.streaming.blob_streamer:BlobHandler"
Limit = Callable[[str, str], int]
"""The bytes that a message on a channel with a topic may have."""


@dataclass
class _Process:
    limit: Limit | None = None
    ending: bool = False


PROCESS = _Process()
"""What this process allows, and whether it is about to end."""


def allow(limit: Limit | None) -> None:
    """From now on, messages to this process may have so many bytes; before, they have NVFlare's limits."""
    PROCESS.limit = limit


@dataclass(frozen=True)
class Piece:
    """The headers of a piece, which have the right types."""

    origin: str
    party: str
    stream: int
    channel: str
    topic: str
    declared: int
    length: int
    headers: int
    """Bytes that they take in memory."""
    gives_up: bool

    @classmethod
    def read(cls, message: Any) -> Piece | None:
        """None if a header has not the type that NVFlare gives it."""
        key, get = StreamHeaderKey, message.get_header
        origin, stream = get(MessageHeaderKey.ORIGIN), get(key.STREAM_ID)
        gives_up = bool(get(key.ERROR_MSG))  # a sender that gives up does not say of what
        channel, topic = ("", "") if gives_up else (get(key.CHANNEL), get(key.TOPIC))
        declared, number = get(key.SIZE, 0), get(key.SEQUENCE, 0)
        if not all(isinstance(text, str) for text in (origin, channel, topic)):
            return None
        if not all(type(value) is int and value >= 0 for value in (stream, declared, number)):
            return None
        length, headers = len(message.payload or b""), _memory(message.headers)
        party = party_of(origin, get(PERSON))
        return cls(origin, party, stream, channel, topic, declared, length, headers, gives_up)


class _Streams:
    """The streams that come in to this process; NVFlare has one table of them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._unhandled = set[Any]()
        """Streams that have not failed and whose messages have not been handled."""
        self._looked = time.monotonic()

    def fault(self, piece: Piece, task: Any) -> str | None:
        """Why a piece cannot be taken, or None. ``task`` is its stream's, if there is one."""
        if PROCESS.limit is None:
            return None
        allowed = PROCESS.limit(piece.channel, piece.topic)
        came = (0 if task is None else _came(task)) + piece.length
        if piece.headers > MOST_HEADERS:
            return f"has headers of {piece.headers} bytes, allowed are {MOST_HEADERS}"
        if piece.declared > allowed:
            return f"declares {piece.declared} bytes, allowed are {allowed}"
        if came > allowed:
            return f"has brought {came} bytes, allowed are {allowed}"
        return None

    def note(self, piece: Piece, task: Any, *, is_new: bool) -> None:
        """Note that a piece is taken."""
        task.armour_seen, task.armour_party = time.monotonic(), piece.party
        task.armour_headers = max(getattr(task, "armour_headers", 0), piece.headers)
        if is_new:
            self._unhandled.add(task)

    def handled(self, task: Any) -> None:
        """Note that a stream's message has been handled, or, if it is an answer, given to who waits for the rest."""
        task.armour_handled = True
        self.forget(task)

    def forget(self, task: Any) -> None:
        """Keep of a stream that has ended its number and no more, but its message until that is handled."""
        with self.lock:
            is_handled = getattr(task, "armour_handled", False)
            if not task.failed and not (task.completed and is_handled):
                return
            self._unhandled.discard(task)
            task.headers = _of_ended(task.headers)
            if is_handled:
                task.stream_future = None
            elif task.stream_future is not None:
                task.stream_future.headers = task.headers

    def refuse(self, piece: Piece, fault: str) -> None:
        """Report the sender of an answer that cannot be taken, and log it, now and then for each party."""
        if piece.topic == ServerCommandNames.SUBMIT_UPDATE:
            report(piece.origin, fault)
        REFUSALS.add(piece.party, "streams", f"has sent a message for {piece.topic[:80]!a} that is refused: it {fault}")

    def crowding(self, piece: Piece, task: Any) -> tuple[list[Any], str | None]:
        """The streams to close before a piece is taken, or why it cannot be; forgets the oldest that have ended."""
        if task is not None and _came(task) + piece.length <= task.size:
            return [], None  # it has been counted when the stream began
        theirs = [other for other in list(RxTask.rx_task_map.values()) if _party(other) == piece.party]
        ended = [other for other in theirs if _has_ended(other)]
        for other in ended[: max(len(ended) - MOST_KEPT, 0)]:
            other._remove_task()
        by_age = sorted((other for other in theirs if not _has_ended(other) and other is not task), key=_latest)
        held = [_held(other) for other in by_age]
        free = math.inf
        if PROCESS.limit is not None:  # a small message must not close a large one that comes in beside it
            largest = max(PROCESS.limit(other.channel, other.topic) for other in (piece, *by_age))
            came = 0 if task is None else _held(task)
            waiting = sum(_held(each) for each in self._unhandled if each.completed and _party(each) == piece.party)
            free = 2 * max(largest, USUAL) - max(piece.declared, came + piece.length) - piece.headers - waiting
        if free < 0:
            return [], "comes while as much of its sender waits to be handled as may"
        close = 0
        while close < len(held) and (len(held) - close >= MOST_OPEN or sum(held[close:]) > free):
            close += 1
        return by_age[:close], None

    def close_all(self) -> None:
        """Close all that are incomplete: the process ends, and NVFlare would wait for each."""
        for task in list(RxTask.rx_task_map.values()):
            if not _has_ended(task):
                task.stop(StreamError(f"{task} is closed: this process ends"), notify=False)

    def close_silent(self) -> None:
        """Close streams that have brought nothing for a while."""
        now = time.monotonic()
        if now - self._looked < LOOK:
            return
        self._looked = now
        for task in list(RxTask.rx_task_map.values()):
            if now - _latest(task) > SILENCE and not _has_ended(task):
                task.stop(StreamError(f"{task} brought nothing for {SILENCE:g} s"))


STREAMS = _Streams()
PATCH = Patch(
    name="incoming_streams",
    kind="protects",
    without="one site can fill the memory of the others' processes or stop them",
    also=lambda: vars(blob_streamer).update(callback_thread_pool=SHARES),
    sources={
        f"{RECEIVER}:RxTask.__init__": "3d624d1454bb",
        f"{RECEIVER}:RxTask.process_chunk": "bbb2d9e78e22",
        f"{RECEIVER}:RxTask._handle_incoming_data": "856f17c67f08",
        f"{RECEIVER}:RxTask._send_error": "c69d1589fe73",
        f"{RECEIVER}:ByteReceiver._data_handler": "01c85c391150",
        f"{RECEIVER}:ByteReceiver.reject": "3941c9337323",
        "nvflare.fuel.f3.streaming.shutdown:shutdown_f3_streaming": "b1129950a0e8",
        f"{BLOB}._fail_and_notify": "72487f277d28",
    },
)


@PATCH.replaces(f"{RECEIVER}:RxTask.find_or_create_task", "630d89ec0626")
def _take_piece(original: Callable[..., Any], message: Any, cell: Any) -> Any:
    """Every piece of every stream goes through here."""
    STREAMS.close_silent()
    piece = Piece.read(message)
    if piece is None:
        log.debug("a piece of a stream without valid headers was dropped")
        return None
    if piece.gives_up:
        return original(message, cell)
    with STREAMS.lock:
        task = RxTask.rx_task_map.get((piece.origin, piece.stream))
        if PROCESS.ending and task is None:
            return None
        fault, task_after = STREAMS.fault(piece, task), None
        crowding: list[Any] = []
        if fault is None:
            crowding, fault = STREAMS.crowding(piece, task)
        if fault is None:
            task_after = original(message, cell)
        if task_after is not None:
            STREAMS.note(piece, task_after, is_new=task is None)
    for other in crowding:  # outside the lock, because their sender hears of it
        other.stop(StreamError(f"{other} is closed: it is incomplete, and so are too many others of its sender"))
    if fault is None:
        return task_after
    if task is not None:
        task.stop(StreamError(fault))
    else:
        ByteReceiver.reject(SimpleNamespace(cell=cell), message, StreamError(fault))
    STREAMS.refuse(piece, fault)
    return None


@PATCH.replaces(f"{BLOB}.handle_blob_cb", "340573eb8006")
def _take_message(original: Callable[..., Any], self: Any, future: Any, stream: Any, *args: Any, **kwargs: Any) -> Any:
    if PROCESS.limit is not None:
        self.max_blob_size = 0  # ours holds from the first piece on, and may be larger
    if not SHARES.takes(stream.task):
        stream.task.stop(StreamError("too many messages of its sender wait to be handled: try again"))
        what = f"has more than {WAITING} messages that wait: further ones are refused"
        REFUSALS.add(_party(stream.task), "waiting", what)
        return 0
    try:
        return original(self, future, stream, *args, **kwargs)
    finally:
        SHARES.give_back(stream.task)


@PATCH.replaces(f"{RECEIVER}:RxTask.stop", "0fc4b930a93a")
def _stop(original: Callable[..., None], self: Any, error: Any = None, notify: bool = True) -> None:
    original(self, error, notify)
    if self.failed:
        with self.lock:
            self.chunks.clear()
            self.out_seq_chunks.clear()
    STREAMS.forget(self)


@PATCH.replaces(f"{STREAMER}.shutdown", "a2d19341eebb")
def _shut_down(original: Callable[[], None]) -> None:
    with STREAMS.lock:
        PROCESS.ending = True
    STREAMS.close_all()
    original()


def _of_ended(headers: dict[str, Any] | None) -> dict[str, Any]:
    """Of an ended stream's headers what an error to its sender needs, where it is as NVFlare writes it."""
    optional, request = ((headers or {}).get(key) for key in (StreamHeaderKey.OPTIONAL, StreamHeaderKey.STREAM_REQ_ID))
    kept: dict[str, Any] = {StreamHeaderKey.OPTIONAL: optional is True}
    if isinstance(request, str) and len(request) <= LONGEST_ID:
        kept[StreamHeaderKey.STREAM_REQ_ID] = request
    return kept


def _party(task: Any) -> str:
    return str(getattr(task, "armour_party", None) or party_of(task.origin))


def _has_ended(task: Any) -> bool:
    return bool(task.completed or task.failed)


def _latest(task: Any) -> float:
    """When a stream's latest piece came. One that is just being made has brought it now."""
    return float(getattr(task, "armour_seen", math.inf))


def _came(task: Any) -> int:
    """Bytes that a stream has brought, with those that wait for a missing piece."""
    with task.lock:
        return int(task.received_offset) + sum(len(piece or b"") for _, piece in task.out_seq_chunks.values())


def _held(task: Any) -> int:
    """Bytes of memory or disk that are put by for a stream."""
    return max(int(task.size), _came(task)) + int(getattr(task, "armour_headers", 0))


def _memory(headers: Any) -> int:
    """Bytes that decoded headers take; with the containers in them."""
    size, open_ = 0, [headers]
    while open_:
        value = open_.pop()
        size += sys.getsizeof(value)
        if isinstance(value, dict):
            open_.extend(value)
            open_.extend(value.values())
        elif isinstance(value, list | tuple):
            open_.extend(value)
    return size


SHARES: MessageShares = MessageShares(blob_streamer.callback_thread_pool, _party, STREAMS.handled)
