"""A file that comes in pieces: in order, repeated, cut, after a restart, and another than announced."""

from __future__ import annotations

import errno
import hashlib
import resource
from pathlib import Path

import pytest

from flare_armour.pieces.array_files import FileOf
from flare_armour.pieces.held_file import HeldFile, WrongDigestError

CONTENT = bytes(range(256)) * 40
FILE = FileOf(hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


def test_pieces_count_in_order_and_once(tmp_path: Path) -> None:
    held = HeldFile(tmp_path, FILE)
    assert not held.add(100, CONTENT[100:200]), "too soon"
    assert held.add(0, CONTENT[:100]) and held.add(100, CONTENT[100:250])
    assert not held.add(100, CONTENT[100:250]), "repeated"
    assert not held.add(250, b""), "nothing"
    assert not held.add(250, CONTENT), "longer than the file"
    assert held.held == 250 and not held.whole
    assert held.add(250, CONTENT[250:]) and held.whole
    assert held.path.read_bytes() == CONTENT


def test_another_process_goes_on_where_this_one_ended(tmp_path: Path) -> None:
    HeldFile(tmp_path, FILE).add(0, CONTENT[:300])
    held = HeldFile(tmp_path, FILE)
    assert held.held == 300
    assert held.add(300, CONTENT[300:]) and held.whole
    assert HeldFile(tmp_path, FILE).whole, "and knows that it is whole"


def test_a_file_that_is_another_than_announced_is_deleted(tmp_path: Path) -> None:
    held = HeldFile(tmp_path, FILE)
    held.add(0, CONTENT[:-1])
    with pytest.raises(WrongDigestError):
        held.add(len(CONTENT) - 1, b"?")
    assert held.held == 0 and not held.path.read_bytes()
    assert held.add(0, CONTENT) and held.whole


def test_what_was_changed_on_disk_between_two_processes_begins_again(tmp_path: Path) -> None:
    held = HeldFile(tmp_path, FILE)
    held.add(0, CONTENT)
    held.path.write_bytes(CONTENT[:-1] + b"?")
    assert HeldFile(tmp_path, FILE).held == 0
    held.path.write_bytes(CONTENT + b"more")
    assert HeldFile(tmp_path, FILE).held == 0


def test_a_folder_has_one_file(tmp_path: Path) -> None:
    HeldFile(tmp_path, FILE).add(0, CONTENT[:300])
    HeldFile(tmp_path, FileOf("0" * 64, 5))
    assert [path.name for path in tmp_path.iterdir()] == ["0" * 64]


def test_a_full_disk_loses_nothing_that_was_held(tmp_path: Path) -> None:
    held = HeldFile(tmp_path, FILE)
    held.add(0, CONTENT[:4096])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        with pytest.raises(OSError) as raised:
            held.add(4096, CONTENT[4096:])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.errno == errno.EFBIG
    assert held.held == 4096 == held.path.stat().st_size
    assert held.add(4096, CONTENT[4096:]) and held.whole
