"""What is read, converted, warned of and refused, by format: the pages of the documentation are written from it.

Each rule has a test marked ``@pytest.mark.reads("FORMAT: INPUT")``; tests/repository/test_reading_rules.py holds both
to each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Outcome = Literal["read", "converted", "warned of", "refused"]


@dataclass(frozen=True)
class Rule:
    """One kind of input: ``input`` is what the file holds, ``how`` what is done with it, in a few words of a table."""

    input: str
    outcome: Outcome
    how: str


def _rules(text: str) -> tuple[Rule, ...]:
    """Rules in lines ``input | outcome | how``, of which one that is indented goes on with the line before it."""
    rows = [line.split(" | ") for line in text.replace("\n    ", " ").strip().splitlines()]
    known = {outcome: outcome for outcome in get_args(Outcome)}
    return tuple(Rule(what, known[outcome], how) for what, outcome, how in rows)


RULES: dict[str, tuple[Rule, ...]] = {
    "DICOM image": _rules("""
fewer bits stored than allocated, signed, or with content in the unused bits | read | the stored bits alone, with
    their sign (PS3.5, 8.1.1)
rescale slope and intercept, also of each slice or frame | read | applied, the same in classic slices and enhanced
    images (PS3.3, C.11.1)
a modality LUT | read | its table gives the intensities
a modality LUT beside a rescale slope | refused | the standard allows one of them
real world values beside the rescale slope | warned of | the rescale slope and intercept alone are used, so that
    classic and enhanced exports are the same
a private scale beside the rescale slope | read | the private scale is not used
a parametric map, of whole numbers or floating point | read | by its one linear real world value mapping, which is all
    that it has
MONOCHROME1 or an inverse presentation LUT, of CT, PET and other values with units | read | not turned: it is about
    display
MONOCHROME1 or an inverse presentation LUT, of MRI, whose values have no units | converted | turned within its stored
    bits, so that white is high, and said in the record
in colour or with a palette | refused | by the name of its photometric interpretation
CT in another unit than Hounsfield's, or without a rescale slope | warned of | its values are taken as they are; the
    record has the unit
slices in several units | refused | they are no one scale
scans of one sequence in several units, such as PET in BQML and in counts | warned of | with their cases
pixel padding, also of floating point | converted | pixels outside the image get the lowest intensity of those inside,
    with a warning; of others than CT an intensity of 0 stays
JPEG lossless, JPEG-LS, JPEG 2000, run lengths (RLE) | read | the same values as uncompressed
high-throughput JPEG 2000 (HTJ2K) | read | the same values as uncompressed
JPEG with loss (baseline, extended), or an image that says it was compressed so | warned of | its values are not those
    of the scanner
deflated, big endian or with implicit value representations | read | the same values
other encodings, such as MPEG or JPIP | refused | by the name of the transfer syntax
pixels that are damaged where they are compressed | refused | by file
slices shifted by a tilted gantry, or at uneven distances | refused | if a voxel lies more than a tenth of one beside
    an even box with right angles, over the whole stack
several volumes in one series (time points, echoes, b-values, phases, components) | refused | named with their values;
    `--volume N` takes one
several volumes in one series, of which one lacks slices | refused | that one; the others can be taken
several slices at each place, which nothing tells apart | refused | nothing says which are one volume
slices of one volume that say they are of several | refused | by what they say
one enhanced image in several files (a concatenation, or instances with a part each) | read | as one volume, by folder
    or series; a part alone is refused
a concatenation of which a part is missing | refused | says which parts are there
enhanced images of one series at the same places | read | each is a scan of its own
slices of several acquisitions that lie one after the other | read | as one volume
slices in several frames of reference | warned of | their places are taken as they are
copies of a slice | read | once; two that differ under one UID are refused
"""),
    "DICOM mask": _rules("""
a structure by its name, then by its code | read | whatever its case and signs; a name with another class's code is
    refused
structures that are no class | warned of | left out; --label 'prostate=PZ,TZ' says what they are, and merges several
two structures of one class | refused | keep one, or say which with --label
structures of one name that --label gives to a class | warned of | taken together, and how many voxels are in several
two classes in one voxel | refused | give each voxel one class; regions of a task and structures that are no class may
    overlap
a mask of another series than its image | warned of | by the UIDs of series, images and frame of reference
two structures of one number | refused | nothing says whose contours are which
images named, and no series | read | the series that has these images
a frame of reference named, and neither series nor images | read | the series that has it, if it is the only one
a SEG on its image's slices | read | binary, fractions, label map: voxel for voxel
a SEG without frames of empty slices | read | a frame reaches to the next one only where that is next to it
a SEG of thicker slices than its image | converted | a frame reaches half-way to the next; a voxel is of the pixel
    that its centre lies in; with a warning
a SEG of finer slices | converted | the same
a SEG of other pixels: finer, turned, shifted, cropped | converted | the same, in any plane
a SEG off its image's voxels and of another frame of reference | refused | its places say nothing of the image's
a SEG of fractions | converted | a half or more of the largest value is inside; with a warning, unless all are 0 or
    whole
a SEG or structure set that reaches beyond its image | warned of | cut off, and how many ml
a SEG or structure set wholly beside its image | refused | name the image that it was drawn on
a structure of a set in several frames of reference, of another than its image's | refused | its places say nothing of
    the image's
a SEG of slides, in tiles | refused | it has no place in a scan
a SEG whose frames lack their place | refused | export it again
a SEG with several frames of a segment at one place, as of several times | refused | unless they are the same
a label map whose background is another number than 0 | read | by its pixel padding value; without one, 0 is a
    structure unless it is called background
a deflated SEG or structure set | read | up to 4 GiB
a SEG in RLE, JPEG 2000 or another compression that can be decoded | read | by pydicom's decoders
a SEG in a compression without decoder | refused | the compression is named
closed contours on the image's slices | read | filled by the voxels' centres
holes, by contours within contours or by keyholes | read | a contour wholly within another is a hole, one in that an
    island
contours of one structure in several items | read | as one structure's
contours of a slice that overlap or repeat each other | read | united; a copy counts once
contours that say XOR | read | what lies in an even number of them is outside
contours with an offset vector that moves them | refused | it is retired, and readers differ; one of 0 is read
slices without a contour within a structure | warned of | by structure and slice; --interpolate fills them by the
    shapes next to them
contours between slices, no further apart than these | converted | a slice takes the nearest, within half of a slice;
    with a warning
contours between slices, further apart than these | refused | unless --interpolate
contours across the image's slices, in planes of its voxels | read | filled in these planes
contours in no plane of the image's voxels | refused | export it on the image's slices
points and open contours | refused | of a class; other structures may have them
"""),
    ".seg.nrrd": _rules("""
segments with names, whatever their values | read | by name, as DICOM masks are; values may differ from case to case
segments with a code | read | by the terminology entry, after the name; Tissue, the default, says nothing
segments that nobody has named | read | Segment_1 and the like, by the value that --label gives
a name that is one class, and a value that is said to be another | warned of | the name is followed
a name that is no class, and a value that is said to be one | refused | --label prostate='Whole gland' says what the
    name stands for
values that no segment has | refused | save it from 3D Slicer again
two segments with one value, or one name | refused | keep one of them
segments of one name that --label gives to a class | warned of | taken together, and how many voxels are in several
layers of segments that overlap | read | regions of the task may overlap; two classes in one voxel are refused
layers without names | refused | save it from 3D Slicer again, or as a mask of one value for each class
voxels cut to the segments' extent | read | placed on the image's voxels
other voxels than the image's | converted | a voxel is of the segment's voxel that its centre lies in; with a warning
segments beyond the image | warned of | cut off, and how many ml; refused if nothing is left
no names | read | by its values, as any mask
"""),
    "file": _rules("""
NIfTI-1, .nii and .nii.gz | read | by SimpleITK, and turned to RAS
NIfTI-2 | read | by nibabel, laid where ITK lays the same header of NIfTI-1
.nii.zst | read | by nibabel, as .nii.gz; a mask of it is written as .nii.gz
NIfTI with scl_slope and scl_inter | converted | value x scl_slope + scl_inter
NIfTI with an scl_slope of 0 or NaN | read | no scaling, and scl_inter is not added, as the standard says
NIfTI with an scl_inter that is not a number | refused | readers disagree on it
NIfTI with lengths in m or micron | converted | to mm
NIfTI without a unit of length | read | taken for mm
NIfTI with a code of length that NIfTI does not have | warned of | taken for mm
NIfTI with a qform and an sform that differ | warned of | the qform is used
NIfTI with a qform that is not in numbers, and an sform | warned of | the sform is used
NIfTI whose voxels begin within its header (vox_offset) | refused | readers begin at other bytes
NIfTI with neither qform nor sform | warned of | axes are taken for left, posterior, superior
NIfTI whose pixdim and sform have two voxel sizes | refused | ITK takes one, and nibabel the other
NIfTI with voxel sizes that are 0, negative or NaN, or a singular affine | refused | readers disagree on it, or no
    voxel has a place
NRRD in RAS, LAS or LPS | read | turned to RAS
NRRD with space units | converted | to mm, each axis by its own; as with units of spacings
NRRD without axes of the patient | warned of | axes are taken for left, posterior, superior
NRRD in a space, without a space origin | warned of | its first voxel is taken for 0, 0, 0
NRRD with a space origin that is not in numbers | refused | ITK would take 0
NRRD with a left-handed space | refused | it does not say which side is left
NRRD with an axis without a size | refused | ITK would take 1 mm
NRRD without spacings and space directions | refused | ITK would take 1 mm
NRRD with a negative voxel size | refused | readers disagree on it
NRRD with intensities that stand for others (old min, old max) | refused | ITK does not compute them
NRRD with fields and spaces in one word | read | as those in two, or with hyphens
NRRD with the ends of its axes in place of sizes | refused | ITK would take 1 mm
NRRD in raw, gzip or text | read | its voxels may be in one other file
NRRD whose voxels begin after lines or bytes (line skip, byte skip) | read | what follows is compared in length; a
    byte skip of -1 says that voxels are the last bytes of the file, which then may be longer
NRRD with another byte skip below 0 | refused | the format does not have it
NRRD with more bytes of voxels than its header says | refused | ITK would take the first ones
NRRD of whole numbers with other numbers in its text | refused | ITK would cut off fractions and the upper bits
NRRD in another encoding, such as bzip2 | refused | by its name
NRRD with its voxels in several files | refused | save it in one file
MetaImage with DistanceUnits | converted | to mm
MetaImage with an ElementToIntensityFunction | refused | ITK does not compute it
MetaImage without ElementSpacing and ElementSize | refused | ITK would take 1 mm
MetaImage with a voxel size that is 0 or negative | refused | readers disagree on it
MetaImage with fewer numbers than axes | refused | ITK goes on with what follows
MetaImage with two places or matrices that differ | refused | ITK takes one of them
MetaImage with a byte order said twice, or neither True nor False | refused | ITK takes one of them, or False
MetaImage with more bytes of voxels than its header says | refused | unless it says which with HeaderSize
MetaImage with voxels and a HeaderSize in one file | refused | ITK would read the header as voxels
MetaImage of whole numbers with other numbers in its text | refused | ITK would cut off fractions and the upper bits
MetaImage whose compressed voxels are of another length | refused | ITK would give what its memory held
MetaImage with compressed voxels below its header and no CompressedDataSize | refused | the same
MetaImage with a file for each slice | read | as a list or a pattern of names
MetaImage with other files than one for each slice, or a list whose last line has no end | refused | ITK would give
    what its memory held
MetaImage whose AnatomicalOrientation is not that of its matrix | warned of | the matrix is used
lengths in a unit that is not known, NRRD or MetaImage | refused | only units of length are converted
axes without right angles | refused | if they displace a corner by more than a tenth of a voxel
voxels of a size that no scanner has | warned of | below 0.01 mm or above 50 mm
several volumes in one file, as sequences | read | those that dataset.json or --sequence name
several volumes along more than one axis (5D and more) | refused | save the volume that is meant, or all as 4D
several volumes in one file, where nothing names them | refused | nothing says which is meant
a truncated or damaged file | refused | its length and checksums are compared
a name of another compression than the file's | refused | with the right name
complex or colour voxels | refused | magnitude, in grey, is read
NaN or infinite voxels | refused | with their number
fewer than three slices | refused | whole volumes are read
more than 2^30 voxels, or 32,767 along an axis | refused | before it is decoded
a format that is not read, by name | refused | with what converts it
"""),
    "list": _rules("""
training in dataset.json, as of the Decathlon | read | each image with the label that the list gives it
dataset in dataset.json, as of nnU-Net 2 | read | each case with its images and its label, wherever they lie
images without the number of their sequence, as of nnU-Net 1 | read | P1 stands for P1_0000, P1_0001 and so on
images without a label, by name | read | the label of the same name in labelsTr
files of one name in several folders | read | cases are called by their paths
labels that are called like other cases | warned of | the list is followed
files beside those that are listed | warned of | they are left out
cases for validation | warned of | they are left out: a site divides its cases itself
images for training and for test | warned of | they are taken for training
a pair that is listed twice | warned of | it is taken once
another number of cases than numTraining | warned of | the cases that are there are taken
other files than file_ending | warned of | they are taken too
files that are not there | refused | by name
a label of two images | refused | nothing says whose it is
an image with two labels | refused | nothing says which is right
an image as its own label | refused | a network would learn to copy
another number of images than channel_names | refused | by case
entries that name no image | refused | the list cannot be parsed
folders of images and masks beside a list that pairs them otherwise | refused | --source follows the list
folders of images and masks that are named, and lie beside dataset.json | read | by name, with its labels and channels
imagesTr and labelsTr without a list | read | by name, with the numbers of nnU-Net's files
a folder for each case | read | files are called by their sequence
patterns | read | cases are called as BIDS does, or by the first *
labels that are regions, or ignored | read | as those of a task with regions, or with ignore: true
a mask for each structure in the folder of a case | read | by the names of its files
several sequences of one name | refused | unless --sequence names them
more volumes than names | refused | by file
two masks in the folder of a case | refused | by case
scans in formats that are not read beside others | warned of | by name, with what converts them
nothing but scans in formats that are not read | refused | by name, with what converts them
"""),
    "mask": _rules("""
slices without a class between slices that have it | warned of | by class and slice, where a gap is short and what is
    on both sides of it overlaps
no voxel of any class | refused | draw the structure or leave the case out, or say that it may be missing
no voxel of any class, where the task has data.empty, is of lesions, or with --empty | warned of | taken as a case
    without the structure; Dice is over the others, false positives in ml are over these
"""),
    "picture": _rules("""
colour or grey of 8 bits | read | as it is
1 bit | read | black and white
palette | converted | to the palette's colours
CMYK | converted | to RGB; of JPEGs that Adobe's programs wrote inverted, turned
colours in LAB | refused | save it as RGB or grey
transparent pixels | converted | drawn on white, also where colours are multiplied by the opacity
transparent everywhere | refused | save it without transparency
turned by an EXIF tag | converted | upright
grey of 16 bits, of which fewer may be used | read | in 16 bits, over the fewest of 8, 10, 12, 14 and 16 bits that hold
    the largest value of a site's pictures (in predict of those given), or over --bits; said in the manifest
grey of 16 bits with a larger value than --bits says | refused | give more with --bits
grey TIFF of 12 bits | read | its range is 12 bits whatever values it has
grey DICOM of one frame with a window or a VOI LUT | read | as a viewer shows it by the first of them, in 16 bits
grey DICOM of one frame with neither | read | over the bits that it stores; one of 16 unsigned bits as other grey files
    of 16 bits
grey DICOM with neither, of 16 signed bits or 16 with a rescale slope | refused | nothing says which value is white
grey DICOM that is MONOCHROME1 or has an inverse presentation LUT | converted | turned, so that white is high
pixel padding of a grey DICOM | converted | pixels outside the image get its darkest shade, also where it is turned;
    with a warning
a DICOM whose pixels are not square, by their spacing or aspect ratio | warned of | taken for square
DICOM in colour, also YBR and palettes, of 8 bits | converted | to RGB
DICOM in colour or with colours burnt in, for a task of grey pictures | refused | export it in grey
DICOM of several frames, or without pixels | refused | by name
enhanced DICOM of one frame | read | with the rescale slope and window of its frame
raw radiographs (for processing), of DX, mammography and within the mouth | refused | no viewer shows their values;
    export the one for presentation
grey TIFF of 16 bits in which 0 is white | converted | turned, within the same range
grey of 16 or 32 bits, signed or not, with values from 0 to 65535 | read | as grey of 16 bits
values below 0 or above 65535 | refused | save it as a picture of 8 bits, or as a grey one of 16 bits
fractional values | refused | nothing says which value is white
grey of 16 bits with transparent pixels | refused | save it without transparency
colour of 16 bits | converted | to the upper 8 bits
colour of 16 bits, of which 14 or fewer are used | refused | save it as a picture of 8 bits
several pictures in one file | refused | save the one that is meant by itself
several pictures in one page of a TIFF, as ImageJ and tifffile write stacks | refused | the same
reduced copies in a TIFF, further pictures of a telephone's JPEG (MPO) | read | the first picture, and no other
a TIFF of other bits or samples | refused | save it as a picture of 8 bits, or as a grey one of 16 bits
cut short, damaged or no picture | refused | by name, all of a site at once
"""),
    "picture to segment": _rules("""
PNG, TIFF or BMP of 8 bits | read | red, green and blue as sequences; grey as one
grey of 16 bits, as a file or in DICOM | read | with all of its bits
grey where colours are asked for, equal colours where grey is | converted | said in the record
colours where grey is asked for | refused | name them in data.sequences, or save it in grey
palettes, CMYK, transparency, 1 bit | converted | as for pictures that are classified
several pages, files cut short | refused | by name
radiographs, ultrasound and secondary captures in DICOM | read | as a viewer shows them
Pixel Spacing of DICOM | read | as the size of a pixel in the patient, unless it is that of the detector or a film, or a
    radiograph does not say so
a DICOM whose pixels are not square, and of no known size | warned of | taken for square
several frames in DICOM | refused | export the one that is meant
a mask of another size | refused | with both sizes
a mask that was not turned with its picture by an EXIF tag | refused | or warned of where the size does not tell
a mask that changes along edges: JPEG, or smoothed | refused | export it again as PNG
a mask in black and white | read | white is the one class
a mask with a palette in which 0 is not black, and another number is black or white | refused | save it in grey
a mask in grey of 2 or 4 bits, or as a PGM or BMP of other than 8 or 16 | refused | unless black and white; readers
    stretch its numbers
a mask as a TIFF in which 0 is white, as ImageJ writes it | refused | save it as PNG
a mask in colours that are named as classes | read | a colour that no class has is refused, with the nearest
a file for each structure, or COCO's polygons and run lengths | read | by name
two files of one structure, or two categories of one name | refused | keep one of them
"""),
}


def table(group: str) -> str:
    """The rules of one format as a table of Markdown."""
    rows = [f"| {rule.input} | {rule.outcome} | {rule.how} |" for rule in RULES[group]]
    return "\n".join([f"| {group} | it is | how |", "|---|---|---|", *rows])
