"""Names and texts that others choose and that end up in logs, file names, tables, metadata and web pages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

MAX_LENGTH = 64
MOST_TEXT, MOST_LINE = 300, 2000
"""Characters that are kept of a text from another party, and that a line of a record may have."""
_PLAIN = re.compile(r"\w[\w +.()/'-]*")


def _plain(name: str) -> str:
    if len(name) > MAX_LENGTH or not _PLAIN.fullmatch(name) or name != name.strip():
        raise ValueError(
            f"{name[:MAX_LENGTH]!r} cannot be the name of a class: it begins with a letter or a digit, has letters, "
            f"digits, spaces and _ + . ( ) / ' -, and at most {MAX_LENGTH} characters"
        )
    return name


def one_line(text: object) -> str:
    """Text from elsewhere in one short line: without control characters, cut to `MOST_TEXT` characters.

    What begins a new line could pass for an entry of a log, and what begins with the escape character changes a
    terminal. Format characters, which reverse the direction of writing, are not printable either.
    """
    shown = "".join(c if c.isprintable() else " " for c in str(text)[:MOST_TEXT])
    return " ".join(shown.split())


def comma_separated(text: str) -> list[str]:
    """The names in ``A,B``, for options of the command line."""
    return [name.strip() for name in text.split(",") if name.strip()]


def few_names(names: Sequence[str], *, most: int = 6) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def also_in(what: str, names: Sequence[str]) -> str:
    """The end of a sentence that holds of others too: ``; the same in 2 more file(s), a, b``; nothing without any."""
    return f"; the same in {len(names)} more {what}, {few_names(names)}" if names else ""


def printable(text: str) -> str:
    """Text with its control and format characters written out as escapes; tabs and new lines stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _written_out(c) for c in text)


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _is_one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed")
    return text


def _stratum(text: str) -> str:
    if not text.isprintable() or text != text.strip() or not 0 < len(text) <= MAX_LENGTH:
        raise ValueError(
            f"{text[:MAX_LENGTH]!r} is no value of a stratum: write 1 to {MAX_LENGTH} printable characters"
        )
    return text


Line = Annotated[str, Field(max_length=MOST_LINE), AfterValidator(_is_one_line)]
"""One short line of printable characters."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=128)]
"""Name of a job, task, data set or site. It is also used as a folder name."""

ClassName = Annotated[str, AfterValidator(_plain)]
"""Name of a class. It never begins with a character that MONAI, a spreadsheet or a shell would act upon."""

Stratum = Annotated[str, AfterValidator(_stratum)]
"""A value by which cases are grouped, such as ``3T`` or ``60-69``."""
