"""Read pickles of plain values and NumPy arrays without running any code that they name.

A pickle is a program that may import and call any function. Here the few names that lists, numbers and arrays need are
mapped to functions of this module, and any other name is refused.
"""

from __future__ import annotations

import math
import pickle
import re
import zlib
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from fedshift.data.downloads import reason
from fedshift.schema.errors import DataError

NUMPY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")
KINDS = re.compile(r"b1|[iu][1248]|f[248]|c8|c16|O[48]?|[SU]\d{1,6}")
"""Allowed array types: numbers, text and Python objects; no structured types."""
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
    """Read the value of a pickle of any protocol, including Python 2, whose strings are read as Latin-1.

    Values may be None, booleans, numbers, text, bytes, tuples, lists, sets, dictionaries, and NumPy arrays and scalars
    of numbers, text or such values. Dictionary keys that are bytes become text.

    Args:
        stream: the open file.
        name: the file's name in errors.

    Raises:
        DataError: the pickle names anything else, or is damaged.
    """
    try:
        return _plain(_Unpickler(stream, name).load(), {})
    except NOT_A_PICKLE as error:
        raise DataError(
            "file-damaged", f"{name} is damaged or no pickle of plain values ({reason(error)}): download it again"
        ) from None


class _Kind:
    """Stands in for a dtype while a pickle is read: a forged structured dtype could access memory outside its array."""

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
    """An array that is empty until its state is set."""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, content = state
        checked, dtype = _checked(content, kind, shape)
        super().__setstate__((1, shape, dtype, bool(fortran), checked))  # type: ignore[arg-type]


class _Named:
    """Wraps a function that a pickle may call. On a bare function, a pickle could set attributes that would persist."""

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
"""Maps the names that a pickle may use to what it gets."""


class _Unpickler(pickle.Unpickler):
    """An unpickler that resolves only the names in KNOWN."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        super().__init__(stream, encoding="latin1")
        self._name = name

    def find_class(self, module: str, name: str, /) -> Any:
        """Return the object that a pickle names, or refuse it."""
        if (module, name) not in KNOWN:
            raise DataError(
                "pickle-refused",
                f"{self._name} asks for {module}.{name}, which arrays and plain values never need: it was refused and "
                "no code was run, download it again from where the data set is described",
            )
        return KNOWN[module, name]


def _checked(content: Any, kind: Any, shape: Any) -> tuple[Any, np.dtype[Any]]:
    """Check that the content of an array matches its type and shape; returns content and dtype."""
    if not isinstance(kind, _Kind) or not isinstance(shape, tuple):
        raise ValueError("an array without type or shape")
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError(f"an array of shape {shape}")
    if isinstance(content, str):  # a Python 2 string
        content = content.encode("latin1")
    dtype = kind.dtype
    fits = isinstance(content, list if dtype.hasobject else bytes | bytearray)
    needed = math.prod(shape) * (1 if dtype.hasobject else dtype.itemsize)
    if not fits or len(content) != needed:
        raise ValueError(f"an array of shape {shape} whose content does not fit")
    return content, dtype


def _plain(value: Any, results: dict[int, Any]) -> Any:
    """Replace our stand-in classes by NumPy's and byte keys by text; ``results``: of each object, by its id."""
    if id(value) not in results:
        results[id(value)] = _made_plain(value, results)
    return results[id(value)]


def _made_plain(value: Any, results: dict[int, Any]) -> Any:
    if isinstance(value, dict):
        return {
            key.decode("latin1") if isinstance(key, bytes) else _plain(key, results): _plain(v, results)
            for key, v in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)([_plain(item, results) for item in value])
    if isinstance(value, _Kind):
        return value.dtype
    if isinstance(value, np.ndarray):
        array = np.asarray(value)
        if array.dtype.hasobject:
            items = np.empty(array.size, object)
            for place, item in enumerate(array.ravel()):
                items[place] = _plain(item, results)
            array = items.reshape(array.shape)
        return array
    if callable(value):
        raise ValueError("a function in place of a value")
    return value
