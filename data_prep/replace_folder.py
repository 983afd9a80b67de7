"""Replace a folder atomically: write to a temporary folder in the same parent and rename it at the end."""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedshift.schema.errors import DataError

log = logging.getLogger(__name__)


@contextmanager
def replace_folder(target: Path) -> Iterator[Path]:
    """Yield an empty temporary folder that replaces ``target`` when the block ends without an error.

    An existing ``target`` stays unchanged until then, also if anything fails.

    Raises:
        DataError: the disk is full, or the folder cannot be written.
    """
    partial = target.parent / f".{target.name}.partial-{uuid.uuid4().hex[:8]}"
    try:
        partial.mkdir(parents=True)
        yield partial
        _swap(partial, target)
    except OSError as error:
        raise DataError(
            "folder-unwritable",
            f"{target} cannot be written ({error.strerror or error}): make room there or give another --out",
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _swap(partial: Path, target: Path) -> None:
    """Rename the finished folder to its final name; an existing one is removed only after that."""
    former = target.parent / f".{target.name}.former-{uuid.uuid4().hex[:8]}"
    if not target.exists():
        partial.rename(target)
        return
    target.rename(former)
    try:
        partial.rename(target)
    except OSError:
        former.rename(target)
        raise
    try:
        shutil.rmtree(former)
    except OSError as error:
        log.error("%s is out of date but cannot be removed (%s): delete it by hand", former, error.strerror)
