"""One line of a report, how it is shown, and a limit to the time that a check may take."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.markup import escape

from fedshift.cli.display import console
from fedshift.schema.errors import FedshiftError
from fedshift.schema.names import printable

Level = Literal["ok", "note", "warning", "error"]
COLOURS: dict[Level, str] = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}
LIMIT = 5.0
"""Seconds for a check: a name server, a network drive or a driver may never answer."""


@dataclass(frozen=True)
class Remark:
    """One line of a report: an ``error`` must be mended, a ``note`` also says what could not be checked."""

    level: Level
    about: str
    text: str


def show(remarks: Iterable[Remark]) -> list[Remark]:
    """Print remarks as they come."""
    shown = []
    for remark in remarks:
        shown.append(remark)
        colour = COLOURS[remark.level]
        text = escape(printable(remark.text))
        console.print(f"  [{colour}]{remark.level:<8}[/{colour}]{remark.about + ':':<13}{text}")
    return shown


def any_error(remarks: Sequence[Remark]) -> bool:
    return any(remark.level == "error" for remark in remarks)


def within(about: str, check: Callable[[], Iterable[Remark]], *, limit: float = LIMIT) -> Iterator[Remark]:
    """The remarks of a check; those that came before an error or the end of its time, and then what happened."""
    remarks: list[Remark] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            for remark in check():
                remarks.append(remark)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run, name=f"check of {about}", daemon=True)
    thread.start()
    thread.join(limit)
    overdue = thread.is_alive()
    yield from list(remarks)
    if overdue:
        yield Remark("note", about, f"not checked to the end: there was no answer within {limit:g} s")
    for error in failed:
        if isinstance(error, FedshiftError):
            yield Remark("error", about, str(error))
        elif isinstance(error, ImportError):
            yield Remark("error", about, f"{error}: install fedshift again, as the runbook says in part 3")
        elif isinstance(error, OSError):
            yield Remark("note", about, f"not checked to the end: {error}")
        else:
            raise error
