"""Hashes of cached arrays, so that a change on disk is noticed.

``hashes.json`` lies beside the arrays of a folder and has the SHA-256 of every block of every ``.npy`` file. The
manifest has the SHA-256 of ``hashes.json`` (``Manifest.arrays``) for the folders that preparation wrote. So as long as
a site's manifest has the same fingerprint, these arrays have the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedshift.schema.errors import DataError
from fedshift.schema.files import write_text

FILE_NAME = "hashes.json"
BLOCK = 1 << 20  # bytes that one hash covers
CHECKED_AT_OPENING = 256
"""Blocks of a file that are verified each time a site opens; of a longer file a random choice of them."""

ANY = random.SystemRandom()  # a generator of its own: opening a site must not change what a seed gives


def build(target: Path, fill: Callable[[Path], None], *, remedy: str = "") -> str:
    """Make a folder of arrays under a temporary name, hash it and rename it; another process may be faster.

    ``fill`` writes the arrays into the folder that it is given. ``remedy``: what else than room or permission helps if
    the disk does not take them. Returns what `write_hashes` does.
    """
    partial = target.parent / f".{target.name}.partial-{uuid.uuid4().hex[:8]}"
    try:
        partial.mkdir(parents=True)
        fill(partial)
        written = write_hashes(partial)
        try:
            partial.rename(target)
        except OSError:
            if not target.is_dir():  # otherwise another process was first, with the same bytes
                raise
        return written
    except OSError as error:
        what = f"{target} cannot be written ({error.strerror}): make room or give write permission{remedy}"
        raise DataError("folder-unwritable", what) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_hashes(folder: Path) -> str:
    """Write ``hashes.json`` for the ``.npy`` files of a folder.

    Returns:
        The SHA-256 of ``hashes.json``, for `fedshift.schema.manifest.Manifest.arrays`.
    """
    files = {path.name: [digest.hex() for digest in _digests(path)] for path in sorted(folder.glob("*.npy"))}
    write_text(folder / FILE_NAME, json.dumps({"block": BLOCK, "files": files}))
    return _sha256(folder / FILE_NAME)


def verify(folder: Path, known: str | None, *, fix: str, full: bool = False) -> None:
    """Compare the arrays of a folder with their hashes.

    ``known``: what the manifest has as the hash of ``hashes.json``; None if the arrays were made after the manifest.
    ``fix``: what a user can do about an error. ``full``: every block, otherwise `CHECKED_AT_OPENING` of each file.
    """
    path = folder / FILE_NAME
    try:
        if known is not None and _sha256(path) != known:
            raise DataError("arrays-changed", f"{path} has changed since the site was prepared: {fix}")
        files = _read(path)
    except FileNotFoundError:
        what = f"{path} is missing, so the arrays beside it cannot be verified: {fix}"
        raise DataError("file-missing", what) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise DataError("file-damaged", f"{path} is damaged: {fix}") from None
    for name, hashes in files.items():
        # A length that differs changes the number of the last block or its hash.
        numbers = range(len(hashes))
        chosen = numbers if full else sorted(ANY.sample(numbers, min(len(hashes), CHECKED_AT_OPENING)))
        with (folder / name).open("rb") as file:
            for number in chosen:
                file.seek(number * BLOCK)
                if hashlib.sha256(file.read(BLOCK)).hexdigest() != hashes[number]:
                    where = f"{folder / name} has changed since it was written, at byte {number * BLOCK}"
                    raise DataError("arrays-changed", f"{where} or after it: {fix}")


def _read(path: Path) -> Mapping[str, list[str]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if content["block"] != BLOCK:
        raise ValueError("another block size")
    return {str(name): [str(digest) for digest in digests] for name, digests in content["files"].items()}


def _digests(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        return [hashlib.sha256(block).digest() for block in iter(lambda: file.read(BLOCK), b"")]


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def open_array(
    path: Path, *, fix: str, shape: tuple[int, ...] | None = None, types: Sequence[str] = ("uint8",)
) -> np.ndarray:
    """A read-only memory map of an array; with ``shape``, which must be of that shape and of one of the ``types``."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError("file-missing", f"{path} is missing: {fix}") from None
    except PermissionError as error:
        what = f"{path} cannot be read ({error.strerror}): fix that and start again"
        raise DataError("file-unreadable", what) from None
    except (ValueError, OSError, EOFError):
        raise DataError("arrays-damaged", f"{path} is truncated or damaged: {fix}") from None
    if shape is not None and (array.dtype not in types or array.shape != shape):
        wanted = f"{' or '.join(types)} {shape}"
        raise DataError("array-shape", f"{path} holds {array.dtype} {array.shape}, expected is {wanted}: {fix}")
    return np.asarray(array)
