"""Which DICOM objects are scans, masks, or neither, by their SOP class (DICOM PS3.4, annex B)."""

from __future__ import annotations

STORAGE = "1.2.840.10008.5.1.4.1.1."
SEGMENTATIONS = frozenset({f"{STORAGE}66.4", f"{STORAGE}66.7"})
"""DICOM SEG: of a bit or fraction for each segment, and of labels."""
STRUCTURE_SET = f"{STORAGE}481.3"
"""RT Structure Set."""
PARAMETRIC_MAP = f"{STORAGE}30"
"""Such as an ADC map: of whole numbers, or of floating point."""
MULTIFRAME = frozenset(
    f"{STORAGE}{ending}"
    for ending in (
        *("4.1", "4.4", "2.1", "2.2", "130", "128.1"),  # MR, CT and PET, each as made by the scanner and as converted
        *("13.1.1", "13.1.2", "13.1.3"),  # X-ray 3D: angiography, cone beam CT of the head, breast tomosynthesis
        "30",
    )
)
"""Enhanced images: a volume in one file, or a part of one."""
CT_IMAGES = frozenset(f"{STORAGE}{ending}" for ending in ("2", "2.1", "2.2"))
"""CT, in single slices and enhanced."""
PET_IMAGES = frozenset(f"{STORAGE}{ending}" for ending in ("128", "130", "128.1"))
"""PET, likewise."""
_NO_SCAN = tuple(f"{STORAGE}{part}" for part in ("66", "67", "88.", "9.", "11.", "104.", "481.", "4.2", "68."))
"""Beginnings: segmentations and raw data, reports, waveforms, presentation states, documents, plans, spectra."""


def is_mask(sop_class: str) -> bool:
    """Whether an object outlines structures of another one."""
    return sop_class in SEGMENTATIONS or sop_class == STRUCTURE_SET


def is_multiframe(sop_class: str) -> bool:
    """Whether an object is an enhanced image, which is a whole volume."""
    return sop_class in MULTIFRAME


def is_no_scan(sop_class: str) -> bool:
    """Whether an object cannot be segmented: a mask, a report, a plan and so on."""
    return sop_class.startswith(_NO_SCAN)
