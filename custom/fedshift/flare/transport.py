"""What NVFlare 2.9 loses on a message's way, mended at both ends.

FLARE makes text of every message that comes in, all its bytes, for a debug line that is not written; of 13 MB of
updates that takes longer than all else. And it sends each array as a NumPy file, whose header is written and read as
Python source, every time; a network has a hundred arrays. Here a message's text is short, and a header is made and
read once. And it remembers each message for a minute, with a thread that does nothing but wait; here one thread
forgets them all.

A server's memory is spared: weights lie in it as they are sent (`laid_out`), what else all clients get is packed once
(`share`), large arrays are not copied into one block, and answers that came at the same time wait on disk
(`fedshift.flare.server_memory`) and are unpacked one after another.

What is sent stays a NumPy file, which FLARE reads without us: an answer may reach a server's process that has just
been started and has not loaded the job yet, and FLARE ends a process that cannot read an answer.

These parts of FLARE are not public; pyproject.toml holds nvflare to one minor version.
"""

from __future__ import annotations

import concurrent.futures
import copy
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from io import BytesIO
from typing import Any

import numpy as np
from numpy.lib import format as numpy_file
from nvflare.apis.dxo import DXO
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.fuel.f3.cellnet.cell import Adapter
from nvflare.fuel.f3.streaming.blob_streamer import BlobHandler
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.utils.buffer_list import ConsumableBufferList
from nvflare.fuel.utils.fobs import datum

from fedshift.flare import server_memory

KINDS = "biufSU"
"""Of `numpy.dtype.kind`: whatever is no Python object."""
LEAD = 10
"""Bytes before a header: how a NumPy file of version 1.0 begins, and the header's length in two."""
APART = 64 * 1024
"""Bytes from which an array is a piece of its own in a message, which is not copied into one block with the rest."""
HEADERS = 1024
"""Headers that are remembered."""


def mend() -> None:
    """For this process; once is enough."""
    ConsumableBufferList.__repr__ = _brief
    NumpyArrayDecomposer.native_decompose = lambda self, target, manager=None: pack(target)
    NumpyArrayDecomposer.native_recompose = lambda self, data, manager=None: unpack(data)
    datum.TEN_MEGA = APART
    BlobHandler._run_blob_cb = _take
    RxTask._schedule_remove_task = _forget_later
    server_memory.mend()


def share(message: Any, *, clients: int) -> None:
    """Pack the arrays of this message once for so many clients; those of an earlier one are forgotten."""
    _SHARED.clear()
    _SHARED.update({id(array): _Once(array, clients) for array in _arrays(message) if _file_of(array) is None})


def _arrays(part: Any) -> Iterator[np.ndarray]:
    if isinstance(part, np.ndarray):
        yield part
    elif isinstance(part, DXO):
        yield from _arrays(part.data)
    elif isinstance(part, dict):
        for value in part.values():
            yield from _arrays(value)


class _Once:
    """An array, and what it is packed to until it has been asked for so many times."""

    def __init__(self, array: np.ndarray, times: int) -> None:
        self._array, self._times = array, times
        self._lock = threading.Lock()
        self._packed: bytes | None = None

    def packed(self) -> bytes:
        with self._lock:
            packed = _packed(self._array) if self._packed is None else self._packed
            self._times -= 1
            self._packed = packed if self._times > 0 else None
            return packed


_SHARED: dict[int, _Once] = {}


class _File(bytearray):
    """A NumPy file in memory."""


def laid_out(array: np.ndarray) -> np.ndarray:
    """The array as part of a NumPy file in memory, which `pack` need not copy; a small one as it is."""
    if array.nbytes < APART or array.dtype.kind not in KINDS or _file_of(array) is not None:
        return array
    header = _header(array.dtype.str, array.shape)
    file = _File(len(header) + array.nbytes)
    file[: len(header)] = header
    laid: np.ndarray = np.frombuffer(file, array.dtype, offset=len(header)).reshape(array.shape)
    laid[...] = array
    return laid


def _file_of(array: np.ndarray) -> memoryview | None:
    """The file that an array of `laid_out` is all of."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if not isinstance(base, _File) or not array.flags.c_contiguous or array.dtype.kind not in KINDS:
        return None
    header = _header(array.dtype.str, array.shape)
    whole = base.startswith(header) and len(base) == len(header) + array.nbytes
    return memoryview(base).toreadonly() if whole else None


def pack(array: np.ndarray) -> bytes | memoryview:
    """An array as `numpy.save` writes it, in C order.

    Raises:
        TypeError: it holds Python objects.
    """
    shared = _SHARED.get(id(array))
    return (_file_of(array) or _packed(array)) if shared is None else shared.packed()


def _packed(array: np.ndarray) -> bytes:
    if array.dtype.kind not in KINDS:
        raise TypeError(f"an array of {array.dtype} cannot be sent")
    return b"".join((_header(array.dtype.str, array.shape), array.tobytes()))


def unpack(data: bytes) -> np.ndarray:
    """What `pack` packed, or FLARE; at a server for reading only, as it lies in the message.

    What neither has packed comes out as an empty array, which the guard refuses under its name: FLARE ends the
    server's process if an array cannot be read.
    """
    try:
        start = LEAD + int.from_bytes(data[LEAD - 2 : LEAD], "little")
        shape, turned, dtype = _read_header(bytes(data[:start]))
        flat = np.frombuffer(data, dtype, offset=start)
        array = flat.reshape(shape, order="F" if turned else "C")
        return array if server_memory.spared() else array.copy()
    except (ValueError, TypeError, SyntaxError, EOFError):
        return np.empty(0, np.uint8)


@lru_cache(HEADERS)
def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    file = BytesIO()
    numpy_file.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


@lru_cache(HEADERS)
def _read_header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    file = BytesIO(head)
    if numpy_file.read_magic(file) != (1, 0):
        raise ValueError("another version")
    shape, turned, dtype = numpy_file.read_array_header_1_0(file)
    if dtype.kind not in KINDS or min(shape, default=0) < 0:
        raise ValueError(dtype)
    return shape, turned, dtype


def _take(self: BlobHandler, future: Any, *others: Any) -> None:
    """In place of `BlobHandler._run_blob_cb`. An `Adapter` may have been registered long before this was mended."""
    adapter = getattr(self.blob_cb, "__self__", None)
    if isinstance(adapter, Adapter) and future.headers.get(StreamHeaderKey.TOPIC) == ServerCommandNames.SUBMIT_UPDATE:
        self = copy.copy(self)
        self.blob_cb = partial(_one_by_one, adapter)
    _TAKE(self, future, *others)


def _one_by_one(adapter: Adapter, future: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of `Adapter.call`, which begins when the first bytes come, and waits for the rest."""

    def taken(*args: Any, **kwargs: Any) -> Any:
        response = adapter.cb(*args, **kwargs)
        if isinstance(response, concurrent.futures.Future):
            concurrent.futures.wait([response])
        return response

    patient = copy.copy(adapter)
    patient.cb = taken
    future.result()
    with _UNPACKING:
        return patient.call(future, *args, **kwargs)


_TAKE = BlobHandler._run_blob_cb
_UNPACKING = threading.Lock()


def _forget_later(message: Any, ttl: float | None = None) -> None:
    """In place of FLARE's own, which starts a `threading.Timer`."""
    with message.stop_lock:
        if message.cleanup_timer is None:
            message.cleanup_timer = _FORGETTING.after(
                message.completed_task_ttl if ttl is None else ttl, message._remove_task
            )


class Later:
    """Work that is to be done at its time, by one thread for all of it."""

    def __init__(self) -> None:
        """The thread begins with the first work."""
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._thread: threading.Thread | None = None

    def after(self, seconds: float, work: Callable[[], None]) -> Later:
        """Do ``work`` in so many seconds; returns what `cancel` can be asked of."""
        with self._changed:
            heapq.heappush(self._waiting, (time.monotonic() + seconds, next(self._number), work))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fedshift later", daemon=True)
                self._thread.start()
            self._changed.notify()
        return self

    def cancel(self) -> None:
        """Nothing: forgetting twice does no harm."""

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting or self._waiting[0][0] > time.monotonic():
                    self._changed.wait(self._waiting[0][0] - time.monotonic() if self._waiting else None)
                _, _, work = heapq.heappop(self._waiting)
            work()


_FORGETTING = Later()


def _brief(message: Any) -> str:
    return f"<message in {len(message)} pieces>"
