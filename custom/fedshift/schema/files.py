"""Atomic writing of text files."""

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
