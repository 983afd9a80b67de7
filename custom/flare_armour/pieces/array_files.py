"""The arrays of a message in a file, and their places in the message."""

from __future__ import annotations

import hashlib
import mmap
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from nvflare.apis.dxo import DXO, from_shareable
from nvflare.apis.shareable import Shareable

from flare_armour.patches.messages import APART

LARGE = 8 * 1024 * 1024
"""Bytes of a message's arrays from which they travel in pieces."""
ALIGNED = 64
"""An array begins at a multiple of so many bytes."""
FOLDER = "pieces"
"""In the folder that the server, or a site, has for the job. It is gone when the job has ended."""
TASK = ".task"
"""The server's file of the open task, beside a folder for each client. No client's name begins with a dot."""
KEY = "armour_arrays"
"""Of the message, for where its arrays are."""
KINDS = "iuf"
"""Values of `numpy.dtype.kind` that are taken out."""
DIGEST = re.compile("[0-9a-f]{64}")

Slot = tuple[dict[str, Any], str]
"""A mapping in a message, and a key of it."""


class NotInFileError(Exception):
    """What a message says of its arrays does not fit the file, or the message."""


@dataclass(frozen=True)
class FileOf:
    """A file by its contents."""

    sha256: str
    size: int

    @classmethod
    def parse(cls, sha256: object, size: object) -> FileOf | None:
        """None if it is no file's: the digest becomes part of a name."""
        if not isinstance(sha256, str) or not DIGEST.fullmatch(sha256) or type(size) is not int or size < 1:
            return None
        return cls(sha256, size)


def take_out(message: Shareable, path: Path) -> FileOf | None:
    """Move a message's arrays to a new file, where they are many bytes; an empty one stays in the place of each.

    Returns:
        The file; None if the message stays as it is.

    Raises:
        OSError: the file cannot be written; the message stays as it is.
    """
    try:
        large = [slot for slot in _arrays(from_shareable(message)) if slot[2].nbytes >= APART]
    except ValueError:
        return None
    if sum(array.nbytes for _, _, array in large) < LARGE:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        try:
            whole, places = _write(file, [(names, array) for names, _, array in large])
        except OSError:
            path.unlink()  # on a full disk it would stay in the way
            raise
    for _, (mapping, key), _ in large:
        mapping[key] = np.empty(0, np.uint8)
    message[KEY] = {"sha256": whole.sha256, "size": whole.size, "places": places}
    return whole


def _write(file: IO[bytes], arrays: Iterable[tuple[tuple[str, ...], np.ndarray]]) -> tuple[FileOf, list[list[Any]]]:
    """Write arrays one after another; returns the file, and the name, type, shape and offset of each."""
    digest, places = hashlib.sha256(), []
    for names, array in arrays:
        offset = file.tell() + -file.tell() % ALIGNED
        places.append([list(names), array.dtype.str, list(array.shape), offset])
        for data in (bytes(offset - file.tell()), np.ascontiguousarray(array).reshape(-1).view(np.uint8).data):
            file.write(data)
            digest.update(data)
    return FileOf(digest.hexdigest(), file.tell()), places


def file_of(message: Shareable) -> FileOf | None:
    """The file that has a message's arrays; None if they are in the message.

    Raises:
        NotInFileError: what the message says of it makes no sense.
    """
    content = message.get(KEY)
    if content is None:
        return None
    file = FileOf.parse(content.get("sha256"), content.get("size")) if isinstance(content, dict) else None
    if file is None:
        raise NotInFileError("it does not say in which file its arrays are")
    return file


def put_back(message: Shareable, path: Path, *, writable: bool) -> None:
    """Put the arrays of a file, which must be whole, back to their places. They are mapped and not read.

    Args:
        message: as `take_out` left it.
        path: the file; it may be deleted afterwards.
        writable: whether the arrays may be changed, which does not change the file.

    Raises:
        NotInFileError: a place is not in the file, or not in the message.
    """
    file = file_of(message)
    places = message[KEY].get("places")
    if file is None or not isinstance(places, list):
        raise NotInFileError("it does not say where its arrays are")
    try:
        slots = {names: slot for names, slot, array in _arrays(from_shareable(message)) if not array.size}
    except ValueError as error:
        raise NotInFileError(str(error)) from None
    with path.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY if writable else mmap.ACCESS_READ)
    if len(mapped) != file.size:
        raise NotInFileError(f"its file has {len(mapped)} bytes, not {file.size}")
    filled: list[tuple[Slot, np.ndarray]] = []
    for place in places:
        names, array = _read(place, mapped)
        slot = slots.pop(names, None)
        if slot is None:
            raise NotInFileError("it has no place for one of its arrays, or has two arrays for a place")
        filled.append((slot, array))
    for (mapping, key), array in filled:
        mapping[key] = array
    del message[KEY]


def _read(place: object, mapped: mmap.mmap) -> tuple[tuple[str, ...], np.ndarray]:
    match place:
        case [list(names), str(kind), list(shape), int(offset)]:
            pass
        case _:
            raise NotInFileError("one of its places is none")
    try:
        dtype = np.dtype(kind)
    except TypeError:
        raise NotInFileError("one of its arrays has no type") from None
    if dtype.kind not in KINDS or dtype.hasobject or not all(type(part) is str for part in names):
        raise NotInFileError("one of its arrays is not of numbers, or has no name")
    if not all(type(length) is int and length >= 0 for length in shape) or type(offset) is not int:
        raise NotInFileError("one of its arrays has no shape")
    count = prod(shape)
    if not count or len(shape) > 32 or offset < 0 or offset % ALIGNED or offset + count * dtype.itemsize > len(mapped):
        raise NotInFileError("one of its arrays is not in the file")
    return tuple(names), np.frombuffer(mapped, dtype, count, offset).reshape(shape)


def _arrays(dxo: DXO, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Slot, np.ndarray]]:
    """Arrays of numbers in mappings with names, in the order of names: the same message gives the same file."""
    named = dxo.data if isinstance(dxo.data, dict) else {}
    for key in sorted(key for key in named if type(key) is str):
        value = named[key]
        if isinstance(value, DXO):
            yield from _arrays(value, (*before, key))
        elif type(value) is np.ndarray and value.dtype.kind in KINDS:
            yield (*before, key), (named, key), value
