"""The two requests that a site makes to the server's process of the same job. Both are answered at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flare_armour.pieces.array_files import FileOf

CHANNEL = "armour_pieces"
SEND, FETCH = "send", "fetch"
"""Topics: here is a piece of my answer; give me a piece of the task."""
MOST = 4 * 1024 * 1024
"""Bytes of a piece."""
LEAST = 256 * 1024
TOGETHER = 16 * 1024 * 1024
"""Bytes of one piece of each of a job's clients, as each is in the server's memory for a moment."""


def piece_size(clients: int) -> int:
    """Bytes of a piece in a job with so many clients."""
    return max(LEAST, min(MOST, TOGETHER // clients))


@dataclass(frozen=True)
class Ask:
    """A request. With `SEND`, ``piece`` begins at ``offset`` and may be empty, to ask what the server holds.

    With `FETCH`, ``length`` bytes from ``offset`` on are asked for.
    """

    file: FileOf
    offset: int
    piece: bytes = b""
    length: int = 0

    def encode(self) -> dict[str, Any]:
        content = {"sha256": self.file.sha256, "size": self.file.size, "offset": self.offset}
        return content | ({"length": self.length} if self.length else {"piece": self.piece})

    @classmethod
    def decode(cls, content: object) -> Ask | None:
        """None for what is no request."""
        if not isinstance(content, dict):
            return None
        file = FileOf.parse(content.get("sha256"), content.get("size"))
        offset, piece, length = content.get("offset"), content.get("piece", b""), content.get("length", 0)
        if file is None or type(piece) is not bytes or len(piece) > MOST:
            return None
        if not all(type(value) is int and 0 <= value <= most for value, most in ((offset, file.size), (length, MOST))):
            return None
        assert isinstance(offset, int)
        return cls(file, offset, piece, length)


@dataclass(frozen=True)
class Reply:
    """The server's answer. ``closed``: it does not want the file, or has it no more; the site gives it up.

    ``held`` is what the server has of an answer, ``piece`` what it gives of a task.
    """

    closed: bool = False
    held: int = 0
    piece: bytes = b""

    def encode(self) -> dict[str, Any]:
        return {"closed": self.closed, "held": self.held, "piece": self.piece}

    @classmethod
    def decode(cls, content: object) -> Reply | None:
        """None for what is no answer."""
        if not isinstance(content, dict):
            return None
        closed, held, piece = content.get("closed"), content.get("held"), content.get("piece")
        if type(closed) is not bool or type(held) is not int or held < 0 or type(piece) is not bytes:
            return None
        return cls(closed, held, piece)
