"""What is taken from the header of a scan's file beside what ITK takes from it."""

from __future__ import annotations

from dataclasses import dataclass

from fedshift.schema.reading import Reading


@dataclass(frozen=True)
class Unclear:
    """``what`` a header leaves unclear, what is ``used``, and what whoever prepares the file does (``mend``)."""

    code: str
    what: str
    used: str
    mend: str
    is_twofold: bool = True
    """Whether the header says it twice, rather than not at all."""


@dataclass(frozen=True)
class FileHeader:
    """The record of a file, mm in one of its units along x, y and z of its world, and what it leaves unclear."""

    reading: Reading
    to_mm: tuple[float, ...] = (1.0, 1.0, 1.0)
    unclear: tuple[Unclear, ...] = ()
