"""What comes in from another party is bounded while it comes in.

NVFlare 2.9: a streamed message may have 4 GB, or any size if it does not declare one; the declared size is allocated
when its first bytes are there. A party may open any number of streams, each of which takes two or three threads of a
process until it is complete, and pieces that wait for a missing first one are kept for ever.
Cost: one site fills the memory of the server's process, or stops it for all others with 200 streams of ten bytes.
Instead: a message that declares or brings more than `allow` permits is refused. Where a party has more than `MOST_OPEN`
incomplete streams, or more bytes in them than two of the largest messages, its most silent ones are closed, and so is
any stream that brings nothing for `SILENCE`. A slow one is not: only silence counts. A process that ends waits for
none.
Fixed in NVFlare when: limits on size, number and silence of incoming streams are settings that hold for each sender.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from nvflare.apis.fl_constant import ServerCommandNames

from fedshift.flare.patches.message_exits import report
from fedshift.flare.patches.patch import Patch, find

log = logging.getLogger("fedshift")

USUAL = 16 * 1024 * 1024
"""Bytes of a message that is no task and no answer, in a job's process."""
LARGEST = 256 * 1024 * 1024
"""Bytes of any message, in a party's process that runs no job."""
MOST_OPEN = 8
"""Streams of one party that may be open, which means incomplete. NVFlare has 64 threads for them."""
MOST_KEPT = 1000
"""Streams of one party that may be remembered after their end; for each NVFlare keeps a thread."""
SILENCE = 300.0
"""Seconds without a piece. NVFlare waits as long where somebody reads a stream."""
LOG_EVERY = 10.0
"""Seconds between two lines in the log about the same party."""
LOOK = 5.0
"""Seconds between looks for silent streams."""

RECEIVER = "nvflare.fuel.f3.streaming.byte_receiver"
STREAMER = "nvflare.fuel.f3.streaming.byte_streamer:ByteStreamer"
BLOB = "nvflare.fuel.f3.streaming.blob_streamer:BlobHandler"
PATCH = Patch(
    name="incoming_streams",
    without="one site can fill the memory of the others' processes or stop them",
    replaces={
        f"{RECEIVER}:RxTask.__init__": "3d624d1454bb",
        f"{RECEIVER}:RxTask.find_or_create_task": "630d89ec0626",
        f"{RECEIVER}:RxTask.process_chunk": "bbb2d9e78e22",
        f"{RECEIVER}:RxTask._handle_incoming_data": "856f17c67f08",
        f"{RECEIVER}:RxTask.stop": "0fc4b930a93a",
        f"{RECEIVER}:ByteReceiver._data_handler": "01c85c391150",
        f"{RECEIVER}:ByteReceiver.reject": "3941c9337323",
        f"{STREAMER}.shutdown": "a2d19341eebb",
        "nvflare.fuel.f3.streaming.shutdown:shutdown_f3_streaming": "b1129950a0e8",
        f"{BLOB}.handle_blob_cb": "340573eb8006",
    },
)

Limit = Callable[[str, str], int]
"""The bytes that a message on a channel with a topic may have."""


_limit: Limit | None = None
_ending = False


def allow(limit: Limit | None) -> None:
    """From now on, messages to this process may have so many bytes; before, they have NVFlare's limits."""
    global _limit
    _limit = limit


def allow_without_job() -> None:
    """For a party's process that runs no job."""
    allow(lambda channel, topic: LARGEST)


def apply() -> None:
    """Replace ``RxTask.find_or_create_task``, through which every piece of every stream goes."""
    task_class, receiver, blob = find(f"{RECEIVER}:RxTask"), find(f"{RECEIVER}:ByteReceiver"), find(BLOB)
    keys = _Keys()
    stream_error = find("nvflare.fuel.f3.streaming.stream_types:StreamError")
    original, original_blob = task_class.find_or_create_task, blob.handle_blob_cb
    streamer = find(STREAMER)
    original_shutdown = streamer.shutdown
    streams = _Streams(task_class, stream_error)

    def find_or_create(message: Any, cell: Any) -> Any:
        streams.close_silent()
        piece = keys.read(message)
        if piece is None:
            log.debug("a piece of a stream without valid headers was dropped")
            return None
        if piece.gives_up:
            return original(message, cell)
        with streams.lock:
            task = task_class.rx_task_map.get((piece.origin, piece.stream))
            if _ending and task is None:
                return None
            fault, crowding, found = streams.fault(piece, task), [], None
            if fault is None:
                crowding = streams.crowding(piece) if task is None else []
                found = original(message, cell)
            if found is not None:
                found.fedshift_seen = time.monotonic()
        for other in crowding:  # outside the lock, because their sender is told
            other.stop(stream_error(f"{other} is closed: it is incomplete, and so are too many others of its sender"))
        if fault is None:
            return found
        if task is not None:
            task.stop(stream_error(fault))
        else:
            receiver.reject(SimpleNamespace(cell=cell), message, stream_error(fault))
        streams.tell(piece, fault)
        return None

    def handle_blob(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _limit is not None:
            self.max_blob_size = 0  # ours holds from the first piece on, and may be larger
        return original_blob(self, *args, **kwargs)

    def shutdown() -> None:
        global _ending
        with streams.lock:
            _ending = True
        streams.close_all()
        original_shutdown()

    task_class.find_or_create_task = staticmethod(find_or_create)
    streamer.shutdown = staticmethod(shutdown)
    blob.handle_blob_cb = handle_blob


class _Piece(SimpleNamespace):
    """A piece's headers, which have the right types."""

    origin: str
    stream: int
    channel: str
    topic: str
    declared: int
    length: int
    gives_up: bool


class _Keys:
    """Reads the headers of a piece."""

    def __init__(self) -> None:
        self._key = find("nvflare.fuel.f3.streaming.stream_const:StreamHeaderKey")
        self._origin = find("nvflare.fuel.f3.cellnet.defs:MessageHeaderKey.ORIGIN")

    def read(self, message: Any) -> _Piece | None:
        """None if a header has not the type that NVFlare gives it."""
        key, get = self._key, message.get_header
        origin, stream = get(self._origin), get(key.STREAM_ID)
        gives_up = bool(get(key.ERROR_MSG))  # a sender that gives up does not say of what
        channel, topic = ("", "") if gives_up else (get(key.CHANNEL), get(key.TOPIC))
        declared, number = get(key.SIZE, 0), get(key.SEQUENCE, 0)
        if not all(isinstance(text, str) for text in (origin, channel, topic)):
            return None
        if not all(type(value) is int and value >= 0 for value in (stream, declared, number)):
            return None
        return _Piece(
            origin=origin,
            stream=stream,
            channel=channel,
            topic=topic,
            declared=declared,
            length=len(message.payload or b""),
            gives_up=gives_up,
        )


class _Streams:
    """The streams that come in to this process; NVFlare has one table of them."""

    def __init__(self, task_class: Any, stream_error: Any) -> None:
        self.lock = threading.RLock()
        self._class, self._error = task_class, stream_error
        self._looked = time.monotonic()
        self._logged: dict[str, float] = {}

    def fault(self, piece: _Piece, task: Any) -> str | None:
        """Why a piece cannot be taken, or None. ``task`` is its stream's, if there is one."""
        if _limit is None:
            return None
        allowed = _limit(piece.channel, piece.topic)
        came = (0 if task is None else _came(task)) + piece.length
        if piece.declared > allowed:
            return f"declares {piece.declared} bytes, allowed are {allowed}"
        if came > allowed:
            return f"has brought {came} bytes, allowed are {allowed}"
        return None

    def tell(self, piece: _Piece, fault: str) -> None:
        """Report the sender of an answer that is too large, and log what is refused, now and then for each party."""
        if piece.topic == ServerCommandNames.SUBMIT_UPDATE:
            report(piece.origin, fault)
        party, now = _party(piece.origin), time.monotonic()
        if now - self._logged.get(party, -math.inf) > LOG_EVERY:
            self._logged[party] = now
            log.warning("a message of %a for %a is refused: it %s", piece.origin[:80], piece.topic[:80], fault)

    def crowding(self, piece: _Piece) -> list[Any]:
        """The streams to close before another of the same party begins; forgets the oldest that have ended."""
        party = _party(piece.origin)
        own = [other for (origin, _), other in list(self._class.rx_task_map.items()) if _party(origin) == party]
        ended = [other for other in own if _has_ended(other)]
        for other in ended[: max(len(ended) - MOST_KEPT, 0)]:
            other._remove_task()
        by_age = sorted((other for other in own if not _has_ended(other)), key=_seen)
        held = [max(other.size, _came(other)) for other in by_age]
        room = math.inf
        if _limit is not None:  # a small message must not close a large one that comes in beside it
            largest = max(_limit(one.channel, one.topic) for one in (piece, *by_age))
            room = 2 * max(largest, USUAL) - piece.declared
        close = 0
        while close < len(held) and (len(held) - close >= MOST_OPEN or sum(held[close:]) > room):
            close += 1
        return by_age[:close]

    def close_all(self) -> None:
        """Close all that are incomplete: the process ends, and NVFlare would wait for each."""
        for task in list(self._class.rx_task_map.values()):
            if not _has_ended(task):
                task.stop(self._error(f"{task} is closed: this process ends"), notify=False)

    def close_silent(self) -> None:
        """Close streams that have brought nothing for a while."""
        now = time.monotonic()
        if now - self._looked < LOOK:
            return
        self._looked = now
        for task in list(self._class.rx_task_map.values()):
            if now - _seen(task) > SILENCE and not _has_ended(task):
                task.stop(self._error(f"{task} brought nothing for {SILENCE:g} s"))


def _party(origin: str) -> str:
    """The site or server of a cell's full name, ``HK.job`` for instance."""
    return origin.partition(".")[0]


def _has_ended(task: Any) -> bool:
    return bool(task.completed or task.failed)


def _seen(task: Any) -> float:
    """When a stream's latest piece came. One that is just being made has brought it now."""
    return float(getattr(task, "fedshift_seen", math.inf))


def _came(task: Any) -> int:
    """Bytes that a stream has brought, with those that wait for a missing piece."""
    with task.lock:
        return int(task.received_offset) + sum(len(piece or b"") for _, piece in task.out_seq_chunks.values())
