"""Atomic writing of files."""

from __future__ import annotations

import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Replace the file at ``path`` by ``text`` (ending with one newline); if writing fails it stays as it was."""
    beside = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        beside.write_text(text.removesuffix("\n") + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)  # on a full disk it would stay in the way
        raise


def write_private(path: Path, content: bytes) -> None:
    """Replace a file that only its owner may read; it is on disk when this returns. Its folder is created if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.partial")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the names of new files on disk too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
