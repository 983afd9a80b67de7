"""The receiving end of a file that comes in pieces, in order."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from flare_armour.pieces.array_files import FileOf

READ = 1024 * 1024
"""Bytes that are read at a time."""


class WrongDigestError(Exception):
    """A file has come to its end and is another than was announced. It has been deleted."""


class HeldFile:
    """What has come of a file. It is on disk: another process goes on where this one ended."""

    def __init__(self, folder: Path, file: FileOf) -> None:
        """Find what earlier processes have received of ``file`` in ``folder``, and delete what there is of others.

        Raises:
            OSError: the folder cannot be used.
        """
        self.file = file
        self.path = folder / file.sha256
        folder.mkdir(parents=True, exist_ok=True)
        for other in folder.iterdir():
            if other != self.path:
                other.unlink()
        self.path.touch()
        self._digest = hashlib.sha256()
        self.held = 0
        """Bytes that have come, from the beginning."""
        with self.path.open("rb") as opened:
            while piece := opened.read(READ):
                self._digest.update(piece)
                self.held += len(piece)
        if self.held > file.size or (self.held == file.size and not self._is_right()):
            self._begin_again()

    @property
    def whole(self) -> bool:
        """Whether all of it has come; its digest is then right."""
        return self.held == self.file.size

    def add(self, offset: int, piece: bytes) -> bool:
        """Take a piece if it is the next one; whether it was. Repeated pieces, and those that come too soon, are not.

        Raises:
            OSError: it cannot be written; what was held before still is.
            WrongDigestError: it was the last one, and the file is not the one that was announced.
        """
        if offset != self.held or not piece or offset + len(piece) > self.file.size:
            return False
        try:
            with self.path.open("r+b") as opened:
                opened.seek(offset)
                opened.write(piece)
        except OSError:
            os.truncate(self.path, self.held)
            raise
        self._digest.update(piece)
        self.held += len(piece)
        if self.whole and not self._is_right():
            self._begin_again()
            raise WrongDigestError(f"{self.file.size} bytes have come, and their digest is not {self.file.sha256}")
        return True

    def _is_right(self) -> bool:
        return self._digest.hexdigest() == self.file.sha256

    def _begin_again(self) -> None:
        os.truncate(self.path, 0)
        self._digest, self.held = hashlib.sha256(), 0
