"""Images that were sent to this machine, in a folder: ``<study>/<series>/<image>.dcm``, named by their UIDs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedshift.data.dicom_objects import UNREADABLE, quiet
from fedshift.pacs.archive import REFUSED, UID, NoAnswer, StoreOutcome
from fedshift.pacs.query import OF_SERIES, OF_STUDY
from fedshift.schema.files import write_private

DAY = 24 * 60 * 60
_NAMES = ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID")


class Received:
    """A `fedshift.pacs.archive.Carrier` of what a folder has; it never stores results."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.address = str(folder)

    def add(self, header: Any, content: bytes) -> None:
        """Write an image, which is on disk when this returns; the same one again replaces it.

        Raises:
            ValueError: its UIDs are none.
            OSError: there is no room.
        """
        study, series, image = (str(header[name].value) for name in _NAMES)
        if not all(map(UID.fullmatch, (study, series, image))):
            raise ValueError(_NAMES)
        write_private(self._folder / study / series / f"{image}.dcm", content)

    def studies(self, keys: Mapping[str, str]) -> list[Any]:
        return [answer for study in _folders(self._folder) if (answer := self._of_study(study)) is not None]

    def series(self, study: str, keys: Mapping[str, str]) -> list[Any]:
        answers = []
        for folder in _folders(self._folder / study):
            answer = _dataset(_images(folder)[0], (*_NAMES[:2], *OF_SERIES))
            answer.NumberOfSeriesRelatedInstances = len(_images(folder))
            answers.append(answer)
        return answers

    def instances(self, study: str, series: str) -> list[Any]:
        return [_dataset(file, (*_NAMES, "SOPClassUID")) for file in _images(self._folder / study / series)]

    def has(self, result: Any) -> bool:
        study, series, image = (str(result[name].value) for name in _NAMES)
        return (self._folder / study / series / f"{image}.dcm").is_file()

    def images(self, study: str, series: str, classes: Collection[str]) -> Generator[Any, None, None]:
        import pydicom

        for file in _images(self._folder / study / series):
            yield pydicom.dcmread(file)

    def store(self, study: str, objects: Sequence[Any]) -> StoreOutcome:
        raise NoAnswer(REFUSED, "it is a folder of images that were received: name a PACS")

    def remove(self, *, days: float, keep: Collection[str]) -> Iterator[str]:
        """Remove studies to which nothing has come for so many days, but for those to ``keep``; gives their UIDs."""
        for folder in _folders(self._folder):
            newest = max(file.stat().st_mtime for series in _folders(folder) for file in _images(series))
            if folder.name not in keep and time.time() - newest > days * DAY:
                shutil.rmtree(folder)
                yield folder.name

    def _of_study(self, study: Path) -> Any:
        series = _folders(study)
        if not series:
            return None
        answer = _dataset(_images(series[0])[0], (_NAMES[0], *(key for key in OF_STUDY if key != "ModalitiesInStudy")))
        answer.ModalitiesInStudy = sorted(
            {str(_dataset(_images(each)[0], ["Modality"]).get("Modality")) for each in series}
        )
        answer.NumberOfStudyRelatedInstances = sum(len(_images(each)) for each in series)
        return answer


def _folders(folder: Path) -> list[Path]:
    """Those in a folder with an image in them, or below; one that is being filled may have none yet."""
    return sorted(each for each in folder.iterdir() if next(each.rglob("*.dcm"), None)) if folder.is_dir() else []


def _images(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.dcm")) if folder.is_dir() else []


def _dataset(file: Path, names: Sequence[str]) -> Any:
    """Some attributes of a file."""
    import pydicom

    return pydicom.dcmread(file, stop_before_pixels=True, specific_tags=list(names))


def header_of(content: bytes) -> Any:
    """What is read of an image's file before its pixels; raises `ValueError` if it is none."""
    import io

    import pydicom

    try:
        with quiet():
            return pydicom.dcmread(io.BytesIO(content), stop_before_pixels=True)
    except (*UNREADABLE, EOFError, pydicom.errors.InvalidDicomError):
        raise ValueError("no DICOM") from None
