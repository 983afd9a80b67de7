"""Readers for downloads that keep many images in one file.

Supported are idx (MNIST), ``.npz``, MATLAB's ``.mat`` (SVHN) and LIBSVM text (USPS). Nothing in a file is executed.
Every error says what does not fit and what to do about it.
"""

from __future__ import annotations

import bz2
import gzip
import math
import struct
import zipfile
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO, cast

import numpy as np
from PIL import Image

from data_prep.pictures import Source
from fedshift.data.downloads import open_file, reason
from fedshift.schema.errors import DataError

UNREADABLE_MAT = (OSError, EOFError, ValueError, TypeError, LookupError, NotImplementedError, zlib.error, struct.error)
"""What SciPy raises, besides its own error, for files that are damaged or not MATLAB files."""
NUMBERS = ("single", "double", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
"""MATLAB's names for its numeric types."""
PACKED, BLOCK = 15, 2**16
"""MATLAB's type number for a compressed array, and the number of bytes decompressed at a time."""
MOST_BYTES = 2**31
"""Upper limit in bytes; none of the public files is this large when decompressed."""

Part = tuple[np.ndarray, np.ndarray]
"""Images uint8 (N, H, W) or (N, H, W, 3), and their labels (N,)."""


def read_idx(path: Path) -> np.ndarray:
    """Read an idx file of bytes, plain or ``.gz``: uint8 images (N, R, C) or labels (N,).

    The format is two zero bytes, one byte for the type (8: uint8), one byte for the number of dimensions, each
    dimension as a big-endian 32-bit integer, then the values.

    Raises:
        DataError: the file does not exist, is not an idx file of bytes, is cut short or has extra bytes.
    """
    _require(path)
    try:
        with open_gzip(path) as stream:
            magic = stream.read(4)
            if len(magic) < 4 or magic[:3] != b"\0\0\x08" or magic[3] not in (1, 3):
                raise DataError(
                    "file-form",
                    f"{path} is not an idx file of images or labels, it begins with {magic.hex(' ') or 'nothing'} "
                    "where 00 00 08 01 or 00 00 08 03 was expected: download it again",
                )
            sizes = stream.read(4 * magic[3])
            if len(sizes) < 4 * magic[3]:
                raise DataError("file-damaged", f"{path} is cut short in its header: download it again")
            shape = struct.unpack(f">{magic[3]}I", sizes)
            expected = math.prod(shape)
            if expected > MOST_BYTES:
                raise DataError("file-damaged", f"{path} claims to hold {expected} bytes: download it again")
            content = stream.read(expected + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError("file-damaged", f"{path} is damaged or cut short ({error}): download it again") from None
    if len(content) != expected:
        holds = "more" if len(content) > expected else f"{len(content)}"
        raise DataError(
            "arrays-form", f"{path} holds {holds} bytes where its header says {expected}: download it again"
        )
    return np.frombuffer(content, np.uint8).reshape(shape)


def read_npz(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Read the named arrays of an ``.npz`` file. Pickled Python objects in it are refused.

    Raises:
        DataError: the file does not exist, is damaged or is not an ``.npz`` file, or an array is missing.
    """
    _require(path)
    try:
        opened = np.load(path, allow_pickle=False)
        if not isinstance(opened, np.lib.npyio.NpzFile):
            raise DataError("file-form", f"{path} holds one array, expected is an .npz file of {', '.join(names)}")
        with opened as stored:
            absent = [name for name in names if name not in stored]
            if absent:
                raise DataError(
                    "file-form",
                    f"{path} has no array {', '.join(absent)}, it holds {', '.join(stored) or 'nothing'}: expected is "
                    f"an .npz file of {', '.join(names)}",
                )
            arrays = {name: stored[name] for name in names}
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise ValueError("an entry without the header of an array")
        return arrays
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise DataError(
            "file-damaged",
            f"{path} cannot be read as an .npz file of plain arrays ({reason(error)}): download it again",
        ) from None


def read_parts(path: Path) -> tuple[Part, Part]:
    """Read the training and test parts of an ``.npz`` file with x_train, y_train, x_test and y_test.

    Raises:
        DataError: the file does not exist or is damaged, or an array is missing.
    """
    stored = read_npz(path, ("x_train", "y_train", "x_test", "y_test"))
    return (stored["x_train"], stored["y_train"]), (stored["x_test"], stored["y_test"])


def read_mat(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Read the named numeric arrays of a MATLAB version 7 file with ``scipy.io.loadmat``.

    Raises:
        DataError: the file does not exist, is damaged or has another version, or an array is missing or not numeric.
    """
    import scipy.io  # imported here because it takes half a second and only SVHN needs it
    from scipy.io.matlab import MatReadError

    _require(path)
    try:
        _require_undamaged(path)
        held = {name: kind for name, _, kind in scipy.io.whosmat(path, appendmat=False)}
        absent = [name for name in names if name not in held]
        if absent:
            holds = ", ".join(held) or "none"
            raise DataError(
                "arrays-form", f"{path} has no array {', '.join(absent)}, it holds {holds}: download it again"
            )
        for name in names:
            if held[name] not in NUMBERS:
                raise DataError(
                    "file-form", f"{path}: {name} is not a numeric array but {held[name]}: download it again"
                )
        stored = scipy.io.loadmat(path, variable_names=list(names), appendmat=False)
    except (MatReadError, *UNREADABLE_MAT) as error:
        raise DataError(
            "file-damaged", f"{path} cannot be read as a MATLAB file ({reason(error)}): download it again"
        ) from None
    return {name: stored[name] for name in names}


def read_libsvm(path: Path, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Read LIBSVM text, plain or ``.bz2``: values float32 (N, features), labels int64 (N,).

    A line is ``label index:value …`` with indices starting at 1. Values that a line does not list are 0.

    Raises:
        DataError: the file does not exist or is damaged, or a line has another form.
    """
    _require(path)
    with open_file(path) as raw:
        packed = raw.read(3) == b"BZh"
    values, labels, number = [], [], 0
    try:
        with bz2.open(path) if packed else path.open("rb") as stream:
            for line in stream:
                number += 1
                if fields := line.split():
                    labels.append(int(float(fields[0])))
                    values.append(_numbered(fields[1:], features))
    except (OSError, EOFError) as error:
        raise DataError("file-damaged", f"{path} is damaged or cut short ({error}): download it again") from None
    except (ValueError, OverflowError) as error:
        raise DataError(
            "file-form",
            f"{path}, line {number}, is not 'label index:value …' as LIBSVM writes it ({error}): download it again",
        ) from None
    if not values:
        raise DataError("file-empty", f"{path} is empty: download it again")
    return np.stack(values), np.array(labels, np.int64)


def array_sources(images: np.ndarray, labels: np.ndarray, classes: Sequence[str], *, prefix: str) -> list[Source]:
    """Wrap uint8 ``images`` (N, H, W) or (N, H, W, 3) as sources, each of which is decoded only when it is read.

    Ids are ``<prefix>/000123``, where the number is the index in ``images``.

    Args:
        images: grey or RGB images.
        labels: integer labels (N,), each an index into ``classes``.
        classes: names of the classes.
        prefix: prefix of the ids; errors also use it as the name of the images.

    Raises:
        DataError: the images or labels have an unexpected type, shape or range.
    """
    if images.dtype != np.uint8 or not (images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 3)):
        raise DataError(
            "arrays-form",
            f"{prefix}: images are {images.dtype} {images.shape}, expected uint8 (N, H, W) or (N, H, W, 3): download "
            "them again",
        )
    if labels.dtype.kind not in "ui" or labels.shape != (len(images),):
        raise DataError(
            "arrays-form",
            f"{prefix}: {len(images)} images have labels {labels.dtype} {labels.shape}, expected an integer for "
            "each: download them again",
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(classes):
        raise DataError(
            "arrays-form",
            f"{prefix}: labels are {labels.min()} to {labels.max()}, expected 0 to {len(classes) - 1}: download them "
            "again",
        )
    return [
        Source(f"{prefix}/{number:06d}", classes[label], partial(_picture, images, number))
        for number, label in enumerate(labels.tolist())
    ]


def require_classes(pictures: Sequence[Source], classes: Sequence[str], name: str) -> None:
    """Check that every class has at least one picture.

    Raises:
        DataError: a class has no picture among those of ``name``.
    """
    labels = {picture.label for picture in pictures}
    absent = [label for label in classes if label not in labels]
    if absent:
        raise DataError("class-missing", f"{name} has no picture of class {', '.join(absent)}: download it again")


def open_gzip(path: Path) -> IO[bytes]:
    """Open a file, decompressing it if its content is gzip, whatever its name ends in.

    Some browsers decompress ``.gz`` files on download and keep the name.
    """
    with open_file(path) as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(path) if packed else path.open("rb"))


def _require_undamaged(path: Path) -> None:
    """Check that every array of a MATLAB file is compressed and its checksum right.

    SciPy may crash on a file with a single wrong byte.
    """
    with path.open("rb") as stream:
        header = stream.read(128)
        if not header.startswith(b"MATLAB 5.0"):
            raise DataError(
                "file-form",
                f"{path} is not a MATLAB file saved with -v7, it begins with {header[:10]!r}: save it with -v7",
            )
        while tag := stream.read(8):
            kind, size = struct.unpack("<II", tag)
            if kind != PACKED:
                raise DataError(
                    "file-form", f"{path} holds an array that is not compressed: save it with -v7, or download it again"
                )
            unpacker = zlib.decompressobj()
            while size:
                block = stream.read(min(size, BLOCK))
                if not block:
                    raise EOFError("cut short")
                unpacker.decompress(block)
                size -= len(block)
            if not unpacker.eof:
                raise EOFError("an array is cut short")


def _numbered(fields: Sequence[bytes], features: int) -> np.ndarray:
    """Parse the ``index:value`` fields of one line into a row."""
    row = np.zeros(features, np.float32)
    pairs = [field.split(b":") for field in fields]
    index = np.array([int(at) for at, _ in pairs], np.int64)
    if index.size and not 1 <= index.min() <= index.max() <= features:
        raise ValueError(f"indices {index.min()} to {index.max()}, expected 1 to {features}")
    row[index - 1] = [float(value) for _, value in pairs]
    if not np.isfinite(row).all():
        raise ValueError("a value that is not a finite number")
    return row


def _picture(images: np.ndarray, number: int) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(images[number]))


def _require(path: Path) -> None:
    if not path.is_file():
        raise DataError("file-missing", f"{path} does not exist: download it")
