"""Names that people choose and that end up in file names, tables, metadata and web pages."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

MAX_LENGTH = 64
_PLAIN = re.compile(r"\w[\w +.()/'-]*")


def _plain(name: str) -> str:
    if len(name) > MAX_LENGTH or not _PLAIN.fullmatch(name) or name != name.strip():
        raise ValueError(
            f"{name[:MAX_LENGTH]!r} cannot be the name of a class: it begins with a letter or a digit, has letters, "
            f"digits, spaces and _ + . ( ) / ' -, and at most {MAX_LENGTH} characters"
        )
    return name


ClassName = Annotated[str, AfterValidator(_plain)]
"""Name of a class. It never begins with a character that MONAI, a spreadsheet or a shell would act upon."""
