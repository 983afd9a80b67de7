"""DICOM objects: what each is by its SOP class (PS3.4, annex B), and the libraries that read them, without warnings."""

from __future__ import annotations

import importlib
import logging
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedshift.schema.errors import ConfigError

STORAGE = "1.2.840.10008.5.1.4.1.1."
SEGMENTATIONS = frozenset({f"{STORAGE}66.4", f"{STORAGE}66.7"})
"""DICOM SEG: of a bit or fraction for each segment, and of labels."""
STRUCTURE_SET = f"{STORAGE}481.3"  # RT Structure Set
MASKS = SEGMENTATIONS | {STRUCTURE_SET}
PARAMETRIC_MAP = f"{STORAGE}30"  # such as an ADC map: of whole numbers, or of floating point
MULTIFRAME = frozenset(
    f"{STORAGE}{ending}"
    for ending in (
        *("4.1", "4.4", "2.1", "2.2", "130", "128.1"),  # MR, CT and PET, each as made by the scanner and as converted
        *("13.1.1", "13.1.2", "13.1.3"),  # X-ray 3D: angiography, cone beam CT of the head, breast tomosynthesis
        "30",
    )
)
"""Enhanced images: a volume in one file, or a part of one."""
CT_IMAGES = frozenset(f"{STORAGE}{ending}" for ending in ("2", "2.1", "2.2"))  # CT, in single slices and enhanced
PET_IMAGES = frozenset(f"{STORAGE}{ending}" for ending in ("128", "130", "128.1"))
PICTURES = frozenset(
    f"{STORAGE}{ending}"
    for ending in (
        *("1", "1.1", "1.1.1", "1.2", "1.2.1", "1.3", "1.3.1"),  # CR, DX, mammography, within the mouth
        *("12.1", "12.2"),  # angiography, fluoroscopy
        *("6", "6.1", "7"),  # ultrasound, secondary capture
        *("77.1.1", "77.1.2", "77.1.4", "77.1.5.1", "77.1.5.2"),  # endoscopy, microscopy, photography, of the eye
    )
)
"""Images that are no slices of a volume. They may have several frames, which is found when they are read."""
RADIOGRAPHS = frozenset(
    f"{STORAGE}{ending}" for ending in ("1", "1.1", "1.1.1", "1.2", "1.2.1", "1.3", "1.3.1", "12.1", "12.2")
)
"""Those by projection, in which distances at the detector are not those in the patient."""
FOR_PROCESSING = frozenset(f"{STORAGE}{ending}" for ending in ("1.1.1", "1.2.1", "1.3.1"))
"""Radiographs as the detector gives them, which no viewer shows before they are processed."""
NO_SCANS = tuple(f"{STORAGE}{part}" for part in ("66", "67", "88.", "9.", "11.", "104.", "481.", "4.2", "68."))
"""Beginnings: segmentations and raw data, reports, waveforms, presentation states, documents, plans, spectra."""
UNREADABLE = (
    *(ValueError, RuntimeError, AttributeError, KeyError, TypeError, IndexError, OSError, NotImplementedError),
    struct.error,
)
"""What pydicom and highdicom raise where an object is not as the standard has it."""


def need_highdicom(what: str) -> None:
    """Make sure that highdicom is there.

    Raises:
        ConfigError: it is not; the sentence begins with ``what`` needs it.
    """
    try:
        importlib.import_module("highdicom")
    except ImportError:
        raise ConfigError(
            "not-installed", f"{what} needs highdicom, which is not installed: pip install 'fedshift[dicom]'"
        ) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings of pydicom and highdicom, which repeat values of tags."""
    pydicom: Any = importlib.import_module("pydicom")
    others = logging.getLogger("highdicom")
    levels = pydicom.config.logger.level, others.level
    former = pydicom.config.settings.reading_validation_mode
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pydicom.config.logger.setLevel("CRITICAL")
        others.setLevel("CRITICAL")
        pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
        try:
            yield
        finally:
            pydicom.config.logger.setLevel(levels[0])
            others.setLevel(levels[1])
            pydicom.config.settings.reading_validation_mode = former
