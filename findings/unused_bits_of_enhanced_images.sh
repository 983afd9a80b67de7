#!/bin/sh
# Unused bits of DICOM pixels (PS3.5, 8.1.1): of 16 allocated bits 12 are stored, and the upper four may hold anything, such
# as an overlay or nothing at all above a sign.
# One would expect every reader to give the stored values.
# What happens: of an enhanced image highdicom takes all 16 bits, so signed values below 0 become +4096, and an overlay's bit
# +32768. SimpleITK and pydicom give the stored values.
# Seen with highdicom 0.28.2, pydicom 3.0.2, SimpleITK 2.5.7, numpy 2.4.6, Python 3.11.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv env
env/bin/pip install --quiet highdicom==0.28.2 pydicom==3.0.2 SimpleITK==2.5.7 numpy==2.4.6
env/bin/python - <<'PYTHON'
import importlib.metadata
import sys

import highdicom
import numpy as np
import pydicom
import SimpleITK
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

for name in ("highdicom", "pydicom", "SimpleITK", "numpy"):
    print(name, importlib.metadata.version(name))


def item(**attributes):
    made = Dataset()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def enhanced(path, bits, sign):
    made = item(SOPClassUID="1.2.840.10008.5.1.4.1.1.4.1", SOPInstanceUID=generate_uid(), Modality="MR",
                StudyInstanceUID=generate_uid(), SeriesInstanceUID=generate_uid(), FrameOfReferenceUID=generate_uid(),
                PatientName="A", PatientID="1", ImageType=["ORIGINAL", "PRIMARY", "VOLUME", "NONE"], NumberOfFrames=len(bits),
                Rows=bits.shape[1], Columns=bits.shape[2], SamplesPerPixel=1, PhotometricInterpretation="MONOCHROME2",
                PresentationLUTShape="IDENTITY", BitsAllocated=16, BitsStored=12, HighBit=11, PixelRepresentation=sign)
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    uid = generate_uid()
    made.DimensionOrganizationSequence = [item(DimensionOrganizationUID=uid)]
    made.DimensionIndexSequence = [
        item(DimensionOrganizationUID=uid, DimensionIndexPointer=0x00200032, FunctionalGroupPointer=0x00209113)]
    made.SharedFunctionalGroupsSequence = [item(
        PlaneOrientationSequence=[item(ImageOrientationPatient=[1, 0, 0, 0, 1, 0])],
        PixelMeasuresSequence=[item(PixelSpacing=[1, 1], SliceThickness=3, SpacingBetweenSlices=3)])]
    made.PerFrameFunctionalGroupsSequence = [item(
        PlanePositionSequence=[item(ImagePositionPatient=[0, 0, 3.0 * k])],
        FrameContentSequence=[item(DimensionIndexValues=[k + 1])]) for k in range(len(bits))]
    made.PixelData = bits.astype("<u2").tobytes()
    made.save_as(path, enforce_file_format=True)


def same(one, other):
    """Whether the values are the same, in whatever order the slices are."""
    return np.array_equal(np.sort(one, None), np.sort(other, None))


right = np.arange(-240, 240).reshape(6, 8, 10)
cases = {"signed": (right, right & 0xFFF, 1), "overlay in bit 15": (right + 240, (right + 240) | 0x8000, 0)}
seen = True
for name, (values, bits, sign) in cases.items():
    path = f"{name.replace(' ', '_')}.dcm"
    enhanced(path, bits, sign)
    found = {
        "SimpleITK": SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(path)),
        "pydicom": pydicom.dcmread(path).pixel_array,
        "highdicom": highdicom.imread(path).get_volume().array,
    }
    print(f"{name}: right {values.min()} to {values.max()}")
    for reader, pixels in found.items():
        print(f"  {reader}: {pixels.min():g} to {pixels.max():g}")
    seen = seen and same(found["SimpleITK"], values) and same(found["pydicom"], values)
    seen = seen and same(found["highdicom"], bits)
print("as described" if seen else "the behaviour has changed")
sys.exit(0 if seen else 1)
PYTHON
