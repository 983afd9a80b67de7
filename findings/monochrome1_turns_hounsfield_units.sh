#!/bin/sh
# MONOCHROME1 (PS3.3, C.7.6.3.1.2) says that the lowest value is shown white. It says nothing of what the values are:
# Hounsfield units of CT are the stored values after rescale slope and intercept (PS3.3, C.11.1).
# One would expect every reader to give the same Hounsfield units for a slice with MONOCHROME1 and with MONOCHROME2.
# What happens: SimpleITK turns the stored values within their bits before it rescales them, so air of -1024 HU becomes
# 3071 HU, of classic slices and of an enhanced image. pydicom's rescale and dcm2niix leave the values as they are.
# Seen with SimpleITK 2.5.7, pydicom 3.0.2, dcm2niix 1.0.20260724, nibabel 5.4.2, numpy 2.4.6, Python 3.11.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv env
env/bin/pip install --quiet pydicom==3.0.2 SimpleITK==2.5.7 dcm2niix==1.0.20260724 nibabel==5.4.2 numpy==2.4.6
env/bin/python - <<'PYTHON'
import importlib.metadata
import pathlib
import subprocess
import sys

import nibabel
import numpy as np
import pydicom
import SimpleITK
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.pixels import apply_rescale
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

for name in ("SimpleITK", "pydicom", "dcm2niix", "nibabel", "numpy"):
    print(name, importlib.metadata.version(name))
stored = np.arange(480).reshape(6, 8, 10).astype("<u2")
right = stored.astype(float) - 1024
study, frame, dimension = generate_uid(), generate_uid(), generate_uid()


def item(**attributes):
    made = Dataset()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def base(sop_class, photometric, series):
    made = item(SOPClassUID=sop_class, SOPInstanceUID=generate_uid(), Modality="CT", StudyInstanceUID=study,
                SeriesInstanceUID=series, FrameOfReferenceUID=frame, PatientName="A", PatientID="1", Rows=8, Columns=10,
                SamplesPerPixel=1, PhotometricInterpretation=photometric, BitsAllocated=16, BitsStored=12, HighBit=11,
                PixelRepresentation=0)
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    return made


def classic(folder, photometric):
    folder.mkdir()
    series = generate_uid()
    for k, pixels in enumerate(stored):
        made = base("1.2.840.10008.5.1.4.1.1.2", photometric, series)
        made.InstanceNumber, made.ImageType = k + 1, ["ORIGINAL", "PRIMARY", "AXIAL"]
        made.PixelSpacing, made.SliceThickness = [1, 1], 3
        made.ImageOrientationPatient, made.ImagePositionPatient = [1, 0, 0, 0, 1, 0], [0, 0, 3.0 * k]
        made.RescaleSlope, made.RescaleIntercept, made.RescaleType = 1, -1024, "HU"
        made.PixelData = pixels.tobytes()
        made.save_as(folder / f"{k}.dcm", enforce_file_format=True)
    return sorted(folder.iterdir())


def enhanced(path, photometric):
    made = base("1.2.840.10008.5.1.4.1.1.2.1", photometric, generate_uid())
    made.ImageType, made.NumberOfFrames = ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"], 6
    made.DimensionOrganizationSequence = [item(DimensionOrganizationUID=dimension)]
    made.DimensionIndexSequence = [
        item(DimensionOrganizationUID=dimension, DimensionIndexPointer=0x00200032, FunctionalGroupPointer=0x00209113)]
    made.SharedFunctionalGroupsSequence = [item(
        PlaneOrientationSequence=[item(ImageOrientationPatient=[1, 0, 0, 0, 1, 0])],
        PixelMeasuresSequence=[item(PixelSpacing=[1, 1], SliceThickness=3, SpacingBetweenSlices=3)],
        PixelValueTransformationSequence=[item(RescaleSlope=1, RescaleIntercept=-1024, RescaleType="HU")])]
    made.PerFrameFunctionalGroupsSequence = [item(
        PlanePositionSequence=[item(ImagePositionPatient=[0, 0, 3.0 * k])],
        FrameContentSequence=[item(DimensionIndexValues=[k + 1])]) for k in range(6)]
    made.PixelData = stored.tobytes()
    made.save_as(path, enforce_file_format=True)


def by_dcm2niix(folder):
    subprocess.run(["env/bin/dcm2niix", "-f", "out", "-o", ".", str(folder)], check=True, stdout=subprocess.DEVNULL)
    return np.asarray(nibabel.load("out.nii").dataobj)


files = classic(pathlib.Path("slices"), "MONOCHROME1")
enhanced("whole.dcm", "MONOCHROME1")
read = [pydicom.dcmread(file) for file in files]
found = {
    "SimpleITK, classic": SimpleITK.GetArrayFromImage(SimpleITK.ReadImage([str(file) for file in files])),
    "SimpleITK, enhanced": SimpleITK.GetArrayFromImage(SimpleITK.ReadImage("whole.dcm")),
    "pydicom, classic": np.stack([apply_rescale(one.pixel_array, one) for one in read]),
    "dcm2niix, classic": by_dcm2niix("slices"),
}
print(f"right: {right.min():g} to {right.max():g} HU")
turned = {}
for name, values in found.items():
    turned[name] = bool(values.max() == 4095 - 1024)
    print(f"  {name}: {values.min():g} to {values.max():g} HU")
wrong = {name for name, value in turned.items() if value}
seen = wrong == {"SimpleITK, classic", "SimpleITK, enhanced"}
seen = seen and all(values.min() == -1024 for name, values in found.items() if name not in wrong)
print("as described" if seen else "the behaviour has changed")
sys.exit(0 if seen else 1)
PYTHON
