#!/bin/sh
# The modality transform of DICOM (PS3.3, C.11.1) is rescale slope and intercept, of each frame in an enhanced image, or a
# table (modality LUT).
# One would expect a reader that rescales to use each frame's own slope, and the table where there is one.
# What happens: SimpleITK rescales all frames of an enhanced image by the slope of the first; it ignores the table of a
# classic slice, and so does dcm2niix: they give the stored values. pydicom and highdicom use the table,
# highdicom each frame's slope.
# Seen with SimpleITK 2.5.7, highdicom 0.28.2, pydicom 3.0.2, dcm2niix 1.0.20260724, nibabel 5.4.2, numpy 2.4.6, Python 3.11.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv env
env/bin/pip install --quiet highdicom==0.28.2 pydicom==3.0.2 SimpleITK==2.5.7 dcm2niix==1.0.20260724 nibabel==5.4.2 numpy==2.4.6
env/bin/python - <<'PYTHON'
import importlib.metadata
import pathlib
import subprocess
import sys

import highdicom
import nibabel
import numpy as np
import pydicom
import SimpleITK
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.pixels import apply_modality_lut
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

for name in ("SimpleITK", "highdicom", "pydicom", "dcm2niix", "nibabel", "numpy"):
    print(name, importlib.metadata.version(name))
stored = np.arange(480).reshape(6, 8, 10).astype("<u2")
study, frame, dimension = generate_uid(), generate_uid(), generate_uid()


def item(**attributes):
    made = Dataset()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def base(sop_class, modality, series):
    made = item(SOPClassUID=sop_class, SOPInstanceUID=generate_uid(), Modality=modality, StudyInstanceUID=study,
                SeriesInstanceUID=series, FrameOfReferenceUID=frame, PatientName="A", PatientID="1", Rows=8, Columns=10,
                SamplesPerPixel=1, PhotometricInterpretation="MONOCHROME2", BitsAllocated=16, BitsStored=12, HighBit=11,
                PixelRepresentation=0)
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    return made


def same(one, other):
    """Whether the values are the same, in whatever order the slices are."""
    return np.array_equal(np.sort(one, None), np.sort(other, None))


# 1. An enhanced image whose frames have slopes 2 to 7.
made = base("1.2.840.10008.5.1.4.1.1.4.1", "MR", generate_uid())
made.ImageType, made.NumberOfFrames = ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"], 6
made.DimensionOrganizationSequence = [item(DimensionOrganizationUID=dimension)]
made.DimensionIndexSequence = [
    item(DimensionOrganizationUID=dimension, DimensionIndexPointer=0x00200032, FunctionalGroupPointer=0x00209113)]
made.SharedFunctionalGroupsSequence = [item(
    PlaneOrientationSequence=[item(ImageOrientationPatient=[1, 0, 0, 0, 1, 0])],
    PixelMeasuresSequence=[item(PixelSpacing=[1, 1], SliceThickness=3, SpacingBetweenSlices=3)])]
made.PerFrameFunctionalGroupsSequence = [item(
    PlanePositionSequence=[item(ImagePositionPatient=[0, 0, 3.0 * k])],
    FrameContentSequence=[item(DimensionIndexValues=[k + 1])],
    PixelValueTransformationSequence=[item(RescaleSlope=k + 2, RescaleIntercept=0, RescaleType="US")]) for k in range(6)]
made.PixelData = stored.tobytes()
made.save_as("whole.dcm", enforce_file_format=True)
right = stored.astype(int) * np.arange(2, 8)[:, None, None]
by_itk = SimpleITK.GetArrayFromImage(SimpleITK.ReadImage("whole.dcm"))
by_highdicom = highdicom.imread("whole.dcm").get_volume().array
print(f"slopes 2 to 7: right {right.max()}, SimpleITK {by_itk.max()}, highdicom {by_highdicom.max():g}")
seen = same(by_itk, 2 * stored.astype(int)) and same(by_highdicom, right)

# 2. Classic slices with a table that gives ten times the stored value.
folder, series = pathlib.Path("slices"), generate_uid()
folder.mkdir()
table = item(LUTDescriptor=[4096, 0, 16], ModalityLUTType="HU")
table.add_new("LUTData", "US", (np.arange(4096) * 10).tolist())
for k, pixels in enumerate(stored):
    made = base("1.2.840.10008.5.1.4.1.1.2", "CT", series)
    made.InstanceNumber, made.ImageType = k + 1, ["ORIGINAL", "PRIMARY", "AXIAL"]
    made.PixelSpacing, made.SliceThickness = [1, 1], 3
    made.ImageOrientationPatient, made.ImagePositionPatient = [1, 0, 0, 0, 1, 0], [0, 0, 3.0 * k]
    made.ModalityLUTSequence, made.PixelData = [table], pixels.tobytes()
    made.save_as(folder / f"{k}.dcm", enforce_file_format=True)
files = sorted(folder.iterdir())
subprocess.run(["env/bin/dcm2niix", "-f", "out", "-o", ".", "slices"], check=True, stdout=subprocess.DEVNULL)
found = {
    "SimpleITK": SimpleITK.GetArrayFromImage(SimpleITK.ReadImage([str(file) for file in files])).max(),
    "dcm2niix": np.asarray(nibabel.load("out.nii").dataobj).max(),
    "pydicom": max(apply_modality_lut(one.pixel_array, one).max() for one in map(pydicom.dcmread, files)),
    "highdicom": highdicom.get_volume_from_series([highdicom.imread(file) for file in files]).array.max(),
}
print(f"table: right {stored.max() * 10},", ", ".join(f"{name} {value:g}" for name, value in found.items()))
seen = seen and {name for name, value in found.items() if value == 10 * stored.max()} == {"pydicom", "highdicom"}
seen = seen and found["SimpleITK"] == found["dcm2niix"] == stored.max()
print("as described" if seen else "the behaviour has changed")
sys.exit(0 if seen else 1)
PYTHON
