"""Store results in a PACS: what it has already is not stored again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fedshift.data.dicom_objects import quiet
from fedshift.pacs.archive import Archive


class Stored(NamedTuple):
    """How many files were stored, and how many were there already, by their UIDs."""

    new: int
    present: int


def store(archive: Archive, files: Iterable[Path]) -> Stored:
    """Store DICOM files in the studies that they name; all are in the PACS afterwards.

    The results of `fedshift predict` have UIDs that follow from the images, the model and the mask, so that whatever
    was stored by an earlier call, or by one that was ended, is known again.

    Raises:
        DataError: the PACS cannot be reached, or does not take them.
    """
    import pydicom

    of_study: dict[str, list[Any]] = {}
    new = n_present = 0
    with quiet():
        for file in files:
            result = pydicom.dcmread(file)
            of_study.setdefault(str(result.StudyInstanceUID), []).append(result)
    for study, objects in of_study.items():
        missing = [each for each in objects if not archive.has(each)]
        if missing:
            archive.store(study, missing)
        new, n_present = new + len(missing), n_present + len(objects) - len(missing)
    return Stored(new, n_present)
