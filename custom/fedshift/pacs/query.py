"""What is asked of a PACS: ``StudyDate=20240101-20240630``, ``Modality=MR``, ``SeriesDescription=t2*``.

Servers may pass over a key that they do not know (PS3.18, 8.3.4) and then answer with more than was asked, so what they
say of a study or series is compared again.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, MutableSequence
from dataclasses import dataclass, field
from typing import Any

from fedshift.schema.errors import ConfigError
from fedshift.schema.strict import nearest

OF_STUDY = (
    *("StudyDate", "StudyDescription", "StudyInstanceUID", "AccessionNumber", "StudyID", "ModalitiesInStudy"),
    *("PatientID", "PatientName", "PatientSex", "PatientBirthDate"),
)
OF_SERIES = (
    *("Modality", "SeriesDescription", "SeriesInstanceUID", "SeriesNumber", "SeriesDate", "BodyPartExamined"),
    *("ProtocolName", "Manufacturer", "ManufacturerModelName", "StationName", "InstitutionName"),
)
DATES = frozenset({"StudyDate", "PatientBirthDate", "SeriesDate"})
UIDS = frozenset({"StudyInstanceUID", "SeriesInstanceUID"})
_UID = re.compile(r"[0-9][0-9.]{0,63}")
_RANGE = re.compile(r"(\d{8})?(-?)(\d{8})?")


@dataclass(frozen=True)
class Query:
    """Keys of studies and of series, by their keywords in DICOM, with the value of each."""

    study: Mapping[str, str]
    series: Mapping[str, str]
    sequences: Mapping[str, str] = field(default_factory=dict)
    """Name of a sequence -> what its series are described as, of which a study must have one each; empty for any."""

    @property
    def asked_of_studies(self) -> dict[str, str]:
        """What studies are searched by: also their modalities, so that not every study is looked into."""
        modality = self.series.get("Modality")
        known = {} if modality is None or "ModalitiesInStudy" in self.study else {"ModalitiesInStudy": modality}
        return {**self.study, **known}

    def sequence_of(self, description: str) -> str | None:
        """The sequence that a series is, by its description; None if it is none, or if any will do."""
        return next((name for name, text in self.sequences.items() if _fits(text, description)), None)

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in {**self.study, **self.series}.items())


def parse_query(words: Iterable[str], sequences: Iterable[str] = (), *, all_if_none: bool = False) -> Query:
    """The query that a command line has, a ``KEYWORD=VALUE`` for each word.

    Args:
        words: the keys and values.
        sequences: ``NAME=DESCRIPTION`` of each that a study must have, with wildcards.
        all_if_none: whether all is meant where there are no words.

    Raises:
        ConfigError: a keyword that cannot be asked for, twice one, or a value that it cannot have.
    """
    known: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        value = value.strip()
        if key not in (*OF_STUDY, *OF_SERIES):
            raise ConfigError("query-key", f"--query: unknown key {key!r}{nearest(key, (*OF_STUDY, *OF_SERIES))}")
        if not equals or not value:
            raise ConfigError("query-value", f"--query {key} has no value: write {key}=VALUE, or leave it out")
        if key in known:
            raise ConfigError("query-value", f"--query has {key} twice: give it once, or fetch twice into one folder")
        _check(key, value)
        known[key] = value
    if not known and not all_if_none:
        raise ConfigError("query-value", "--query asks for nothing: give keys, such as StudyDate=20240101-20240630")
    study = {key: value for key, value in known.items() if key in OF_STUDY}
    series = {key: value for key, value in known.items() if key in OF_SERIES}
    return Query(study, series, _sequences(sequences))


def _sequences(words: Iterable[str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for word in words:
        name, _, text = word.partition("=")
        if not re.fullmatch(r"\w[\w+-]*", name) or not text.strip() or name in named:
            raise ConfigError(
                "query-value",
                f"--sequence {word!r}: write a name, once for each sequence, and the description of its series, "
                "such as 'T2=t2_tse*'",
            )
        named[name] = text.strip()
    return named


def _check(key: str, value: str) -> None:
    if key in DATES and not _is_range(value):
        example = f"{key}=20240101, {key}=20240101-20240630 or {key}=20240101-"
        raise ConfigError("query-value", f"--query {key}: {value!r} is no date or range of dates: write {example}")
    if key in UIDS and not _UID.fullmatch(value):
        raise ConfigError("query-value", f"--query {key}: {value!r} is no UID, which has digits and dots alone")
    if key == "SeriesNumber" and not value.isdecimal():
        raise ConfigError("query-value", f"--query SeriesNumber: {value!r} is no number")
    if not value.isprintable() or "\\" in value:
        raise ConfigError("query-value", f"--query {key}: {value!r} has characters that a value of DICOM cannot have")


def _is_range(value: str) -> bool:
    match = _RANGE.fullmatch(value)
    if match is None or not (match[1] or match[3]) or (match[3] and not match[2]):
        return False
    try:
        for day in filter(None, (match[1], match[3])):
            datetime.datetime.strptime(day, "%Y%m%d")
    except ValueError:
        return False
    return (match[1] or "0") <= (match[3] or "9")


def contradicted(wanted: Mapping[str, str], dataset: Any) -> str | None:
    """The first key that what a PACS says of a study or series does not fulfil; None if it fulfils all that it names.

    Args:
        wanted: keys and values of a query.
        dataset: a pydicom data set: an answer to a search, which may lack keys, or an image.
    """
    for key, value in wanted.items():
        if key in dataset and not _fulfils(key, value, dataset[key].value):
            return key
    return None


def _fulfils(key: str, wanted: str, value: Any) -> bool:
    values = value if isinstance(value, MutableSequence) else [value]
    texts = ["" if each is None else str(each).strip() for each in values]
    if key in DATES:
        first, dash, last = wanted.partition("-")
        return any(text and (first or "0") <= text <= ((last or "9") if dash else first) for text in texts)
    if key == "SeriesNumber":
        return any(text.isdecimal() and int(text) == int(wanted) for text in texts)
    return any(_fits(wanted, text) for text in texts)


def _fits(wanted: str, text: str) -> bool:
    """Whether a text is as wildcards have it. Servers differ in whether capitals count; here they do not."""
    pattern = "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in wanted)
    return re.fullmatch(pattern, text, re.IGNORECASE | re.DOTALL) is not None
