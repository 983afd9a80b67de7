"""The studies that a watcher has seen, each a file: whether it waits, is done, or has failed and why.

A study still arrives while two looks at the PACS find different images. One that is done or has failed waits again
when the PACS has other images of it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pydantic import ValidationError

from fedshift.pacs.archive import Archive
from fedshift.pacs.fetch import find
from fedshift.pacs.query import Query
from fedshift.schema.errors import DataError
from fedshift.schema.files import write_text
from fedshift.schema.strict import Strict, first_fault

State = Literal["arriving", "waiting", "done", "failed"]
STATES: tuple[State, ...] = get_args(State)
MOST_STARTS = 2
"""After so many starts that the process did not survive, a study has failed: it could end every further one."""


class StudyContent(NamedTuple):
    """What a look found of a study: what its images are known by, and how many files it has, if the PACS says so."""

    images: str
    files: int | None


class Entry(Strict):
    """A study. ``images`` and ``files``: as of `StudyContent`, by the last look; ``number``: its place in the order."""

    study: str
    number: int
    images: str
    files: int | None
    state: State = "arriving"
    starts: int = 0
    error: str | None = None


class Queue:
    """Entries in a folder. One process at a time may change it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._entries = {entry.study: entry for entry in map(_read, sorted(folder.glob("*.json")))}

    def look(self, archive: Archive, query: Query) -> None:
        """Look for the studies that fulfil a query, and take note of what has changed."""
        for study, content in _look(archive, query, self._is_settled):
            known = self._entries.get(study)
            if known is None or known.images != content.images:
                last = max((entry.number for entry in self._entries.values()), default=0)
                number = last + 1 if known is None else known.number
                self._write(Entry(study=study, number=number, images=content.images, files=content.files))
            elif known.state == "arriving":
                self._write(known.model_copy(update={"state": "waiting", "files": content.files}))
            elif known.files != content.files:  # results have come to it
                self._write(known.model_copy(update={"files": content.files}))

    def _is_settled(self, answer: Any) -> bool:
        """Whether a study need not be looked into: it was worked on, and has as many files as it had then."""
        known = self._entries.get(str(answer.StudyInstanceUID))
        return known is not None and known.state in ("done", "failed") and known.files == _files(answer) is not None

    def start(self) -> Entry | None:
        """The next study that waits, which counts as started; None if none waits."""
        waiting = (entry for entry in self._entries.values() if entry.state == "waiting")
        for entry in sorted(waiting, key=lambda entry: entry.number):
            if entry.starts < MOST_STARTS:
                return self._write(entry.model_copy(update={"starts": entry.starts + 1}))
            reason = f"the process has ended {MOST_STARTS} times at work on it, as when memory runs out"
            self.finish(entry, error=f"study {entry.study}: {reason}: see its log, and repeat it with --retry")
        return None

    def finish(self, entry: Entry, *, error: str | None = None) -> None:
        """A study is done, or has failed."""
        state = "done" if error is None else "failed"
        self._write(entry.model_copy(update={"state": state, "error": error, "starts": 0}))

    def put_back(self, entry: Entry) -> None:
        """A study waits on, for no reason of its own."""
        self._write(entry.model_copy(update={"starts": 0}))

    def retry(self) -> None:
        """Have all that failed wait again."""
        for entry in list(self._entries.values()):
            if entry.state == "failed":
                self._write(entry.model_copy(update={"state": "waiting", "error": None}))

    @property
    def unsettled(self) -> set[str]:
        """The studies that are still to be worked on, or may be once more."""
        return {entry.study for entry in self._entries.values() if entry.state != "done"}

    @property
    def counts(self) -> Counter[str]:
        """How many studies are in which state."""
        return Counter(entry.state for entry in self._entries.values())

    def _write(self, entry: Entry) -> Entry:
        write_text(self._folder / f"{entry.study}.json", entry.model_dump_json(indent=1))
        self._entries[entry.study] = entry
        return entry


def _read(path: Path) -> Entry:
    try:
        return Entry.model_validate_json(path.read_bytes())
    except ValidationError as error:
        message = f"{path} is damaged ({first_fault(error)}): remove it, and the study is looked for again"
        raise DataError("record-damaged", message) from None


def _look(archive: Archive, query: Query, skip: Callable[[Any], bool]) -> Iterator[tuple[str, StudyContent]]:
    """The studies that fulfil a query, but for those that need not be looked into."""
    for study in find(archive, query, skip=skip):
        counts = []
        for series in study.scans:
            uid, count = str(series.SeriesInstanceUID), series.get("NumberOfSeriesRelatedInstances")
            counts.append((uid, len(archive.instances(study.uid, uid)) if count is None else int(count)))
        images = hashlib.sha256(repr(sorted(counts)).encode()).hexdigest()
        yield study.uid, StudyContent(images, _files(study.answer))


def _files(answer: Any) -> int | None:
    count = answer.get("NumberOfStudyRelatedInstances")
    return None if count is None else int(count)
