"""A byte of a cached array that changes is noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

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


def test_a_file_that_grew_or_shrank_is_noticed(arrays: Path) -> None:
    blocks.write_hashes(arrays)
    for change in (lambda content: content + b"0", lambda content: content[:-1]):
        content = (arrays / "labels.npy").read_bytes()
        (arrays / "labels.npy").write_bytes(change(content))
        with pytest.raises(DataError, match=r"labels\.npy has changed"):
            blocks.verify(arrays, None, fix=FIX)
        (arrays / "labels.npy").write_bytes(content)


def test_hashes_that_the_manifest_does_not_know_are_refused(arrays: Path) -> None:
    known = blocks.write_hashes(arrays)
    flip(arrays / "images.npy", 500)
    assert blocks.write_hashes(arrays) != known
    with pytest.raises(DataError, match=r"hashes\.json has changed since the site was prepared"):
        blocks.verify(arrays, known, fix=FIX)


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"block": 1, "files": {}}', b'{"files": {}}', b"\xff"])
def test_missing_or_damaged_hashes_are_named(arrays: Path, content: bytes | None) -> None:
    blocks.write_hashes(arrays)
    if content is None:
        (arrays / blocks.FILE_NAME).unlink()
    else:
        (arrays / blocks.FILE_NAME).write_bytes(content)
    with pytest.raises(DataError, match=rf"hashes\.json is (missing|damaged).*{FIX}"):
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
    with pytest.raises(DataError, match=r"16/images\.npy has changed since it was written.*will be rebuilt"):
        open_arrays(site, matrix=16)
