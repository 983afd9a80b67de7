"""A PACS: what is asked of it, and its answers, each of which is what was asked for or an error that says why not.

An `Archive` asks by a `Carrier`, which knows how a request travels and nothing of what its answer should be.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedshift.data.dicom_objects import UNREADABLE, quiet
from fedshift.pacs.query import Query, contradicted
from fedshift.schema.errors import DataError

UID = re.compile(r"[0-9][0-9.]{0,63}")
UNREACHABLE, CREDENTIALS, REJECTED = "pacs-unreachable", "pacs-credentials", "pacs-rejected"
FATAL = (UNREACHABLE, CREDENTIALS, REJECTED)
"""Codes of errors after which asking on is of no use."""
ANSWER, REFUSED = "pacs-answer", "pacs-refused"
"""Codes of a wrong answer, and of results that are not taken."""


class NoAnswer(Exception):
    """Why a PACS has not done what it was asked for, and what to do; ``code`` is that of the error which it becomes."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


@dataclass(frozen=True)
class StoreOutcome:
    """What a PACS says of objects that were sent to it: the UIDs of those that it has taken, and why not of others."""

    stored: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)


class Carrier(Protocol):
    """How a PACS is asked. Studies, series and images are pydicom's data sets.

    Every method raises `NoAnswer`. Nothing that it gives has been compared with what was asked.
    """

    address: str

    def studies(self, keys: Mapping[str, str]) -> Sequence[Any]:
        """The studies of these keys and values."""

    def series(self, study: str, keys: Mapping[str, str]) -> Sequence[Any]:
        """The series of a study, of these keys and values."""

    def instances(self, study: str, series: str) -> Sequence[Any]:
        """The files of a series, with their UIDs and SOP classes."""

    def has(self, result: Any) -> bool:
        """Whether an object of this UID is in its study, which itself need not be there."""

    def images(self, study: str, series: str, classes: Collection[str]) -> Generator[Any, None, None]:
        """All files of a series, as they are stored; ``classes``: their SOP classes, as far as they are known."""

    def store(self, study: str, objects: Sequence[Any]) -> StoreOutcome:
        """Send objects of a study."""


class Archive:
    """A PACS.

    Every method raises `DataError`, with a sentence that names the study, if the PACS cannot be reached, refuses, or
    answers something else than was asked.
    """

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self.address = carrier.address
        """Of the PACS, as people know it."""

    def studies(self, query: Query) -> list[Any]:
        """The studies that fulfil the keys of studies."""
        with self._asking("did not say which studies it has"):
            answers = _each_once(self._carrier.studies(query.asked_of_studies), "StudyInstanceUID")
        return [each for each in answers if contradicted(query.study, each) is None]

    def series(self, study: str, wanted: Mapping[str, str]) -> list[Any]:
        """The series of a study that fulfil keys of series."""
        with self._asking(f"did not say which series study {study} has"):
            answers = _each_once(self._carrier.series(study, dict(wanted)), "SeriesInstanceUID")
        self._require_study(answers, study)
        return [each for each in answers if contradicted(wanted, each) is None]

    def instances(self, study: str, series: str) -> dict[str, str]:
        """The UID of each file of a series, with its SOP class."""
        with self._asking(f"did not say which images study {study} has"):
            answers = _each_once(self._carrier.instances(study, series), "SOPInstanceUID")
        self._require_study(answers, study)
        return {str(each.SOPInstanceUID): str(each.get("SOPClassUID", "") or "") for each in answers}

    def has(self, result: Any) -> bool:
        """Whether an object of this UID is in its study, which itself need not be there."""
        with self._asking(f"did not say whether study {result.StudyInstanceUID} has a result already"):
            return self._carrier.has(result)

    def images(self, study: str, series: str, expected: Mapping[str, str]) -> Iterator[Any]:
        """All files of a series, one after the other; of these UIDs and SOP classes, each once, or an error."""
        missing, what = dict(expected), f"did not give study {study}"
        classes = {sop_class for sop_class in expected.values() if sop_class}
        with closing(self._carrier.images(study, series, classes)) as answer:
            while True:
                with self._asking(what):
                    image = next(answer, None)
                    if image is None:
                        break
                    of_study, of_series, uid, sop_class = (
                        str(image.get(name, ""))
                        for name in ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "SOPClassUID")
                    )
                if (of_study, of_series) != (study, series):
                    raise self._otherwise(study, "an image of another study or series")
                if uid not in missing:
                    raise self._otherwise(study, "an image twice, or one that it had not named")
                if missing.pop(uid) not in ("", sop_class):
                    raise self._otherwise(study, "an image of another SOP class than it had said")
                yield image
        if missing:
            raise self._otherwise(study, f"{len(expected) - len(missing)} of the {len(expected)} images of a series")

    def store(self, study: str, objects: Sequence[Any]) -> None:
        """Store objects of a study; all of them are there afterwards, or it is an error."""
        what = f"did not take the results of study {study}"
        with self._asking(what):
            outcome = self._carrier.store(study, objects)
        if outcome.failed:
            reasons = ", ".join(sorted(set(outcome.failed.values())))
            raise DataError(
                REFUSED,
                f"{self.address} {what}: {len(outcome.failed)} of {len(objects)} failed (reason {reasons}): see its "
                "log, and whether it takes such objects",
            )
        if not all(str(result.SOPInstanceUID) in outcome.stored or self.has(result) for result in objects):
            raise DataError(
                REFUSED, f"{self.address} {what}: it does not have them afterwards: see its log, and repeat this"
            )

    def _require_study(self, answers: Sequence[Any], study: str) -> None:
        """A server need not repeat the study, but it must not name another."""
        if any(str(each.get("StudyInstanceUID", "") or study) != study for each in answers):
            raise self._otherwise(study, "series or images of another study")

    def _otherwise(self, study: str, what: str) -> DataError:
        return DataError(
            ANSWER,
            f"asked for study {study}, {self.address} gave {what}: repeat this, and if it stays, ask whoever runs the "
            "PACS",
        )

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Have it said of which PACS and study it is that there is no answer, without a value of a tag."""
        try:
            with quiet():
                yield
        except NoAnswer as error:
            raise DataError(error.code, f"{self.address} {what}: {error}") from None
        except UNREADABLE:
            reason = "its answer is not as DICOM has it: ask whoever runs the PACS"
            raise DataError(ANSWER, f"{self.address} {what}: {reason}") from None


def _each_once(answers: Sequence[Any], key: str) -> list[Any]:
    """Answers to a search by their UIDs, of which none may come to lie elsewhere as a part of a path."""
    by_uid: dict[str, Any] = {}
    for answer in answers:
        uid = str(answer[key].value)
        if not UID.fullmatch(uid):
            raise ValueError(key)
        by_uid.setdefault(uid, answer)
    return list(by_uid.values())
