"""A PACS in memory: what is used of dicomweb-client's client, over files of a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pydicom
import SimpleITK as sitk
from dicomstudies import draw_segmentation, write_slices
from pydicom.dataset import Dataset
from pydicom.uid import generate_uid
from scanfiles import volume

from fedshift.pacs.archive import Archive
from fedshift.pacs.web.carrier import Web

ADDRESS = "https://pacs.example/dicom-web"
SERVED = (
    *("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "SOPClassUID", "Modality", "SeriesDescription"),
    *("StudyDate", "PatientID"),
)


class Client:
    """Answers as a server that passes over the keys in ``ignores`` does, at most ``at_a_time`` answers at once.

    ``change`` is given every image before it is sent, and may return another, or raise.
    """

    def __init__(self, folder: Path | None = None, *, ignores: Sequence[str] = (), at_a_time: int = 3) -> None:
        self.held: dict[str, Dataset] = {}
        self.ignores, self.at_a_time = tuple(ignores), at_a_time
        self.counts = True
        """Whether it says how many files a study has."""
        self.looked_into: list[str] = []
        """The studies whose series were asked for."""
        self.change: Callable[[Dataset, int], Dataset | None] = lambda image, number: image
        self.sent: list[str] = []
        """The series that were fetched."""
        self.stored: list[str] = []
        """What was stored, as often as it was."""
        if folder is not None:
            self.add(folder)

    def add(self, folder: Path) -> None:
        for file in sorted(folder.rglob("*.dcm")):
            image = pydicom.dcmread(file)
            self.held[str(image.SOPInstanceUID)] = image

    def _found(self, level: str, key: dict[str, str], how: dict[str, Any]) -> list[dict[str, Any]]:
        found: dict[str, Dataset] = {}
        for image in self.held.values():
            wanted = {**how.get("search_filters", {}), **key}
            if all(self._fulfils(image, *each) for each in wanted.items() if each[0] not in self.ignores):
                said = Dataset()
                for name in SERVED:
                    if name in image:
                        said[name] = image[name]
                if level == "StudyInstanceUID" and self.counts:
                    study = image.StudyInstanceUID
                    said.NumberOfStudyRelatedInstances = sum(
                        each.StudyInstanceUID == study for each in self.held.values()
                    )
                found.setdefault(str(image[level].value), said)
        start = how.get("offset", 0)
        return [said.to_json_dict() for said in list(found.values())[start : start + self.at_a_time]]

    def _fulfils(self, image: Dataset, key: str, value: str) -> bool:
        if key == "ModalitiesInStudy":
            study = image.StudyInstanceUID
            return any(each.Modality == value for each in self.held.values() if each.StudyInstanceUID == study)
        said = str(image.get(key, ""))
        if "-" in value:
            first, last = value.split("-")
            return first <= said <= (last or "9")
        return said.startswith(value[:-1]) if value.endswith("*") else said == value

    def search_for_studies(self, **how: Any) -> list[dict[str, Any]]:
        return self._found("StudyInstanceUID", {}, how)

    def search_for_series(self, study: str, **how: Any) -> list[dict[str, Any]]:
        self.looked_into.append(study)
        return self._found("SeriesInstanceUID", {"StudyInstanceUID": study}, how)

    def search_for_instances(self, study: str, series: str | None = None, **how: Any) -> list[dict[str, Any]]:
        key = {"StudyInstanceUID": study} | ({} if series is None else {"SeriesInstanceUID": series})
        return self._found("SOPInstanceUID", key, how)

    def iter_series(self, study: str, series: str, **how: Any) -> Iterator[Dataset]:
        self.sent.append(series)
        of_series = [each for each in self.held.values() if each.SeriesInstanceUID == series]
        for number, image in enumerate(of_series):
            changed = self.change(pydicom.dcmread(image.filename), number)
            if changed is not None:
                yield changed

    def store_instances(self, datasets: Sequence[Dataset], study_instance_uid: str) -> Dataset:
        answer = Dataset()
        answer.ReferencedSOPSequence = []
        for each in datasets:
            self.stored.append(str(each.SOPInstanceUID))
            self.held.setdefault(str(each.SOPInstanceUID), each)
            item = Dataset()
            item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID = each.SOPClassUID, each.SOPInstanceUID
            answer.ReferencedSOPSequence.append(item)
        return answer


def archive(client: Client) -> Archive:
    return Archive(Web(client, ADDRESS))  # type: ignore[arg-type]


# --- what a faulty PACS sends in place of an image, by its number -------------------------------------------


def another_study(image: Dataset, number: int) -> Dataset:
    image.StudyInstanceUID = generate_uid()
    return image


def the_first_twice(image: Dataset, number: int) -> Dataset:
    if number == 0:
        the_first_twice.image = image  # type: ignore[attr-defined]
    return the_first_twice.image  # type: ignore[attr-defined,no-any-return]


def one_less(image: Dataset, number: int) -> Dataset | None:
    return None if number == 1 else image


def write_study(folder: Path, seed: str, *, date: str = "20260102", mask: bool = True) -> tuple[str, str]:
    """A study with a series ``t2_tse_tra`` of a ball, one ``adc`` and a reader's SEG; UIDs of study and first."""

    def of_t2(image: Dataset, number: int) -> None:
        image.StudyDate = date

    def of_adc(image: Dataset, number: int) -> None:
        image.StudyDate, image.SeriesDescription, image.SeriesNumber = date, "adc", 5
        image.SeriesInstanceUID = generate_uid(entropy_srcs=["adc", seed])
        image.SOPInstanceUID = generate_uid(entropy_srcs=["adc", seed, str(number)])

    image, ball = volume(int(seed), size=(12, 10, 4), radius=4.0, target=(2.0, -3.0, 1.0))
    series = write_slices(folder / "t2", image, seed=seed, change=of_t2)
    write_slices(folder / "adc", image, seed=seed, change=of_adc)
    if mask:
        draw_segmentation(folder / "seg" / "seg.dcm", series, {"prostate": sitk.GetArrayFromImage(ball) > 0})
    first = pydicom.dcmread(series / "IM0001.dcm")
    return str(first.StudyInstanceUID), str(first.SeriesInstanceUID)
