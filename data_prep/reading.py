"""Files and folders of a download; what may not be read gets a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from fedshift.schema.errors import DataError


def open_file(path: Path) -> IO[bytes]:
    """A file for reading bytes.

    Raises:
        DataError: absent, or it may not be read.
    """
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise DataError(f"{path} does not exist: download it again") from None
    except OSError as error:
        raise unreadable(path, error) from None


def read_file(path: Path) -> bytes:
    """All bytes of a file.

    Raises:
        DataError: absent, or it cannot be read to its end.
    """
    with open_file(path) as stream:
        try:
            return stream.read()
        except OSError as error:
            raise unreadable(path, error) from None


def names_in(folder: Path) -> list[str]:
    """Names of all that is in a folder, sorted.

    Raises:
        DataError: no folder, or it may not be read.
    """
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise unreadable(folder, error) from None


def unreadable(path: Path, error: OSError) -> DataError:
    """The sentence for what the system does not let us read."""
    return DataError(
        f"{path} cannot be read ({error.strerror or error}): see that its disk is there and you may read it"
    )


def reason(error: BaseException) -> str:
    """What a library says of a damaged file, in a line; its kind where it says nothing."""
    return " ".join(str(error).split()[:12]) or type(error).__name__
