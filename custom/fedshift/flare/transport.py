"""What NVFlare 2.9 loses on a message's way, mended at both ends.

FLARE makes text of every message that comes in, all its bytes, for a debug line that is not written; of 13 MB of
updates that takes longer than all else. And it sends each array as a NumPy file, whose header is read as Python
source; a network has a hundred arrays. Here a message's text is short, and an array is its type, its shape and its
bytes.

These parts of FLARE are not public; pyproject.toml holds nvflare to one minor version.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.fuel.utils.buffer_list import ConsumableBufferList

NUMPY_FILE = b"\x93NUMPY"
"""How an array begins that FLARE itself has written."""
KINDS = "biufSU"
"""Of `numpy.dtype.kind`: whatever is no Python object."""


def mend() -> None:
    """For this process; once is enough."""
    ConsumableBufferList.__repr__ = _brief
    NumpyArrayDecomposer.native_decompose = lambda self, target, manager=None: pack(target)
    NumpyArrayDecomposer.native_recompose = lambda self, data, manager=None: unpack(data)


def pack(array: np.ndarray) -> bytes:
    """An array as ``dtype;n,n,…;`` and its bytes in C order.

    Raises:
        TypeError: it holds Python objects.
    """
    if array.dtype.kind not in KINDS:
        raise TypeError(f"an array of {array.dtype} cannot be sent")
    head = f"{array.dtype.str};{','.join(map(str, array.shape))};".encode()
    return b"".join((head, array.tobytes()))


def unpack(data: bytes) -> np.ndarray:
    """What `pack` packed, or FLARE.

    What was packed by nobody of ours comes out as an empty array, which the guard refuses under its name: FLARE ends
    the server's process if an array cannot be read.
    """
    try:
        if bytes(data[: len(NUMPY_FILE)]) == NUMPY_FILE:
            array: np.ndarray = np.load(BytesIO(data), allow_pickle=False)
            return array
        kind, sizes, _ = bytes(data[:256]).split(b";", 2)
        dtype = np.dtype(kind.decode())
        shape = tuple(int(size) for size in sizes.split(b",") if size)
        if dtype.kind not in KINDS or min(shape, default=0) < 0:
            raise ValueError(dtype)
        start = len(kind) + len(sizes) + 2
        return np.frombuffer(data, dtype, offset=start).reshape(shape).copy()
    except (ValueError, TypeError, SyntaxError, EOFError):
        return np.empty(0, np.uint8)


def _brief(message: Any) -> str:
    return f"<message in {len(message)} pieces>"
