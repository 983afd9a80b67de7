"""What is read, converted, warned of and refused, by format: the pages of the documentation are written from it.

Each rule has a test marked ``@pytest.mark.reads("FORMAT: INPUT")``; tests/repository/test_reading_rules.py holds both
to each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["read", "converted", "warned of", "refused"]


@dataclass(frozen=True)
class Rule:
    """One kind of input: ``input`` is what the file holds, ``how`` what is done with it, in a few words of a table."""

    input: str
    outcome: Outcome
    how: str


DICOM_IMAGES: tuple[Rule, ...] = ()
"""Classic series and enhanced images."""
DICOM_MASKS: tuple[Rule, ...] = ()
"""SEG and RT Structure Sets."""
SEG_NRRD: tuple[Rule, ...] = ()
"""3D Slicer's segmentations."""
FILES: tuple[Rule, ...] = ()
"""NIfTI, NRRD, MetaImage and formats that are not read."""
LISTS: tuple[Rule, ...] = ()
"""How images and masks are put together: names, patterns, dataset.json."""
MASKS: tuple[Rule, ...] = ()
"""What holds for masks of every format."""
PICTURES: tuple[Rule, ...] = ()
"""PNG, JPEG, TIFF."""
RULES: dict[str, tuple[Rule, ...]] = {
    "DICOM image": DICOM_IMAGES,
    "DICOM mask": DICOM_MASKS,
    ".seg.nrrd": SEG_NRRD,
    "file": FILES,
    "list": LISTS,
    "mask": MASKS,
    "picture": PICTURES,
}
