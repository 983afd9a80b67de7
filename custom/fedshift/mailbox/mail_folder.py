"""The shared folder, which some carrier synchronises: one folder for each party, in which nobody else writes.

::

    MAIL/fl.example.org/card.json                                 who the coordinator is
    MAIL/fl.example.org/HK.000007.letter                          its seventh letter to HK
    MAIL/fl.example.org/9f…c2.0001-of-0003.piece                  a part of a message
    MAIL/HK/fl.example.org.000007.letter                          HK's seventh letter

Pieces are written before the letter that names them, each under a name that begins with a dot and renamed when it is
whole. A carrier may do the same or not: what is not whole is waited for. What is none of ours is named and left alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedshift.mailbox.letter import LONGEST
from fedshift.schema.errors import ConfigError
from fedshift.schema.names import one_line

CARD = "card.json"
_LETTER = re.compile(r"(?P<reader>[A-Za-z0-9_][A-Za-z0-9_.-]*)\.(?P<sequence>\d{6,9})\.letter")
_PIECE = re.compile(r"[0-9a-f]{32}\.\d{4}-of-\d{4}\.piece")
_UNFINISHED = re.compile(
    r"\..*|~.*|.*~|.*\.(partial|part|tmp|temp|crdownload|filepart|download|!sync|swp)|Thumbs\.db|desktop\.ini",
    re.IGNORECASE,
)
"""Names that synchronising clients and file managers give to what they are still writing, or keep for themselves."""
_CONFLICT = re.compile(
    r".*("
    r"conflicted copy|conflict copy|\(SFConflict|\.sync-conflict-|_conflict-\d|\[Conflict|"
    r" \(\d+\)|\d -? ?Copy|- Copy|"  # Google Drive, Windows
    r"-[A-Za-z0-9]+([-_][A-Za-z0-9]+)*\.(letter|piece|json)$|"  # OneDrive appends the computer's name
    r"(letter|piece|json) \d+$| \d+\.(letter|piece|json)$"  # iCloud
    r").*",
    re.IGNORECASE,
)
MOST_NOTED = 5
"""Strange files of a kind that are named one by one."""


def letter_name(reader: str, sequence: int) -> str:
    return f"{reader}.{sequence:06d}.letter"


@dataclass(frozen=True)
class Strange:
    """Files in a party's folder that are none of ours."""

    conflicts: list[str]
    others: list[str]

    def notes(self, party: str) -> Iterator[str]:
        if self.conflicts:
            yield (
                f"in the folder of {party} are conflict copies, which a synchronising client makes when two wrote one "
                f"file: {_few(self.conflicts)}; they are not read. Only {party} may write there: see who else does"
            )
        if self.others:
            strange = _few(self.others)
            yield f"in the folder of {party} are files that are not of this federation: {strange}; they are not read"


class MailFolder:
    """The shared folder as one party uses it."""

    def __init__(self, root: Path, name: str) -> None:
        """``name`` is the party's."""
        self.root, self._own_name = root, name
        self._placed: dict[str, tuple[int, int, int]] = {}
        """What was written or compared in this process: name -> size, time and number of the file."""

    @property
    def own_folder(self) -> Path:
        """The folder in which this party writes."""
        return self.root / self._own_name

    def require(self) -> None:
        """See that the folder is there, as a carrier that is not connected leaves none.

        Raises:
            ConfigError: it is not, or cannot be written.
        """
        if not self.root.is_dir():
            raise ConfigError(
                "mail-missing",
                f"{self.root}, the shared folder, is not there: see that its drive is connected, or that the client "
                "which synchronises it runs",
            )
        try:
            self.own_folder.mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigError(
                "folder-unwritable",
                f"{self.own_folder} cannot be made ({error.strerror}): see to the carrier's permissions",
            ) from None

    # --- reading ----------------------------------------------------------------------------------

    def names(self, party: str) -> list[str]:
        """Names in a party's folder; none if it is not there yet."""
        try:
            return sorted(path.name for path in (self.root / party).iterdir())
        except OSError:
            return []

    def card(self, party: str) -> bytes | None:
        return self.read(party, CARD)

    def read(self, party: str, name: str) -> bytes | None:
        """A card or a letter; None if it is not there, or cannot be read now."""
        try:
            with (self.root / party / name).open("rb") as file:
                return file.read(LONGEST + 1)[:LONGEST]
        except OSError:
            return None

    def letters(self, party: str, reader: str) -> dict[int, str]:
        """The letters of a party to a reader: number -> name."""
        matches = ((name, _LETTER.fullmatch(name)) for name in self.names(party))
        names = {int(m["sequence"]): name for name, m in matches if m is not None and m["reader"] == reader}
        return {sequence: name for sequence, name in names.items() if name == letter_name(reader, sequence)}

    def strange(self, party: str) -> Strange:
        """What is in a party's folder and none of ours."""
        others = [name for name in self.names(party) if not _is_ours(name) and not _UNFINISHED.fullmatch(name)]
        conflicts = [name for name in others if _CONFLICT.fullmatch(name)]
        return Strange(conflicts, [name for name in others if name not in conflicts])

    # --- writing ----------------------------------------------------------------------------------

    def place(self, name: str, content: bytes) -> bool:
        """See that a small file is in the party's own folder as it should be; whether it had to be written."""
        return self._place(
            name, len(content), hashlib.sha256(content).hexdigest(), lambda path: path.write_bytes(content)
        )

    def place_copy(self, source: Path, sha256: str) -> bool:
        """The same of a copy of a file."""
        return self._place(source.name, source.stat().st_size, sha256, lambda path: _copy(source, path))

    def _place(self, name: str, size: int, sha256: str, write: Callable[[Path], object]) -> bool:
        path = self.own_folder / name
        stamp = _stamp(path)
        if stamp is not None and stamp == self._placed.get(name):
            return False
        if stamp is not None and stamp[0] == size and _sha256(path) == sha256:
            self._placed[name] = stamp
            return False
        partial = path.with_name(f".{name}.partial")
        try:
            write(partial)
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise ConfigError(
                "mail-unwritable",
                f"{path} cannot be written ({error.strerror}): see to the shared folder's space and permissions; "
                "nothing is lost, and the next step writes it",
            ) from None
        stamp = _stamp(path)
        if stamp is not None:
            self._placed[name] = stamp
        return True

    def remove_all_but(self, kept: set[str]) -> None:
        """Delete letters and pieces in the party's own folder that are no longer needed; no other files."""
        for name in self.names(self._own_name):
            if name not in kept and (_LETTER.fullmatch(name) or _PIECE.fullmatch(name)):
                (self.own_folder / name).unlink(missing_ok=True)
                self._placed.pop(name, None)


def _is_ours(name: str) -> bool:
    return name == CARD or bool(_LETTER.fullmatch(name) or _PIECE.fullmatch(name))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy(source: Path, target: Path) -> None:
    """Copy a file piece by piece. A carrier's folder may be on a network drive: nothing but the bytes is copied."""
    with source.open("rb") as file, target.open("wb") as copy:
        while part := file.read(1 << 20):
            copy.write(part)


def _few(names: list[str]) -> str:
    shown = ", ".join(one_line(name) for name in names[:MOST_NOTED])
    return shown + (f" and {len(names) - MOST_NOTED} more" if len(names) > MOST_NOTED else "")
