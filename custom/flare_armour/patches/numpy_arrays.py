"""Arrays travel as NumPy files that are written and read without parsing their headers again.

NVFlare 2.9: packs each array with ``np.save`` and unpacks it with ``np.load``, which write and parse the header as
Python source, once for every array and client. A broadcast is packed again for every client.
Cost: processor time for every array (a U-Net has 136) of every message, and copies of the model.
Instead: headers are cached, an array that cannot be read becomes an empty one, which the guard refuses by name, what
all clients get is packed once (`share`), and weights can lie in memory as they are sent (`laid_out`). What is sent is
still a NumPy file: an answer may reach a server's process that has not loaded the job yet, and must be readable there.
Fixed in NVFlare when: ``NumpyArrayDecomposer`` writes no NumPy file for each array.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache
from io import BytesIO
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.lib import format as numpy_file
from nvflare.apis.dxo import DXO

from flare_armour.patches.message_pieces import APART
from flare_armour.patches.patch import Patch, find
from flare_armour.patches.spooled_answers import is_server

KINDS = "biufSU"
"""Values of `numpy.dtype.kind` that can be sent: everything but Python objects."""
LEAD = 10
"""Bytes before the header of a NumPy file of version 1.0: the magic number, the version, the header's length."""
HEADERS = 1024
"""Headers that are cached."""
DECOMPOSER = "nvflare.app_common.decomposers.numpy_decomposers:NumpyArrayDecomposer"
PATCH = Patch(
    name="numpy_arrays",
    without="rounds take more processor time",
    replaces={f"{DECOMPOSER}.native_decompose": "00e8014e4a53", f"{DECOMPOSER}.native_recompose": "058337dc0b91"},
)


def apply() -> None:
    """Replace how NVFlare packs and unpacks one array."""
    decomposer = find(DECOMPOSER)
    decomposer.native_decompose = lambda self, target, manager=None: pack(target)
    decomposer.native_recompose = lambda self, data, manager=None: unpack(data)


def share(message: Any, *, clients: int) -> None:
    """Pack the arrays of this message once for so many clients. Those of an earlier message are forgotten."""
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
    """An array, and its packed bytes until they have been asked for so many times."""

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
    """A copy of the array inside a NumPy file in memory, which `pack` need not copy again; a small array itself."""
    if array.nbytes < APART or array.dtype.kind not in KINDS or _file_of(array) is not None:
        return array
    header = _header(array.dtype.str, array.shape)
    file = _File(len(header) + array.nbytes)
    file[: len(header)] = header
    laid: np.ndarray = np.frombuffer(file, array.dtype, offset=len(header)).reshape(array.shape)
    laid[...] = array
    return laid


def _file_of(array: np.ndarray) -> memoryview | None:
    """The file of an array that `laid_out` returned, if the array is all of it."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if not isinstance(base, _File) or not array.flags.c_contiguous or array.dtype.kind not in KINDS:
        return None
    header = _header(array.dtype.str, array.shape)
    complete = base.startswith(header) and len(base) == len(header) + array.nbytes
    return memoryview(base).toreadonly() if complete else None


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
    """The array that `pack`, or NVFlare, has packed. At a server it is read-only and shares the message's memory.

    Anything else becomes an empty array, which the guard refuses by name.
    """
    try:
        start = LEAD + int.from_bytes(data[LEAD - 2 : LEAD], "little")
        shape, fortran, dtype = _read_header(bytes(data[:start]))
        flat = np.frombuffer(data, dtype, offset=start)
        array = flat.reshape(shape, order="F" if fortran else "C")
        return array if is_server() else array.copy()
    except (ValueError, TypeError, SyntaxError, EOFError, TokenError, MemoryError, OverflowError, RecursionError):
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
        raise ValueError("not a NumPy file of version 1.0")
    shape, fortran, dtype = numpy_file.read_array_header_1_0(file)
    if dtype.kind not in KINDS or min(shape, default=0) < 0:
        raise ValueError(f"an array of {dtype} and shape {shape} cannot be received")
    return shape, fortran, dtype
