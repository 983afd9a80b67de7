"""A byte of a cached array that changes is noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from errors import raises

from fedshift.data import blocks
from fedshift.data.arrays import open_arrays
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import manifest_sha256

from .test_arrays import site as site  # a fixture

FIX = "prepare it again"


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    np.save(tmp_path / "images.npy", np.arange(3 * blocks.BLOCK, dtype=np.uint8).reshape(3, -1))
    np.save(tmp_path / "labels.npy", np.zeros(7, np.uint8))
    return tmp_path


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("place", [0, 127, 128, blocks.BLOCK, 3 * blocks.BLOCK + 100])
def test_every_byte_counts(arrays: Path, place: int) -> None:
    known = blocks.write_hashes(arrays)
    blocks.verify(arrays, known, fix=FIX)
    flip(arrays / "images.npy", place)
    with pytest.raises(DataError, match=rf"images\.npy has changed.* byte {place // blocks.BLOCK * blocks.BLOCK} "):
        blocks.verify(arrays, known, fix=FIX)


def test_hashes_that_the_manifest_does_not_know_are_refused(arrays: Path) -> None:
    known = blocks.write_hashes(arrays)
    flip(arrays / "images.npy", 500)
    assert blocks.write_hashes(arrays) != known
    with pytest.raises(DataError, match=r"hashes\.json has changed"):
        blocks.verify(arrays, known, fix=FIX)


def changed(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


BAD_HASHES = r"hashes\.json is damaged"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda arrays: changed(arrays / "labels.npy", lambda content: content + b"0"), r"labels\.npy has changed"),
        (lambda arrays: changed(arrays / "labels.npy", lambda content: content[:-1]), r"labels\.npy has changed"),
        (lambda arrays: (arrays / blocks.FILE_NAME).unlink(), r"hashes\.json is missing"),
        (lambda arrays: (arrays / blocks.FILE_NAME).write_bytes(b""), BAD_HASHES),
        (lambda arrays: (arrays / blocks.FILE_NAME).write_bytes(b"[]"), BAD_HASHES),
        (lambda arrays: (arrays / blocks.FILE_NAME).write_bytes(b'{"block": 1, "files": {}}'), BAD_HASHES),
        (lambda arrays: (arrays / blocks.FILE_NAME).write_bytes(b'{"files": {}}'), BAD_HASHES),
        (lambda arrays: (arrays / blocks.FILE_NAME).write_bytes(b"\xff"), BAD_HASHES),
    ],
    ids=["grew", "shrank", "missing", "empty", "a list", "other blocks", "no blocks", "no text"],
)
def test_files_of_another_length_and_damaged_hashes_are_named(
    spoil: Callable[[Path], object], words: str, arrays: Path
) -> None:
    blocks.write_hashes(arrays)
    spoil(arrays)
    with pytest.raises(DataError, match=rf"{words}.*{FIX}"):
        blocks.verify(arrays, None, fix=FIX)


def test_of_a_long_file_another_part_is_verified_at_each_opening(arrays: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "CHECKED_AT_OPENING", 1)
    known = blocks.write_hashes(arrays)
    flip(arrays / "images.npy", blocks.BLOCK + 9)
    with pytest.raises(DataError, match="has changed"):
        blocks.verify(arrays, known, fix=FIX, full=True)
    noticed = 0
    for _ in range(100):
        try:
            blocks.verify(arrays, known, fix=FIX)
        except DataError:
            noticed += 1
    assert 5 < noticed < 60, "one of four blocks each time"


def test_a_site_with_changed_slices_does_not_train(site: Path) -> None:
    """20 kB of the cached images overwritten, shape and length unchanged."""
    open_arrays(site, matrix=16)
    before = manifest_sha256(site)
    for place in range(128, 2000):
        flip(site / "arrays" / "16" / "images.npy", place)
    assert manifest_sha256(site) == before
    with raises("arrays-changed", naming="16/images.npy"):
        open_arrays(site, matrix=16)
