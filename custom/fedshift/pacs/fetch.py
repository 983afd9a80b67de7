"""Fetch series, and the masks of their studies, into a folder as `fedshift.data` reads it.

A study is a folder ``sub-<patient>_ses-<date and study>``, so that a patient's studies stay in one split, and a series
a folder in it, called by its description. A series gets its name once all of it is there, so whatever has a name is
whole, and a repeated call fetches only what is missing or has changed in the PACS.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedshift.data.dicom import identify, is_dicom_mask
from fedshift.data.dicom_objects import NO_SCANS, quiet
from fedshift.data.named_masks import references
from fedshift.data.scan_file import ScanError
from fedshift.pacs.archive import FATAL, Archive
from fedshift.pacs.query import Query, contradicted
from fedshift.pacs.record import FILE, FetchedSeries, FetchRecord, NotFetched, read_record, write_record
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.files import written_whole

Masks = Literal["any", "required", "none"]
MASKS = ("SEG", "RTSTRUCT")
"""Modalities of DICOM masks."""
OURS = "fedshift"
"""The manufacturer of what `fedshift predict` writes."""
NO_IMAGES = (*MASKS, "SR", "PR", "KO", "RTPLAN", "RTDOSE", "RTRECORD", "REG", "FID", "DOC", "ECG")
"""Modalities of what is no series of images; others are known by the classes of their files."""
MOST_OF_A_NAME = 40


class _LeftOut(Exception):
    """Why a series is not fetched."""


@dataclass
class FoundStudy:
    """A study as it was found."""

    uid: str
    answer: Any
    """What the PACS says of it."""
    scans: list[Any]
    masks: list[Any] = field(default_factory=list)


def fetch(
    archive: Archive,
    query: Query,
    folder: Path,
    *,
    masks: Masks = "any",
    progress: Callable[[str], None] = lambda study: None,
) -> FetchRecord:
    """Fetch what fulfils a query.

    Args:
        archive: the PACS.
        query: which series of images.
        folder: a new one, or that of an earlier call, whose whole series stay.
        masks: whether masks of the studies are fetched too, and whether studies without any are left out.
        progress: called with each study before it is fetched.

    Returns:
        What fulfils the query and is there, what was left out, and what could not be fetched. The folder's own record
        also has the series of earlier calls.

    Raises:
        ConfigError: the folder holds something else, or cannot be written.
        DataError: nothing fulfils the query, or the PACS cannot be reached.
    """
    former = _former(folder, archive)
    studies = list(find(archive, query, masks=masks))
    if not studies:
        raise DataError(
            "pacs-empty", f"{archive.address} has no series of images with {query}: correct the keys or their values"
        )
    folder.mkdir(parents=True, exist_ok=True)
    _remove_unfinished(folder)
    work = _Work(archive, query, folder, {} if former is None else {each.series: each for each in former.fetched})
    for study in studies:
        progress(study.uid)
        lacks = _lacks(study, query, masks)
        if lacks is not None:
            work.left_out.append(NotFetched(study=study.uid, reason=lacks))
        else:
            work.study(study)
    record = work.record.model_copy(update={"fetched": tuple(work.of_this_call)})
    if not record.fetched and not record.failed:
        reasons = "; ".join(dict.fromkeys(each.reason for each in record.left_out))
        raise DataError("pacs-empty", f"{archive.address} has nothing to fetch with {query} ({reasons})")
    return record


def find(
    archive: Archive, query: Query, *, masks: Masks = "none", skip: Callable[[Any], bool] = lambda answer: False
) -> Iterator[FoundStudy]:
    """The studies with series that fulfil a query, by what the PACS says of them.

    ``skip``: whether a study, by what the PACS says of it, is not to be looked into.
    """
    for answer in archive.studies(query):
        if skip(answer):
            continue
        uid = str(answer.StudyInstanceUID)
        scans = [each for each in archive.series(uid, query.series) if str(each.get("Modality", "")) not in NO_IMAGES]
        if query.sequences:  # the others of the study are no sequence of a case
            scans = [each for each in scans if _sequence_of(query, each) is not None] or scans
        if scans:
            kinds = () if masks == "none" else MASKS
            drawn = [each for kind in kinds for each in archive.series(uid, {"Modality": kind})]
            yield FoundStudy(uid, answer, scans, drawn)


def _lacks(study: FoundStudy, query: Query, masks: Masks) -> str | None:
    """Why a study cannot be used as a whole; None if it can."""
    if masks == "required" and not study.masks:
        return "it has no DICOM SEG and no RT Structure Set"
    if query.sequences:
        counts = Counter(_sequence_of(query, series) for series in study.scans)
        for name, text in query.sequences.items():
            if counts[name] != 1:
                return f"it has {counts[name] or 'no'} series for {name} ({text}), of which it must have one"
    return None


def _sequence_of(query: Query, series: Any) -> str | None:
    return query.sequence_of(str(series.get("SeriesDescription", "") or ""))


def _former(folder: Path, archive: Archive) -> FetchRecord | None:
    former = read_record(folder) if folder.exists() else None
    if former is not None and former.pacs != archive.address:
        fault = f"{folder} holds what was fetched from {former.pacs}, not {archive.address}"
        raise ConfigError("folder-taken", f"{fault}: fetch into another folder")
    if former is None and folder.exists() and any(not each.name.startswith(".") for each in folder.iterdir()):
        raise ConfigError("folder-taken", f"{folder} holds something else than {FILE} tells of: name a new folder")
    return former


def _remove_unfinished(folder: Path) -> None:
    """Series that an earlier call was killed within."""
    for path in folder.glob("*/.*.partial-*"):
        shutil.rmtree(path, ignore_errors=True)


class _Work:
    """A call: what it has fetched so far, written to the record after each series."""

    def __init__(self, archive: Archive, query: Query, folder: Path, former: Mapping[str, FetchedSeries]) -> None:
        self._archive, self._query, self._folder = archive, query, folder
        self._by_uid = dict(former)
        self.of_this_call: list[FetchedSeries] = []
        self.left_out: list[NotFetched] = []
        self.failed: list[NotFetched] = []

    @property
    def record(self) -> FetchRecord:
        return FetchRecord(
            pacs=self._archive.address,
            query={**self._query.study, **self._query.series},
            fetched=tuple(self._by_uid.values()),
            left_out=tuple(self.left_out),
            failed=tuple(self.failed),
        )

    def study(self, study: FoundStudy) -> None:
        """Fetch a study's images, then its masks, of which those of other images are left out."""
        scans = [each for series in study.scans if (each := self._series(study, series)) is not None]
        if scans:
            for series in study.masks:
                self._series(study, series, scans=scans)
        write_record(self.record, self._folder)

    def _series(
        self, study: FoundStudy, series: Any, *, scans: Sequence[FetchedSeries] | None = None
    ) -> FetchedSeries | None:
        """Fetch a series: of images, or of masks of ``scans``."""
        uid = str(series.SeriesInstanceUID)
        try:
            fetched = self._fetched(study, series, uid, scans)
        except _LeftOut as reason:
            self.left_out.append(NotFetched(study=study.uid, series=uid, reason=str(reason)))
            return None
        except DataError as error:
            if error.code in FATAL:
                raise
            self.failed.append(NotFetched(study=study.uid, series=uid, reason=str(error)))
            return None
        self._by_uid[uid] = fetched
        self.of_this_call.append(fetched)
        write_record(self.record, self._folder)
        return fetched

    def _fetched(
        self, study: FoundStudy, series: Any, uid: str, scans: Sequence[FetchedSeries] | None
    ) -> FetchedSeries:
        expected = self._archive.instances(study.uid, uid)
        if not expected:
            raise _LeftOut("the PACS names no image of it")
        if scans is None and all(sop_class.startswith(NO_SCANS) for sop_class in expected.values()):
            raise _LeftOut("it holds no images that are scans")
        digest = hashlib.sha256("\n".join(sorted(expected)).encode()).hexdigest()
        former = self._by_uid.get(uid)
        if former is not None and former.files_sha256 == digest and self._is_whole(former):
            return former
        images = self._archive.images(study.uid, uid, expected)
        first = next(images)
        if key := self._differs(first, images_asked=scans is None):
            raise _LeftOut(f"its {key} is another than was asked for")
        if scans is not None and str(first.get("Manufacturer", "")) == OURS:
            raise _LeftOut("fedshift itself has written it: it is no mask of a reader")
        case = former.folder.partition("/")[0] if former else case_name(first)
        name = f"{case}/{self._folder_name(case, uid, first)}"
        target = self._folder / name
        with written_whole(target) as staging:
            number = 0
            for number, image in enumerate(_with_first(first, images), start=1):
                _write(image, staging / f"{number:05d}.dcm", study.uid)
            if scans is not None:
                _require_masks_of(staging, scans, self._folder)
            shutil.rmtree(target, ignore_errors=True)  # it has changed in the PACS
        return FetchedSeries(
            study=study.uid,
            series=uid,
            modality=str(first.get("Modality", "")),
            description=str(first.get("SeriesDescription", "")),
            folder=name,
            files=number,
            files_sha256=digest,
        )

    def _is_whole(self, former: FetchedSeries) -> bool:
        folder = self._folder / former.folder
        return folder.is_dir() and len(list(folder.glob("*.dcm"))) == former.files

    def _differs(self, image: Any, *, images_asked: bool) -> str | None:
        """The key by which an image is another than was asked for, of which a PACS need not have taken notice."""
        with quiet():
            wanted = {**self._query.study, **(self._query.series if images_asked else {})}
            wanted.pop("ModalitiesInStudy", None)
            absent = [key for key in wanted if key not in image]
            return absent[0] if absent else contradicted(wanted, image)

    def _folder_name(self, case: str, uid: str, image: Any) -> str:
        """By the description; a second series of this name in a study has a part of its UID's digest too."""
        former = self._by_uid.get(uid)
        if former is not None:
            return former.folder.partition("/")[2]
        if (sequence := _sequence_of(self._query, image)) is not None:
            return sequence
        text = str(image.get("SeriesDescription", "") or image.get("Modality", ""))
        name = re.sub(r"[^\w+-]+", "_", text).strip("_")[:MOST_OF_A_NAME] or "series"
        occupied = {each.folder for each in self._by_uid.values()}
        return name if f"{case}/{name}" not in occupied else f"{name}_{_digest(uid, length=6)}"


def case_name(image: Any) -> str:
    """The folder of a study, in the form of BIDS: the same patient has the same subject, whoever fetches it.

    Of a patient without an id each study is a subject of its own.
    """
    study, patient = str(image.StudyInstanceUID), str(image.get("PatientID", "") or "").strip()
    issuer = str(image.get("IssuerOfPatientID", "") or "").strip()
    subject = _digest(f"{issuer}\n{patient}" if patient else study, length=12)
    date = re.sub(r"\D", "", str(image.get("StudyDate", "") or ""))[:8]
    return f"sub-{subject}_ses-{date}x{_digest(study, length=6)}"


def _digest(text: str, *, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _with_first(first: Any, others: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from others


def _write(image: Any, path: Path, study: str) -> None:
    """Write a file, and see that it can be read as what it is."""
    with quiet():
        try:
            image.save_as(path, enforce_file_format=True)
        except OSError:
            raise
        except Exception:  # pydicom's errors are of many kinds
            identity = None
        else:
            identity = identify(path)
    if identity is None or identity.instance != str(image.SOPInstanceUID):
        raise DataError(
            "pacs-answer", f"an image of study {study} that the PACS gave cannot be written as a file: export it there"
        )


def _require_masks_of(staging: Path, scans: Sequence[FetchedSeries], folder: Path) -> None:
    """See that the masks in a folder are of series that were fetched, as far as they name series or images."""
    series, images = {each.series for each in scans}, set[str]()
    for file in sorted(staging.iterdir()):
        if not is_dicom_mask(file):
            raise _LeftOut("it holds no DICOM SEG and no RT Structure Set")
        try:
            meant = references(file)
        except ScanError as error:
            raise _LeftOut(f"it {error.what}") from None
        if series & set(meant.series) or not (meant.series or meant.images):
            continue
        if meant.images and not images:
            images = {
                identity.instance
                for each in scans
                for path in (folder / each.folder).iterdir()
                if (identity := identify(path))
            }
        if not images & set(meant.images):
            raise _LeftOut("it is of images that were not asked for")
