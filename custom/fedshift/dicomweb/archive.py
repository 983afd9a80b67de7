"""A PACS: what is asked of it, and its answers, each of which is what was asked for or an error that says why not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedshift.data.dicom_objects import UNREADABLE, quiet
from fedshift.dicomweb.query import Query, contradicted
from fedshift.schema.errors import DataError, FedshiftError

if TYPE_CHECKING:
    from dicomweb_client.api import DICOMwebClient

_UID = re.compile(r"[0-9][0-9.]{0,63}")
AS_STORED = (("application/dicom", "*"),)
"""In which form images are asked for: the one that they are stored in, and not decompressed for the way."""
FATAL = ("pacs-unreachable", "pacs-credentials")
"""Codes of errors after which asking on is of no use."""
SOP_INSTANCE = "00080018"
"""The key of a file's UID in an answer."""
PAGE = 1000
"""Answers that are asked for at a time."""


class Archive:
    """A PACS at an address. Studies, series and images are pydicom's data sets.

    Every method raises `DataError`, with a sentence that names the study, if the PACS cannot be reached, refuses, or
    answers something else than was asked.
    """

    def __init__(self, client: DICOMwebClient, address: str) -> None:
        self._client = client
        self.address = address

    def studies(self, query: Query) -> list[Any]:
        """The studies that fulfil the keys of studies."""
        filters = query.asked_of_studies

        def page(offset: int) -> Sequence[Any]:
            return self._client.search_for_studies(
                search_filters=filters, fields=list(filters), limit=PAGE, offset=offset
            )

        found = self._all(page, "StudyInstanceUID", "did not say which studies it has")
        return [each for each in found if contradicted(query.study, each) is None]

    def series(self, study: str, wanted: Mapping[str, str]) -> list[Any]:
        """The series of a study that fulfil keys of series."""

        def page(offset: int) -> Sequence[Any]:
            return self._client.search_for_series(
                study, search_filters=dict(wanted), fields=list(wanted), limit=PAGE, offset=offset
            )

        found = self._all(page, "SeriesInstanceUID", f"did not say which series study {study} has")
        self._require_study(found, study)
        return [each for each in found if contradicted(wanted, each) is None]

    def instances(self, study: str, series: str) -> dict[str, str]:
        """The UID of each file of a series, with its SOP class."""

        def page(offset: int) -> Sequence[Any]:
            return self._client.search_for_instances(study, series, limit=PAGE, offset=offset)

        found = self._all(page, "SOPInstanceUID", f"did not say which images study {study} has")
        self._require_study(found, study)
        return {str(each.SOPInstanceUID): str(each.get("SOPClassUID", "")) for each in found}

    def has(self, study: str, uid: str) -> bool:
        """Whether a file of this UID is in a study, which itself need not be there."""
        import requests

        with self._asking(f"did not say whether study {study} has a result already"):
            try:
                found = self._client.search_for_instances(study, search_filters={"SOPInstanceUID": uid})
            except requests.exceptions.HTTPError as error:
                if error.response is None or error.response.status_code != 404:
                    raise
                return False  # there is no such study
            return any(uid in each[SOP_INSTANCE]["Value"] for each in found)

    def images(self, study: str, series: str, expected: Mapping[str, str]) -> Iterator[Any]:
        """All files of a series, one after the other; of these UIDs and SOP classes, each once, or an error."""
        left, what = dict(expected), f"did not give study {study}"
        with self._asking(what):
            answer = iter(self._client.iter_series(study, series, media_types=AS_STORED))
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
            if uid not in left:
                raise self._otherwise(study, "an image twice, or one that it had not named")
            if left.pop(uid) not in ("", sop_class):
                raise self._otherwise(study, "an image of another SOP class than it had said")
            yield image
        if left:
            raise self._otherwise(study, f"{len(expected) - len(left)} of the {len(expected)} images of a series")

    def store(self, study: str, objects: Sequence[Any]) -> None:
        """Store objects of a study; all of them are there afterwards, or it is an error."""
        wanted = {str(each.SOPInstanceUID) for each in objects}
        what = f"did not take the results of study {study}"
        with self._asking(what):
            answer = self._client.store_instances(list(objects), study_instance_uid=study)
            said = [str(each.ReferencedSOPInstanceUID) for each in answer.get("ReferencedSOPSequence", None) or []]
            failed = [each for each in answer.get("FailedSOPSequence", None) or []]
        if failed:
            reasons = ", ".join(sorted({f"{int(each.get('FailureReason', 0) or 0):04X}" for each in failed}))
            raise DataError(
                "pacs-refused",
                f"{self.address} {what}: it names {len(failed)} of {len(wanted)} as failed (reason {reasons}): see its "
                "log, and whether it takes such objects",
            )
        if not all(uid in said or self.has(study, uid) for uid in wanted):
            raise DataError(
                "pacs-refused", f"{self.address} {what}: it does not have them afterwards: see its log, and repeat this"
            )

    def _all(self, page: Callable[[int], Sequence[Any]], key: str, what: str) -> list[Any]:
        """The answers of all pages; a server may give fewer at a time than it is asked for."""
        import pydicom

        found: dict[str, Any] = {}
        seen = 0
        while True:
            with self._asking(what):
                answers = page(seen)
                if not isinstance(answers, list):
                    raise TypeError
                items = [pydicom.Dataset.from_json(answer) for answer in answers]
                uids = [str(item[key].value) for item in items]
                if not all(map(_UID.fullmatch, uids)):
                    raise ValueError
            new = {uid: item for uid, item in zip(uids, items, strict=True) if uid not in found}
            if not new:  # the last page; or the server does not know pages, and has said all
                return list(found.values())
            found |= new
            seen += len(answers)

    def _require_study(self, found: Sequence[Any], study: str) -> None:
        """A server need not repeat the study, but it must not name another."""
        if any(str(each.get("StudyInstanceUID", "") or study) != study for each in found):
            raise self._otherwise(study, "series or images of another study")

    def _otherwise(self, study: str, what: str) -> DataError:
        return DataError(
            "pacs-answer",
            f"asked for study {study}, {self.address} gave {what}: repeat this, and if it stays, ask whoever runs the "
            "PACS",
        )

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Turn what the libraries raise into a sentence, without a header, a value of a tag, or an address's query."""
        import pydicom
        import requests

        other = (*UNREADABLE, EOFError, pydicom.errors.InvalidDicomError)
        try:
            with quiet():
                yield
        except FedshiftError:
            raise
        except requests.exceptions.InvalidJSONError:
            raise self._no_dicomweb(what) from None
        except requests.exceptions.HTTPError as error:
            status = 0 if error.response is None else error.response.status_code
            if status in (401, 403):
                raise DataError(
                    "pacs-credentials",
                    f"{self.address} {what}: it refused the credentials ({status}): see FEDSHIFT_PACS_TOKEN, or "
                    "FEDSHIFT_PACS_USER and FEDSHIFT_PACS_PASSWORD, or --credentials, and the user's rights",
                ) from None
            raise DataError(
                "pacs-answer", f"{self.address} {what}: it answered with status {status}: see its log, and repeat this"
            ) from None
        except OSError as error:  # such as requests' own
            raise DataError("pacs-unreachable", f"{self.address} {what}: {_why(error)}") from None
        except other:
            raise self._no_dicomweb(what) from None

    def _no_dicomweb(self, what: str) -> DataError:
        """Of an answer in another form, such as a page of a web site with status 200."""
        return DataError(
            "pacs-answer",
            f"{self.address} {what}: its answer is not what DICOMweb has: see whether the address is that of its "
            "DICOMweb service",
        )


def _why(error: BaseException) -> str:
    """Why there was no answer, and what to do."""
    import requests

    known = {
        requests.exceptions.SSLError: "its certificate cannot be verified: name the one of your authority with "
        "--ca-file",
        requests.exceptions.Timeout: "it did not answer in time: repeat this",
        requests.exceptions.TooManyRedirects: "it refers to another address: name that one, if it is yours",
        requests.exceptions.ChunkedEncodingError: "its answer was cut off: repeat this",
        requests.exceptions.ConnectionError: "it cannot be reached: see the address, and whether it runs",
    }
    return next((said for kind, said in known.items() if isinstance(error, kind)), "the line failed: repeat this")
