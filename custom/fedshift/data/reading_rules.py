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


DICOM_IMAGES: tuple[Rule, ...] = (
    Rule(
        "fewer bits stored than allocated, signed, or with content in the unused bits",
        "read",
        "the stored bits alone, with their sign (PS3.5, 8.1.1)",
    ),
    Rule(
        "rescale slope and intercept, also of each slice or frame",
        "read",
        "applied, the same in classic slices and enhanced images (PS3.3, C.11.1)",
    ),
    Rule("a modality LUT", "read", "its table gives the intensities"),
    Rule("a modality LUT beside a rescale slope", "refused", "the standard allows one of them"),
    Rule(
        "real world values beside the rescale slope",
        "warned of",
        "the rescale slope and intercept alone are used, so that classic and enhanced exports are the same",
    ),
    Rule("a private scale beside the rescale slope", "read", "the private scale is not used"),
    Rule(
        "a parametric map, of whole numbers or floating point",
        "read",
        "by its one linear real world value mapping, which is all that it has",
    ),
    Rule(
        "MONOCHROME1 or an inverse presentation LUT, of CT, PET and other values with units",
        "read",
        "not turned: it is about display",
    ),
    Rule(
        "MONOCHROME1 or an inverse presentation LUT, of MRI, whose values have no units",
        "converted",
        "turned within its stored bits, so that white is high, and said in the record",
    ),
    Rule("in colour or with a palette", "refused", "by the name of its photometric interpretation"),
    Rule(
        "CT in another unit than Hounsfield's, or without a rescale slope",
        "warned of",
        "its values are taken as they are; the record has the unit",
    ),
    Rule("slices in several units", "refused", "they are no one scale"),
    Rule(
        "pixel padding in CT",
        "converted",
        "pixels outside the image get the lowest intensity of those inside, with a warning",
    ),
    Rule("JPEG lossless, JPEG-LS, JPEG 2000, run lengths (RLE)", "read", "the same values as uncompressed"),
    Rule("high-throughput JPEG 2000 (HTJ2K)", "read", "the same values as uncompressed"),
    Rule("JPEG with loss (baseline and extended)", "warned of", "its values are not those of the scanner"),
    Rule("deflated, big endian or with implicit value representations", "read", "the same values"),
    Rule("other encodings, such as MPEG or JPIP", "refused", "by the name of the transfer syntax"),
    Rule("pixels that are damaged where they are compressed", "refused", "by file"),
    Rule(
        "slices shifted by a tilted gantry, or at uneven distances",
        "refused",
        "if a voxel lies more than a tenth of one beside an even box with right angles, over the whole stack",
    ),
    Rule(
        "several volumes in one series (time points, echoes, b-values, phases, components)",
        "refused",
        "named with their values; `--volume N` takes one",
    ),
    Rule("several volumes in one series, of which one lacks slices", "refused", "that one; the others can be taken"),
    Rule("several slices at each place, which nothing tells apart", "refused", "nothing says which are one volume"),
    Rule("slices of one volume that say they are of several", "refused", "by what they say"),
    Rule(
        "one enhanced image in several files (a concatenation, or instances with a part each)",
        "read",
        "as one volume, by folder or series; a part alone is refused",
    ),
    Rule("a concatenation of which a part is missing", "refused", "says which parts are there"),
    Rule("enhanced images of one series at the same places", "read", "each is a scan of its own"),
    Rule("slices of several acquisitions that lie one after the other", "read", "as one volume"),
    Rule("copies of a slice", "read", "once; two that differ under one UID are refused"),
)
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
