"""Chapters that packages beside the core make of their own records, found by the entry points ``fedshift.chapters``."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from fedshift.reporting.report.section import Chapter
from fedshift.schema.identity import parts_of_satellites


class ChapterSource(Protocol):
    """What the module of an entry point has."""

    def recognises(self, path: Path) -> bool:
        """Whether a folder or file is a record of this kind."""

    def read_chapter(self, path: Path) -> Chapter:
        """The chapter of such a record. The ids of its sections and figures need to be unique within it only.

        Raises:
            ConfigError: the record is damaged, or of another version.
        """


def chapter_of(path: Path) -> Chapter | None:
    """The chapter of a folder or file that a package beside the core recognises; None if none does."""
    sources: list[ChapterSource] = parts_of_satellites("fedshift.chapters")
    for source in sources:
        if source.recognises(path):
            return source.read_chapter(path)
    return None
