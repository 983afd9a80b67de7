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
    Rule(
        "JPEG with loss (baseline, extended), or an image that says it was compressed so",
        "warned of",
        "its values are not those of the scanner",
    ),
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
DICOM_MASKS: tuple[Rule, ...] = (
    Rule(
        "a structure by its name, then by its code",
        "read",
        "whatever its case and signs; a name with another class's code is refused",
    ),
    Rule(
        "structures that are no class",
        "warned of",
        "left out; --label 'prostate=PZ,TZ' says what they are, and merges several",
    ),
    Rule("two structures of one class", "refused", "keep one, or say which with --label"),
    Rule("two classes in one voxel", "refused", "give each voxel one class; structures that are no class may overlap"),
    Rule(
        "a mask of another series than its image", "warned of", "by the UIDs of series, images and frame of reference"
    ),
    Rule("images named, and no series", "read", "the series that has these images"),
    Rule(
        "a frame of reference named, and neither series nor images",
        "read",
        "the series that has it, if it is the only one",
    ),
    Rule("a SEG on its image's slices", "read", "binary, fractions, label map: voxel for voxel"),
    Rule(
        "a SEG without frames of empty slices", "read", "a frame reaches to the next one only where that is next to it"
    ),
    Rule(
        "a SEG of thicker slices than its image",
        "converted",
        "a frame reaches half-way to the next; a voxel is of the pixel that its centre lies in; with a warning",
    ),
    Rule("a SEG of finer slices", "converted", "the same"),
    Rule("a SEG of other pixels: finer, turned, shifted, cropped", "converted", "the same, in any plane"),
    Rule(
        "a SEG off its image's voxels and of another frame of reference",
        "refused",
        "its places say nothing of the image's",
    ),
    Rule(
        "a SEG of fractions",
        "converted",
        "a half or more of the largest value is inside; with a warning, unless all are 0 or whole",
    ),
    Rule("a SEG or structure set that reaches beyond its image", "warned of", "cut off, and how many ml"),
    Rule("a SEG or structure set wholly beside its image", "refused", "name the image that it was drawn on"),
    Rule("a SEG of slides, in tiles", "refused", "it has no place in a scan"),
    Rule("a SEG whose frames lack their place", "refused", "export it again"),
    Rule("a deflated SEG or structure set", "read", "up to 4 GiB"),
    Rule("a SEG in RLE, JPEG 2000 or another compression that can be decoded", "read", "by pydicom's decoders"),
    Rule("a SEG in a compression without decoder", "refused", "the compression is named"),
    Rule("closed contours on the image's slices", "read", "filled by the voxels' centres"),
    Rule(
        "holes, by contours within contours or by keyholes",
        "read",
        "a contour wholly within another is a hole, one in that an island",
    ),
    Rule("contours of a slice that overlap or repeat each other", "read", "united; a copy counts once"),
    Rule("contours that say XOR", "read", "what lies in an even number of them is outside"),
    Rule(
        "slices without a contour within a structure",
        "warned of",
        "by structure and slice; --interpolate fills them by the shapes next to them",
    ),
    Rule(
        "contours between slices, no further apart than these",
        "converted",
        "a slice takes the nearest, within half of a slice; with a warning",
    ),
    Rule("contours between slices, further apart than these", "refused", "unless --interpolate"),
    Rule("contours across the image's slices, in planes of its voxels", "read", "filled in these planes"),
    Rule("contours in no plane of the image's voxels", "refused", "export it on the image's slices"),
    Rule("points and open contours", "refused", "of a class; other structures may have them"),
)
"""SEG and RT Structure Sets."""
SEG_NRRD: tuple[Rule, ...] = (
    Rule(
        "segments with names, whatever their values",
        "read",
        "by name, as DICOM masks are; values may differ from case to case",
    ),
    Rule("segments with a code", "read", "by the terminology entry, after the name; Tissue, the default, says nothing"),
    Rule("segments that nobody has named", "read", "Segment_1 and the like, by the value that --label gives"),
    Rule("a name that is one class, and a value that is said to be another", "warned of", "the name is followed"),
    Rule(
        "a name that is no class, and a value that is said to be one",
        "refused",
        "--label prostate='Whole gland' says what the name stands for",
    ),
    Rule("values that no segment has", "refused", "save it from 3D Slicer again"),
    Rule("two segments with one value, or one name", "refused", "keep one of them"),
    Rule("layers of segments that overlap", "read", "two classes in one voxel are refused"),
    Rule("layers without names", "refused", "save it from 3D Slicer again, or as a mask of one value for each class"),
    Rule("voxels cut to the segments' extent", "read", "placed on the image's voxels"),
    Rule(
        "other voxels than the image's",
        "converted",
        "a voxel is of the segment's voxel that its centre lies in; with a warning",
    ),
    Rule("segments beyond the image", "warned of", "cut off, and how many ml; refused if nothing is left"),
    Rule("no names", "read", "by its values, as any mask"),
)
"""3D Slicer's segmentations."""
FILES: tuple[Rule, ...] = (
    Rule("NIfTI-1, .nii and .nii.gz", "read", "by SimpleITK, and turned to RAS"),
    Rule("NIfTI-2", "read", "by nibabel, laid where ITK lays the same header of NIfTI-1"),
    Rule(".nii.zst", "read", "by nibabel, as .nii.gz; a mask of it is written as .nii.gz"),
    Rule("NIfTI with scl_slope and scl_inter", "converted", "value x scl_slope + scl_inter"),
    Rule("NIfTI with an scl_slope of 0 or NaN", "read", "no scaling, and scl_inter is not added, as the standard says"),
    Rule("NIfTI with an scl_inter that is not a number", "refused", "readers disagree on it"),
    Rule("NIfTI with lengths in m or micron", "converted", "to mm"),
    Rule("NIfTI without a unit of length", "read", "taken for mm"),
    Rule("NIfTI with a code of length that NIfTI does not have", "warned of", "taken for mm"),
    Rule("NIfTI with a qform and an sform that differ", "warned of", "the qform is used"),
    Rule("NIfTI with neither qform nor sform", "warned of", "axes are taken for left, posterior, superior"),
    Rule("NIfTI whose pixdim and sform have two voxel sizes", "refused", "ITK takes one, and nibabel the other"),
    Rule(
        "NIfTI with voxel sizes that are 0, negative or NaN, or a singular affine",
        "refused",
        "readers disagree on it, or no voxel has a place",
    ),
    Rule("NRRD in RAS, LAS or LPS", "read", "turned to RAS"),
    Rule("NRRD with space units", "converted", "to mm, each axis by its own; as with units of spacings"),
    Rule("NRRD without axes of the patient", "warned of", "axes are taken for left, posterior, superior"),
    Rule("NRRD with a left-handed space", "refused", "it does not say which side is left"),
    Rule("NRRD with an axis without a size", "refused", "ITK would take 1 mm"),
    Rule("MetaImage with DistanceUnits", "converted", "to mm"),
    Rule("MetaImage with an ElementToIntensityFunction", "refused", "ITK does not compute it"),
    Rule("MetaImage whose AnatomicalOrientation is not that of its matrix", "warned of", "the matrix is used"),
    Rule("lengths in a unit that is not known, NRRD or MetaImage", "refused", "only units of length are converted"),
    Rule("axes without right angles", "refused", "if they displace a corner by more than a tenth of a voxel"),
    Rule("voxels of a size that no scanner has", "warned of", "below 0.01 mm or above 50 mm"),
    Rule("several volumes in one file, as sequences", "read", "those that dataset.json or --sequence name"),
    Rule("several volumes in one file, where nothing names them", "refused", "nothing says which is meant"),
    Rule("a truncated or damaged file", "refused", "its length and checksums are compared"),
    Rule("a name of another compression than the file's", "refused", "with the right name"),
    Rule("complex or colour voxels", "refused", "magnitude, in grey, is read"),
    Rule("NaN or infinite voxels", "refused", "with their number"),
    Rule("fewer than three slices", "refused", "whole volumes are read"),
    Rule("more than 2^30 voxels, or 32,767 along an axis", "refused", "before it is decoded"),
    Rule("a format that is not read, by name", "refused", "with what converts it"),
)
"""NIfTI, NRRD, MetaImage and formats that are not read."""
LISTS: tuple[Rule, ...] = (
    Rule("training in dataset.json, as of the Decathlon", "read", "each image with the label that the list gives it"),
    Rule(
        "dataset in dataset.json, as of nnU-Net 2", "read", "each case with its images and its label, wherever they lie"
    ),
    Rule(
        "images without the number of their sequence, as of nnU-Net 1",
        "read",
        "P1 stands for P1_0000, P1_0001 and so on",
    ),
    Rule("images without a label, by name", "read", "the label of the same name in labelsTr"),
    Rule("files of one name in several folders", "read", "cases are called by their paths"),
    Rule("labels that are called like other cases", "warned of", "the list is followed"),
    Rule("files beside those that are listed", "warned of", "they are left out"),
    Rule("cases for validation", "warned of", "they are left out: a site divides its cases itself"),
    Rule("images for training and for test", "warned of", "they are taken for training"),
    Rule("a pair that is listed twice", "warned of", "it is taken once"),
    Rule("another number of cases than numTraining", "warned of", "the cases that are there are taken"),
    Rule("other files than file_ending", "warned of", "they are taken too"),
    Rule("files that are not there", "refused", "by name"),
    Rule("a label of two images", "refused", "nothing says whose it is"),
    Rule("an image with two labels", "refused", "nothing says which is right"),
    Rule("an image as its own label", "refused", "a network would learn to copy"),
    Rule("another number of images than channel_names", "refused", "by case"),
    Rule("entries that name no image", "refused", "the list cannot be parsed"),
    Rule("folders of images and masks beside a list that pairs them otherwise", "refused", "--source follows the list"),
    Rule("imagesTr and labelsTr without a list", "read", "by name, with the numbers of nnU-Net's files"),
    Rule("a folder for each case", "read", "files are called by their sequence"),
    Rule("patterns", "read", "cases are called as BIDS does, or by the first *"),
    Rule("labels that are regions or ignored", "refused", "unless --label gives each value its class"),
    Rule("several sequences of one name", "refused", "unless --sequence names them"),
    Rule("more volumes than names", "refused", "by file"),
    Rule("two masks in the folder of a case", "refused", "by case"),
    Rule("scans in formats that are not read beside others", "warned of", "by name, with what converts them"),
    Rule("nothing but scans in formats that are not read", "refused", "by name, with what converts them"),
)
"""How images and masks are put together: names, patterns, dataset.json."""
MASKS: tuple[Rule, ...] = (
    Rule(
        "slices without a class between slices that have it",
        "warned of",
        "by class and slice, where a gap is short and what is on both sides of it overlaps",
    ),
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


def table(group: str) -> str:
    """The rules of one format as a table of Markdown."""
    rows = [f"| {rule.input} | {rule.outcome} | {rule.how} |" for rule in RULES[group]]
    return "\n".join([f"| {group} | it is | how |", "|---|---|---|", *rows])
