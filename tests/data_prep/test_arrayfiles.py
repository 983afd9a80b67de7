"""Many pictures in one file: idx, .npz, .mat and LIBSVM's text, and what damaged or other files get."""

from __future__ import annotations

import bz2
import gzip
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from digitfiles import digits, idx, usps_text
from errors import raises
from PIL import Image

from data_prep import arrayfiles
from data_prep.arrayfiles import (
    array_sources,
    open_gzip,
    read_idx,
    read_libsvm,
    read_mat,
    read_npz,
    require_classes,
)
from fedshift.schema.errors import DataError

IMAGES, LABELS = digits(12, 5, 4)


@pytest.mark.parametrize("values", [IMAGES, LABELS], ids=["images", "labels"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
def test_idx_files_are_read_packed_or_not(values: np.ndarray, pack: object, tmp_path: Path) -> None:
    path = tmp_path / "any.gz"
    path.write_bytes(pack(idx(values)))  # type: ignore[operator]
    read = read_idx(path)
    assert read.dtype == np.uint8 and read.shape == values.shape and (read == values).all()


GOOD = idx(IMAGES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file of images or labels, it begins with nothing"),
        (b"<html>", "it begins with 3c 68 74 6d where 00 00 08 01 or 00 00 08 03 was expected"),
        (b"\0\0\x0d\x03" + GOOD[4:], "it begins with 00 00 0d 03"),
        (b"\0\0\x08\x02" + GOOD[4:], "it begins with 00 00 08 02"),
        (GOOD[:9], "cut short in its header"),
        (GOOD[:-1], "holds 239 bytes where its header says 240"),
        (GOOD + b"\0", "holds more bytes where its header says 240"),
        (b"\0\0\x08\x03" + struct.pack(">3I", 2**31, 28, 28), "claims to hold 1683627180032 bytes"),
        (gzip.compress(GOOD)[:-12], "damaged or cut short"),
        (gzip.compress(GOOD)[:-8] + b"01234567", r"damaged or cut short \(CRC"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\xffnothing", "damaged or cut short"),
    ],
)
def test_other_idx_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"train-images-idx3-ubyte.gz .*{message}"):
        read_idx(path)


def test_absent_files_are_named(tmp_path: Path) -> None:
    for read in (
        read_idx,
        lambda path: read_npz(path, ["x"]),
        lambda path: read_mat(path, ["X"]),
        lambda path: read_libsvm(path, 4),
    ):
        with raises("file-missing", naming="none"):
            read(tmp_path / "none")


def test_arrays_of_an_npz_file_are_read_by_name(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=IMAGES, y=LABELS, z=LABELS)
    read = read_npz(tmp_path / "a.npz", ["x", "y"])
    assert list(read) == ["x", "y"] and (read["x"] == IMAGES).all() and (read["y"] == LABELS).all()


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def npz(path: Path, **arrays: np.ndarray) -> bytes:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path.read_bytes()


def without_a_header(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("x.npy", b"no array")


def one_array(path: Path) -> None:
    with path.open("wb") as stream:
        np.save(stream, IMAGES)


def overwritten(path: Path) -> None:
    whole = npz(path, x=IMAGES)
    path.write_bytes(whole[:100] + b"\xff" * 20 + whole[120:])


DAMAGED = r"cannot be read as an \.npz file"
NPZ: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.touch(), DAMAGED),
    "text": (lambda path: path.write_bytes(b"nothing"), DAMAGED),
    "its end cut off": (lambda path: path.write_bytes(npz(path, x=IMAGES)[:-30]), DAMAGED),
    "its beginning": (lambda path: path.write_bytes(npz(path, x=IMAGES)[:200]), DAMAGED),
    "overwritten": (overwritten, DAMAGED),
    "Python objects": (
        lambda path: npz(path, x=np.array([Bomb(path.with_name("ran"))], object)),
        rf"{DAMAGED} of plain arrays",
    ),
    "no header": (without_a_header, rf"{DAMAGED} .*an entry without the header of an array"),
    "one array": (one_array, r"holds one array, expected is an \.npz file of x"),
    "other names": (lambda path: npz(path, y=LABELS, z=LABELS), r"has no array x, it holds y, z: expected is .* of x"),
}


@pytest.mark.parametrize("fault", NPZ)
def test_other_npz_files_are_refused_and_no_code_in_them_is_run(fault: str, tmp_path: Path) -> None:
    make, words = NPZ[fault]
    make(tmp_path / "a.npz")
    with pytest.raises(DataError, match=rf"a\.npz {words}"):
        read_npz(tmp_path / "a.npz", ["x"])
    assert not (tmp_path / "ran").exists()


def test_arrays_of_a_matlab_file_are_read_by_name(tmp_path: Path) -> None:
    path = tmp_path / "train_32x32.mat"
    scipy.io.savemat(path, {"X": IMAGES, "y": LABELS[:, None], "text": "more"}, do_compression=True)
    read = read_mat(path, ["X", "y"])
    assert read["X"].dtype == np.uint8 and (read["X"] == IMAGES).all() and read["y"].shape == (12, 1)


NOT_V7 = "is not a MATLAB file saved with -v7, it begins with b"


def mat(path: Path, *, packed: bool = True, **arrays: object) -> None:
    scipy.io.savemat(path, arrays, do_compression=packed)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.touch(), NOT_V7),
        (lambda path: path.write_bytes(b"nothing"), NOT_V7),
        (lambda path: path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(512)), NOT_V7),
        (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(600)), NOT_V7),
        (lambda path: mat(path, X=IMAGES, packed=False), "holds an array that is not compressed"),
        (lambda path: mat(path, Y=IMAGES, y=LABELS, text="more"), "has no array X, it holds Y, y, text"),
        (lambda path: mat(path, X="more"), "X is not a numeric array but char"),
    ],
    ids=["empty", "text", "7.3", "HDF5", "not compressed", "other names", "a text as array"],
)
def test_other_matlab_files_are_refused(make: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    path = tmp_path / "train_32x32.mat"
    make(path)
    with pytest.raises(DataError, match=rf"train_32x32\.mat.* {words}"):
        read_mat(path, ["X"])


def test_damaged_matlab_files_do_not_reach_scipy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train_32x32.mat"
    scipy.io.savemat(path, {"X": IMAGES}, do_compression=True)
    whole = path.read_bytes()
    monkeypatch.setattr(scipy.io, "whosmat", lambda *_, **__: pytest.fail("SciPy was asked"))
    flipped = whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:]
    for content in (whole[:-20], whole[:200], whole[:131], flipped):
        path.write_bytes(content)
        with raises("file-damaged", naming="train_32x32.mat"):
            read_mat(path, ["X"])


@pytest.mark.parametrize("pack", [bytes, bz2.compress], ids=["plain", "bz2"])
def test_text_of_libsvm_is_read_packed_or_not(pack: object, tmp_path: Path) -> None:
    path = tmp_path / "usps"
    path.write_bytes(pack(b"7 1:-1 3:0.5 \n\n10 2:1e-1\n"))  # type: ignore[operator]
    values, labels = read_libsvm(path, 3)
    assert values.dtype == np.float32 and labels.tolist() == [7, 10]
    assert values.tolist() == [[-1, 0, 0.5], [0, np.float32(0.1), 0]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"1 1:1\n2 4:1\n", "line 2, is not .*indices 4 to 4, expected 1 to 3"),
        (b"1 0:1\n", "line 1, is not .*indices 0 to 0"),
        (b"1 1=1\n", "line 1, is not"),
        (b"one 1:1\n", "line 1, is not"),
        (b"1 1:nan\n", "line 1, is not .*a value that is not a finite number"),
        (b"inf 1:1\n", "line 1, is not"),
        (b"\xff\xfe\n", "line 1, is not"),
        (bz2.compress(usps_text(*digits(9, 1, 3)))[:-20], "damaged or cut short"),
        (b"BZh9 but no more", "damaged or cut short"),
    ],
)
def test_other_text_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "usps.bz2"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"usps.bz2,? .*{message}"):
        read_libsvm(path, 3)


def test_a_file_is_unpacked_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(b"text"))
    (tmp_path / "b.gz").write_bytes(b"text")
    for name in ("a", "b.gz"):
        with open_gzip(tmp_path / name) as stream:
            assert stream.read() == b"text"


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3)])
def test_rows_of_arrays_become_pictures(shape: tuple[int, ...]) -> None:
    images, labels = digits(12, *shape)
    sources = array_sources(images, labels, "abcdefghij", prefix="train")
    assert [s.id for s in sources[:2]] == ["train/000000", "train/000001"] and sources[11].label == "b"
    picture = sources[7].read()
    assert picture.mode == ("L" if len(shape) == 2 else "RGB") and picture.size == (4, 5)
    assert (np.asarray(picture) == images[7]).all()


def test_pictures_are_made_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(arrayfiles.Image, "fromarray", lambda image: made.append(image) or Image.new("L", (1, 1)))
    sources = array_sources(IMAGES, LABELS, "0123456789", prefix="x")
    assert not made
    sources[3].read()
    assert len(made) == 1


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES.astype(np.float32), LABELS, ("arrays-form", "float32")),
        (IMAGES.reshape(12, 20), LABELS, ("arrays-form", "uint8")),
        (np.zeros((2, 5, 4, 1), np.uint8), LABELS[:2], ("arrays-form", "uint8")),
        (IMAGES, LABELS[:-1], ("arrays-form", "uint8")),
        (IMAGES, LABELS[:, None], ("arrays-form", "uint8")),
        (IMAGES, LABELS.astype(float), ("arrays-form", "float64")),
        (IMAGES, LABELS + 1, ("arrays-form", "10")),
        (IMAGES, LABELS.astype(np.int64) - 1, ("arrays-form", "-1")),
    ],
)
def test_arrays_that_are_no_pictures_are_refused(
    images: np.ndarray, labels: np.ndarray, message: tuple[str, str]
) -> None:
    with raises(message[0], naming=message[1]):
        array_sources(images, labels, "0123456789", prefix="x")


def test_a_class_without_a_picture_is_named() -> None:
    sources = array_sources(IMAGES[:8], LABELS[:8], "0123456789", prefix="x")
    with raises("class-missing", naming="8, 9"):
        require_classes(sources, "0123456789", "usps")
