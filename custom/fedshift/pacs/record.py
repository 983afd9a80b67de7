"""``fetched.json``: which series of a PACS are in a folder, and what was left out, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

import fedshift
from fedshift.schema.errors import DataError
from fedshift.schema.files import write_text
from fedshift.schema.strict import Strict, first_fault

FILE = "fetched.json"


class FetchedSeries(Strict):
    """A series that is whole in a folder."""

    study: str
    series: str
    modality: str
    description: str
    folder: str
    """Within that of the record: a case's, and the series' in it."""
    files: int
    files_sha256: str
    """Of the sorted UIDs of its files, a line each."""


class NotFetched(Strict):
    """A series or, where none is named, a study that is not there, and why."""

    study: str
    series: str | None = None
    reason: str


class FetchRecord(Strict):
    """What is in a folder of ``fedshift data fetch``; ``left_out`` and ``failed`` are of the last call."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    fedshift: str = fedshift.__version__
    pacs: str
    query: dict[str, str]
    fetched: tuple[FetchedSeries, ...] = ()
    left_out: tuple[NotFetched, ...] = ()
    failed: tuple[NotFetched, ...] = ()


def read_record(folder: Path) -> FetchRecord | None:
    """The record of a folder; None if it has none.

    Raises:
        DataError: it cannot be read.
    """
    path = folder / FILE
    try:
        return FetchRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        message = f"{path} is damaged ({first_fault(error)}): fetch into another folder"
        raise DataError("record-damaged", message) from None


def write_record(record: FetchRecord, folder: Path) -> None:
    write_text(folder / FILE, record.model_dump_json(indent=1, by_alias=True))
