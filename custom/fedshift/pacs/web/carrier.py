"""Ask a PACS by DICOMweb, with dicomweb-client."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedshift.data.dicom_objects import UNREADABLE
from fedshift.pacs.archive import ANSWER, CREDENTIALS, UNREACHABLE, NoAnswer, StoreOutcome

if TYPE_CHECKING:
    from dicomweb_client.api import DICOMwebClient

AS_STORED = (("application/dicom", "*"),)
"""In which form images are asked for: the one that they are stored in, and not decompressed for the way."""
SOP_INSTANCE = "00080018"
"""The key of a file's UID in an answer."""
PAGE = 1000
"""Answers that are asked for at a time."""


class Web:
    """A `fedshift.pacs.archive.Carrier`."""

    def __init__(self, client: DICOMwebClient, address: str) -> None:
        self._client = client
        self.address = address

    def studies(self, keys: Mapping[str, str]) -> list[Any]:
        filters = dict(keys)

        def page(offset: int) -> Sequence[Any]:
            return self._client.search_for_studies(
                search_filters=filters, fields=list(filters), limit=PAGE, offset=offset
            )

        return _all(page, "StudyInstanceUID")

    def series(self, study: str, keys: Mapping[str, str]) -> list[Any]:
        filters = dict(keys)

        def page(offset: int) -> Sequence[Any]:
            return self._client.search_for_series(
                study, search_filters=filters, fields=list(filters), limit=PAGE, offset=offset
            )

        return _all(page, "SeriesInstanceUID")

    def instances(self, study: str, series: str) -> list[Any]:
        def page(offset: int) -> Sequence[Any]:
            return self._client.search_for_instances(study, series, limit=PAGE, offset=offset)

        return _all(page, "SOPInstanceUID")

    def has(self, result: Any) -> bool:
        import requests

        study, uid = str(result.StudyInstanceUID), str(result.SOPInstanceUID)
        with _asking():
            try:
                answers = self._client.search_for_instances(study, search_filters={"SOPInstanceUID": uid})
            except requests.exceptions.HTTPError as error:
                if error.response is None or error.response.status_code != 404:
                    raise
                return False  # there is no such study
            return any(uid in each[SOP_INSTANCE]["Value"] for each in answers)

    def images(self, study: str, series: str, classes: Collection[str]) -> Generator[Any, None, None]:
        with _asking():
            yield from self._client.iter_series(study, series, media_types=AS_STORED)

    def store(self, study: str, objects: Sequence[Any]) -> StoreOutcome:
        with _asking():
            answer = self._client.store_instances(list(objects), study_instance_uid=study)
            stored = {str(each.ReferencedSOPInstanceUID) for each in answer.get("ReferencedSOPSequence", None) or []}
            failed = {
                str(each.get("ReferencedSOPInstanceUID", number)): f"{int(each.get('FailureReason', 0) or 0):04X}"
                for number, each in enumerate(answer.get("FailedSOPSequence", None) or [])
            }
        return StoreOutcome(stored, failed)


def _all(page: Callable[[int], Sequence[Any]], key: str) -> list[Any]:
    """The answers of all pages; a server may give fewer at a time than it is asked for."""
    import pydicom

    by_uid: dict[str, Any] = {}
    n_received = 0
    while True:
        with _asking():
            answers = page(n_received)
            if not isinstance(answers, list):
                raise TypeError
            items = [pydicom.Dataset.from_json(answer) for answer in answers]
            new = {uid: item for item in items if (uid := str(item[key].value)) not in by_uid}
        if not new:  # the last page; or the server does not know pages, and has said all
            return list(by_uid.values())
        by_uid |= new
        n_received += len(answers)


@contextmanager
def _asking() -> Iterator[None]:
    """Turn what the libraries raise into a sentence, without a header, a value of a tag, or an address's query."""
    import pydicom
    import requests

    other = (*UNREADABLE, EOFError, pydicom.errors.InvalidDicomError)
    try:
        yield
    except requests.exceptions.InvalidJSONError:
        raise NoAnswer(ANSWER, NO_DICOMWEB) from None
    except requests.exceptions.HTTPError as error:
        status = 0 if error.response is None else error.response.status_code
        if status in (401, 403):
            raise NoAnswer(
                CREDENTIALS,
                f"it refused the credentials ({status}): see FEDSHIFT_PACS_TOKEN, or FEDSHIFT_PACS_USER and "
                "FEDSHIFT_PACS_PASSWORD, or --credentials, and the user's rights",
            ) from None
        raise NoAnswer(ANSWER, f"it answered with status {status}: see its log, and repeat this") from None
    except OSError as error:  # such as requests' own
        raise NoAnswer(UNREACHABLE, _why(error)) from None
    except other:
        raise NoAnswer(ANSWER, NO_DICOMWEB) from None


NO_DICOMWEB = "its answer is not what DICOMweb has: see whether the address is that of its DICOMweb service"
"""Of an answer in another form, such as a page of a web site with status 200."""


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
    return next((reason for kind, reason in known.items() if isinstance(error, kind)), "the line failed: repeat this")
