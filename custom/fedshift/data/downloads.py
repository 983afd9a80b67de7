"""Read files and folders of a download or of an export; a failure raises an error that explains it."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from fedshift.schema.errors import DataError


def open_file(path: Path) -> IO[bytes]:
    """Open a file for reading bytes.

    Raises:
        DataError: the file does not exist or cannot be opened.
    """
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise DataError("file-missing", f"{path} does not exist: correct the path, or download it again") from None
    except OSError as error:
        raise unreadable(path, error) from None


def read_file(path: Path) -> bytes:
    """Read all bytes of a file.

    Raises:
        DataError: the file does not exist or cannot be read to its end.
    """
    with open_file(path) as stream:
        try:
            return stream.read()
        except OSError as error:
            raise unreadable(path, error) from None


def names_in(folder: Path) -> list[str]:
    """Names of all entries of a folder, sorted.

    Raises:
        DataError: the folder does not exist or cannot be read.
    """
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise unreadable(folder, error) from None


def unreadable(path: Path, error: OSError) -> DataError:
    """The error for a file or folder that the operating system does not let us read."""
    return DataError(
        "file-unreadable",
        f"{path} cannot be read ({error.strerror or error}): check that its disk is mounted and that you may read it",
    )


def reason(error: BaseException) -> str:
    """The first words of a library's error message, on one line; the error's type if the message is empty."""
    return " ".join(str(error).split()[:12]) or type(error).__name__
