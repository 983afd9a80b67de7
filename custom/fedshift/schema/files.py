"""Text files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Put ``text``, which ends with a line's end, in place of what is at ``path``; until it is written that stays."""
    beside = path.with_name(f"{path.name}.partial-{os.getpid()}")
    beside.write_text(text.removesuffix("\n") + "\n", encoding="utf-8")
    beside.replace(path)
