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
