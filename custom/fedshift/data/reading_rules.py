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
MASKS: tuple[Rule, ...] = (
    Rule("no voxel of any class", "refused", "draw the structure or leave the case out, or say that it may be missing"),
    Rule(
        "no voxel of any class, where the task has data.empty, is of lesions, or with --empty",
        "warned of",
        "taken as a case without the structure; Dice is over the others, false positives in ml are over these",
    ),
)
"""What holds for masks of every format."""
PICTURES: tuple[Rule, ...] = (
    Rule("colour or grey of 8 bits", "read", "as it is"),
    Rule("1 bit", "read", "black and white"),
    Rule("palette", "converted", "to the palette's colours"),
    Rule("CMYK", "converted", "to RGB; of JPEGs that Adobe's programs wrote inverted, turned"),
    Rule("colours in LAB", "refused", "save it as RGB or grey"),
    Rule("transparent pixels", "converted", "drawn on white, also where colours are multiplied by the opacity"),
    Rule("turned by an EXIF tag", "converted", "upright"),
    Rule(
        "grey of 16 bits, of which fewer may be used",
        "converted",
        "to 8 bits, by the fewest of 8, 10, 12, 14 and 16 bits that hold the largest value of a site's pictures (in "
        "predict of those given), or by --bits; said in the manifest",
    ),
    Rule("grey of 16 bits with a larger value than --bits says", "refused", "give more with --bits"),
    Rule("grey TIFF of 12 bits", "converted", "to 8 bits; its range is 12 bits whatever values it has"),
    Rule("grey TIFF of 16 bits in which 0 is white", "converted", "turned, within the same range"),
    Rule("grey of 16 or 32 bits, signed or not, with values from 0 to 65535", "read", "as grey of 16 bits"),
    Rule("values below 0 or above 65535", "refused", "save it as a picture of 8 bits, or as a grey one of 16 bits"),
    Rule("fractional values", "refused", "nothing says which value is white"),
    Rule("grey of 16 bits with transparent pixels", "refused", "save it without transparency"),
    Rule("colour of 16 bits", "converted", "to the upper 8 bits"),
    Rule("colour of 16 bits, of which 14 or fewer are used", "refused", "save it as a picture of 8 bits"),
    Rule("several pictures in one file", "refused", "save the one that is meant by itself"),
    Rule(
        "reduced copies in a TIFF, further pictures of a telephone's JPEG (MPO)",
        "read",
        "the first picture, and no other",
    ),
    Rule("a TIFF of other bits or samples", "refused", "save it as a picture of 8 bits, or as a grey one of 16 bits"),
    Rule("cut short, damaged or no picture", "refused", "by name, all of a site at once"),
)
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
