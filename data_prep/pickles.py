"""Pickles of plain values and NumPy arrays, read without running anything that they name.

A pickle is a program: it may name any function and have it called. Here the few names that lists, numbers and arrays
need lead to functions of this module, and any other name is refused.
"""

from __future__ import annotations

import math
import pickle
import re
import zlib
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from data_prep.reading import reason
from fedshift.schema.errors import DataError

NUMPY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")
KINDS = re.compile(r"b1|[iu][1248]|f[248]|c8|c16|O[48]?|[SU]\d{1,6}")
"""Types of arrays: numbers, text and Python objects, nothing with fields."""
NOT_A_PICKLE = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    zlib.error,
)


def read_pickle(stream: IO[bytes], name: str) -> Any:
    """The value of a pickle of any protocol, of Python 2 as well, whose strings are taken as Latin-1.

    Values may be None, booleans, numbers, text, bytes, tuples, lists, sets, dictionaries and NumPy arrays and scalars
    of numbers, text or such values. Keys of dictionaries that are bytes become text.

    Args:
        stream: the open file.
        name: what errors call it.

    Raises:
        DataError: it names anything else, or is damaged.
    """
    try:
        return _plain(_Unpickler(stream, name).load(), {})
    except NOT_A_PICKLE as error:
        raise DataError(
            f"{name} is damaged or no pickle of plain values ({reason(error)}): download it again"
        ) from None


class _Kind:
    """Stands for a dtype while a pickle is read: one with fields, made up by hand, could reach beyond its array."""

    __slots__ = ("dtype",)

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not KINDS.fullmatch(name):
            raise ValueError(f"an array of type {name!r}")
        self.dtype: np.dtype[Any] = np.dtype("O" if name[0] == "O" else name)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, inner, names, fields, *_ = state
        if order not in ("<", ">", "=", "|") or not (inner is names is fields is None):
            raise ValueError("an array with fields")
        self.dtype = self.dtype.newbyteorder(order)


class _Array(np.ndarray):
    """An array that is empty until its state arrives."""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, content = state
        checked, dtype = _checked(content, kind, shape)
        super().__setstate__((1, shape, dtype, bool(fortran), checked))  # type: ignore[arg-type]


class _Named:
    """A function that a pickle may name. Of a bare one a pickle could set attributes, and they would outlast it."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __setstate__(self, state: object) -> None:
        raise ValueError("attributes for a function")


def _reconstruct(subtype: str, *_: Any) -> _Array:
    if subtype != "numpy.ndarray":
        raise ValueError("an array of a class of its own")
    return np.empty((0,), np.int8).view(_Array)


def _kind(name: str, *_: Any) -> _Kind:
    return _Kind(name)


def _scalar(kind: _Kind, content: Any) -> Any:
    raw, dtype = _checked(content, kind, (1,))
    if dtype.hasobject:
        raise ValueError("a scalar of Python objects")
    return np.frombuffer(raw, dtype)[0]


def _frombuffer(content: Any, kind: _Kind, shape: Any, order: str) -> np.ndarray:
    raw, dtype = _checked(content, kind, shape)
    if dtype.hasobject or order not in ("C", "F"):
        raise ValueError("an array of Python objects in a buffer")
    return np.frombuffer(raw, dtype).reshape(shape, order="F" if order == "F" else "C").copy()


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ValueError(f"bytes kept as {encoding}")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


KNOWN: dict[tuple[str, str], Any] = {
    **{(place, "_reconstruct"): _Named(_reconstruct) for place in NUMPY_MODULES},
    **{(place, "scalar"): _Named(_scalar) for place in NUMPY_MODULES},
    **{(place, "_frombuffer"): _Named(_frombuffer) for place in NUMPY_MODULES},
    ("numpy", "dtype"): _Named(_kind),
    ("numpy", "ndarray"): "numpy.ndarray",
    ("_codecs", "encode"): _Named(_encode),
    **{(place, "bytes"): _Named(_no_bytes) for place in ("builtins", "__builtin__")},
    **{(place, "set"): set for place in ("builtins", "__builtin__")},
    **{(place, "frozenset"): frozenset for place in ("builtins", "__builtin__")},
}
"""What a pickle gets for the names that it may use."""


class _Unpickler(pickle.Unpickler):
    """Knows no names but those."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        super().__init__(stream, encoding="latin1")
        self._name = name

    def find_class(self, module: str, name: str, /) -> Any:
        """What a pickle calls by this name."""
        if (module, name) not in KNOWN:
            raise DataError(
                f"{self._name} asks for {module}.{name}, which arrays and plain values never need: it was refused and "
                "nothing was run, download it again from where the data set is described"
            )
        return KNOWN[module, name]


def _checked(content: Any, kind: Any, shape: Any) -> tuple[Any, np.dtype[Any]]:
    """The content of an array, as much as its type and shape need, and its type."""
    if not isinstance(kind, _Kind) or not isinstance(shape, tuple):
        raise ValueError("an array without type or shape")
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError(f"an array of shape {shape}")
    if isinstance(content, str):  # Python 2's
        content = content.encode("latin1")
    dtype = kind.dtype
    fits = isinstance(content, list if dtype.hasobject else bytes | bytearray)
    needed = math.prod(shape) * (1 if dtype.hasobject else dtype.itemsize)
    if not fits or len(content) != needed:
        raise ValueError(f"an array of shape {shape} whose content does not fit")
    return content, dtype


def _plain(value: Any, done: dict[int, Any]) -> Any:
    """The same with NumPy's own classes, and keys as text; ``done`` holds what stands in several places."""
    if id(value) not in done:
        done[id(value)] = _made_plain(value, done)
    return done[id(value)]


def _made_plain(value: Any, done: dict[int, Any]) -> Any:
    if isinstance(value, dict):
        return {
            key.decode("latin1") if isinstance(key, bytes) else _plain(key, done): _plain(v, done)
            for key, v in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)([_plain(item, done) for item in value])
    if isinstance(value, _Kind):
        return value.dtype
    if isinstance(value, np.ndarray):
        array = np.asarray(value)
        if array.dtype.hasobject:
            items = np.empty(array.size, object)
            for place, item in enumerate(array.ravel()):
                items[place] = _plain(item, done)
            array = items.reshape(array.shape)
        return array
    if callable(value):
        raise ValueError("a function in place of a value")
    return value
