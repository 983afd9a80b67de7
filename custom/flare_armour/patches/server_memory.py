"""A server's memory grows neither with the number of its sites nor with the rounds.

NVFlare 2.9: copies values below 10 MB, one after another, into one growing block before a message is sent, and again
when the block is read; copies a broadcast's data before the first client gets it; packs them anew for each client; is
up to 64 MB ahead of what a receiver has acknowledged, for every client and in each direction; collects the pieces of an
answer in memory, and unpacks every answer in a thread of its own as soon as its first bytes arrive. Its tasks, messages
and answers refer to each other in cycles, so that a model that was sent stays until Python's garbage collector next
looks at old objects.
Cost: several models for each site at the server, and some at each site; more with every round.
Instead: an array of `APART` bytes or more is a piece of its own in a message (`message_pieces`). The data of a
broadcast themselves stand where NVFlare looks for its copy (`broadcast_copy`), and are packed once for all clients
(`packed_once`). What is sent ahead is shared among the clients: all of a job's have a quarter of the message, or 8 MB
(`send_window`). The pieces of an answer of `LARGE` bytes or more are written to an unnamed file in the job's folder,
and mapped from it when the answer is unpacked (`spooled_answers`), which is when all its bytes are there and the answer
before it has been handled (`unpack_in_turn`). A site collects cycles every 20 seconds, the server after each round, and
glibc returns what is free (`memory_release`).
Fixed in NVFlare when: its server's memory is the same for 4 and for 16 sites (``python -m
benchmarks.performance.server_memory``).
"""

from __future__ import annotations

import concurrent.futures
import copy
import ctypes
import gc
import logging
import mmap
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.controller_spec import Task
from nvflare.apis.dxo import DXO
from nvflare.apis.fl_constant import ServerCommandNames

from flare_armour.patch import Patch, find

log = logging.getLogger("flare_armour")

APART = 64 * 1024
"""Bytes from which an array is a piece of its own in a message."""
AHEAD = 8 * 1024 * 1024
"""Bytes on their way to all clients together, or from them; or a quarter of a message if that is more."""
LEAST = 64 * 1024
"""Bytes that are sent to a client at a time, at least."""
MOST_CHUNKS = 1000
"""Chunks in a window. Of more than 1023, every receiver warns that they might come out of sequence."""
LARGE = 8 * 1024 * 1024
"""Bytes from which an answer waits on disk."""
PIECE = 4 * 1024 * 1024
"""Bytes that are mapped at a time. Linux allows a process about 65,000 mappings, for all answers together."""
BLOCK = 2 * 1024 * 1024
"""Bytes from which a block of memory is mapped by itself, and unmapped when it is freed. Mapping takes longer."""
M_MMAP_THRESHOLD = -3
"""glibc's number for that limit, as `mallopt` takes it."""
EVERY = 20.0
"""Seconds between two calls of `release` that do anything: each takes some milliseconds."""

DATUM = "nvflare.fuel.utils.fobs.datum:DatumManager.__init__"
ARRAYS = "nvflare.app_common.decomposers.numpy_decomposers:NumpyArrayDecomposer"
SENDING = "nvflare.fuel.f3.streaming.byte_streamer:TxTask"
BLOB = "nvflare.fuel.f3.streaming.blob_streamer"
LIST = "nvflare.fuel.utils.buffer_list"
ADAPTER = "nvflare.fuel.f3.cellnet.cell:Adapter"
TOPIC = "nvflare.fuel.f3.streaming.stream_const:StreamHeaderKey.TOPIC"


class _PackedOnce:
    """An array, and its packed bytes until they have been asked for so many times."""

    def __init__(self, array: np.ndarray, times: int) -> None:
        self.array, self._times = array, times
        self._lock = threading.Lock()
        self._bytes: bytes | None = None

    def packed(self, pack: Any) -> bytes:
        with self._lock:
            packed: bytes = pack() if self._bytes is None else self._bytes
            self._times -= 1
            self._bytes = packed if self._times > 0 else None
            return packed


@dataclass
class _Process:
    clients: int | None = None
    """Among whom what is sent ahead is shared; None: as NVFlare has it."""
    spool: Path | None = None
    """Where large answers wait; None: in memory."""
    released: float | None = None
    """When `release` last did something."""
    broadcast: dict[int, _PackedOnce] = field(default_factory=dict)
    """Arrays of the open broadcast, by their id."""
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Of the answer that is being unpacked."""


_PROCESS = _Process()


# --- what is sent ---------------------------------------------------------------------------------


def keep_apart() -> None:
    """Lower the limit from which a value is a piece of its own."""
    find("nvflare.fuel.utils.fobs:datum").TEN_MEGA = APART


def share_broadcast(task: Task, *, clients: int) -> None:
    """Make so many clients get the task's data themselves, and pack its arrays once. Nobody may change them."""
    if BROADCAST_COPY.fits():
        attributes: Any = task
        attributes._broadcast_data = task.data
    _PROCESS.broadcast.clear()
    if PACKED_ONCE.fits():
        _PROCESS.broadcast.update({id(array): _PackedOnce(array, clients) for array in _arrays(task.data)})


def _arrays(part: Any) -> Iterator[np.ndarray]:
    if isinstance(part, np.ndarray):
        yield part
    elif isinstance(part, DXO):
        yield from _arrays(part.data)
    elif isinstance(part, dict):
        for value in part.values():
            yield from _arrays(value)


def pack_once() -> None:
    """Keep what an array of the open broadcast is packed to."""
    decomposer = find(ARRAYS)
    original = decomposer.native_decompose

    def decompose(self: Any, target: np.ndarray, manager: Any = None) -> bytes:
        pack = partial(original, self, target, manager)
        shared = _PROCESS.broadcast.get(id(target))
        return pack() if shared is None else shared.packed(pack)

    decomposer.native_decompose = decompose


def share_window(*, clients: int) -> None:
    """From now on this process sends no more ahead than one client's share among so many."""
    _PROCESS.clients = clients


def limit_window() -> None:
    """Replace ``TxTask.__init__``. Nothing changes before `share_window` is called."""
    sending = find(SENDING)
    original = sending.__init__

    def init(
        self: Any,
        cell: Any,
        chunk_size: int,
        channel: str,
        topic: str,
        target: str,
        headers: dict[str, Any],
        stream: Any,
        *others: Any,
    ) -> None:
        if _PROCESS.clients is None:
            original(self, cell, chunk_size, channel, topic, target, headers, stream, *others)
            return
        window = max(max(AHEAD, stream.get_size() // 4) // _PROCESS.clients, 2 * LEAST)
        # NVFlare allocates a buffer of the chunk's size.
        chunk = min(chunk_size, window // 2, max(stream.get_size(), 1))
        window = min(window, MOST_CHUNKS * chunk)
        original(self, cell, chunk, channel, topic, target, headers, stream, *others)
        if self.window_size > window:
            self.window_size = window
            self.ack_interval = min(self.ack_interval, max(window // 2, 1))

    sending.__init__ = init


# --- what is received -----------------------------------------------------------------------------


def spool_to(folder: Path) -> None:
    """From now on, large answers to this process wait in files in ``folder``."""
    _PROCESS.spool = folder


def spool_answers() -> None:
    """Replace ``BlobTask.__init__``. Nothing changes before `spool_to` is called."""
    blob, topic, spool = find(f"{BLOB}:BlobTask"), find(TOPIC), spool_class()
    original = blob.__init__

    def init(self: Any, future: Any, stream: Any, *args: Any, **kwargs: Any) -> None:
        original(self, future, stream, *args, **kwargs)
        submits = (stream.headers or {}).get(topic) == ServerCommandNames.SUBMIT_UPDATE
        if _PROCESS.spool is None or not self.preserve_chunks or not submits or self.size < LARGE:
            return
        try:
            spooled = spool(_PROCESS.spool)
        except OSError as error:
            log.warning("an answer waits in memory: nothing can be written to %s: %s", _PROCESS.spool, error)
            return
        set_result = future.set_result

        def complete(result: Any) -> None:
            spooled.load()
            set_result(result)

        self.buffer, future.set_result = spooled, complete

    blob.__init__ = init


def spool_class() -> type[Any]:
    """NVFlare's list of a message's pieces, kept in a file.

    It is empty until `load` is called, and then holds memory that is mapped from the file, which NVFlare reads and
    releases in order.
    """

    class Spool(find(f"{LIST}:ConsumableBufferList")):  # type: ignore[misc]
        def __init__(self, folder: Path) -> None:
            """Raises OSError if the file cannot be made."""
            super().__init__()
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  closed by `load`
            self._size = 0

        def append(self, piece: Any) -> None:
            """Write a piece that has arrived; raises OSError if it cannot be written."""
            self._size += self._file.write(piece)

        def load(self) -> None:
            """Map the file, once the message is complete."""
            self._file.flush()
            for start in range(0, self._size, PIECE):
                length = min(PIECE, self._size - start)
                mapped = mmap.mmap(self._file.fileno(), length, access=mmap.ACCESS_READ, offset=start)
                super().append(memoryview(mapped))
            self._file.close()

    return Spool


def unpack_in_turn() -> None:
    """Replace ``BlobHandler._run_blob_cb``; adapters that were registered before are covered too."""
    handler_class, adapter_class, topic = find(f"{BLOB}:BlobHandler"), find(ADAPTER), find(TOPIC)
    original = handler_class._run_blob_cb

    def run(self: Any, future: Any, *others: Any) -> None:
        adapter = getattr(self.blob_cb, "__self__", None)
        if isinstance(adapter, adapter_class) and future.headers.get(topic) == ServerCommandNames.SUBMIT_UPDATE:
            self = copy.copy(self)
            self.blob_cb = partial(_call_in_turn, adapter)
        original(self, future, *others)

    handler_class._run_blob_cb = run


def _call_in_turn(adapter: Any, future: Any, *args: Any, **kwargs: Any) -> Any:
    """``Adapter.call``, once the whole answer has arrived and no other is being handled."""

    def handle(*args: Any, **kwargs: Any) -> Any:
        response = adapter.cb(*args, **kwargs)
        if isinstance(response, concurrent.futures.Future):
            concurrent.futures.wait([response])
        return response

    waiting = copy.copy(adapter)
    waiting.cb = handle
    future.result()
    with _PROCESS.turn:
        return waiting.call(future, *args, **kwargs)


# --- what is freed --------------------------------------------------------------------------------


def unmap_large_blocks() -> None:
    """From now on, in this process, return blocks of `BLOCK` bytes or more to the OS as soon as they are freed.

    glibc raises the limit by itself when it sees large blocks, and then keeps what is freed between other blocks.
    """
    if MEMORY_RELEASE.fits():
        with suppress(AttributeError, OSError, TypeError):  # another C library
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, BLOCK)


def release() -> None:
    """Collect garbage and return free pages to the OS, at most every `EVERY` seconds.

    The first call only starts the clock: a process that ends after one task has nothing to return, and looking at all
    objects would copy the pages that a forked process shares.
    """
    if not MEMORY_RELEASE.fits():
        return
    now = time.monotonic()
    if _PROCESS.released is None:
        gc.freeze()  # objects that exist by now stay, and need not be looked at
        _PROCESS.released = now
    if now - _PROCESS.released < EVERY:
        return
    _PROCESS.released = now
    gc.collect()
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def collect_after_round() -> None:
    """Collect what the last round of the server has left."""
    if MEMORY_RELEASE.fits():
        gc.collect()


MESSAGE_PIECES = Patch(
    name="message_pieces",
    kind="bounds memory",
    without="server and sites need more memory while they send",
    apply=keep_apart,
    replaces={DATUM: "3c52f8097c5c"},
)
BROADCAST_COPY = Patch(
    name="broadcast_copy",
    kind="bounds memory",
    without="the server holds one more copy of the model",
    replaces={"nvflare.apis.impl.wf_comm_server:WFCommServer._do_process_task_request": "7e9c07e2cb58"},
)
PACKED_ONCE = Patch(
    name="packed_once",
    kind="bounds memory",
    without="the server holds a packed copy of the model for each client",
    apply=pack_once,
    replaces={f"{ARRAYS}.native_decompose": "00e8014e4a53"},
)
SEND_WINDOW = Patch(
    name="send_window",
    kind="bounds memory",
    without="the server may hold up to 64 MB more for each client",
    apply=limit_window,
    replaces={f"{SENDING}.__init__": "39caac31cdc7"},
)
SPOOLED_ANSWERS = Patch(
    name="spooled_answers",
    kind="bounds memory",
    without="the server holds a model in memory for every site that answers at the same time",
    apply=spool_answers,
    replaces={
        f"{BLOB}:BlobTask.__init__": "140292a4b150",
        f"{BLOB}:BlobHandler._read_stream": "6fde167784eb",
        f"{LIST}:ConsumableBufferList": "3a72f255775b",
        f"{LIST}:BufferList": "2a90cb745f90",
    },
)
UNPACK_IN_TURN = Patch(
    name="unpack_in_turn",
    kind="bounds memory",
    without="the server needs more memory when many sites answer at once",
    apply=unpack_in_turn,
    replaces={
        f"{BLOB}:BlobHandler._run_blob_cb": "6d60dda753b0",
        f"{ADAPTER}.call": "a874a0e1bfaa",
        f"{ADAPTER}.__init__": "e622139aefd1",
    },
)
MEMORY_RELEASE = Patch(name="memory_release", kind="bounds memory", without="memory grows with the rounds")
