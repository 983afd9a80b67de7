"""Atomic writing of text files."""

from __future__ import annotations

import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Replace the file at ``path`` by ``text`` (with one newline at its end), or leave it as it was if writing fails."""
    beside = path.with_name(f"{path.name}.partial-{os.getpid()}")
    beside.write_text(text.removesuffix("\n") + "\n", encoding="utf-8")
    beside.replace(path)
