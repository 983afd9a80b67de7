"""A text file is replaced as one, or stays as it was."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fedshift.schema.files import write_private, write_text


def test_a_file_ends_with_one_newline_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    for text in ("{}", "{}\n"):
        write_text(tmp_path / "results.json", text)
        assert (tmp_path / "results.json").read_bytes() == b"{}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "results.json", "before")
    write = Path.write_text

    def full(path: Path, text: str, **options: str) -> int:
        write(path, text[:3], **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError) as raised:
        write_text(tmp_path / "results.json", "after this")
    assert raised.value.errno == errno.ENOSPC
    assert (tmp_path / "results.json").read_text(encoding="utf-8") == "before\n"


def test_a_private_file_and_its_name_are_on_disk_when_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced, sync = tmp_path / "new" / "answered.json", [], os.fsync

    def spy(handle: int) -> None:
        synced.append((os.fstat(handle).st_ino, path.exists()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", spy)
    write_private(path, b"{}")
    assert path.read_bytes() == b"{}" and path.stat().st_mode & 0o777 == 0o600
    assert synced == [(path.stat().st_ino, False), (path.parent.stat().st_ino, True)], "the folder after the renaming"
