"""A text file is replaced as one, or stays as it was."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fedshift.schema.files import write_text


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
