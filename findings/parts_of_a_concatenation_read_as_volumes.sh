#!/bin/sh
# A concatenation (PS3.3, C.7.6.16.1.2): one enhanced image in several files, which say of which image they are a part, which
# part of how many, and with which frame they begin.
# One would expect one volume of all frames.
# What happens: dcm2niix writes a volume for each part, and SimpleITK's series reader stacks the parts as a fourth dimension;
# dcm2niix does not say that a volume is a part of a scan.
# Seen with dcm2niix 1.0.20260724, SimpleITK 2.5.7, pydicom 3.0.2, nibabel 5.4.2, numpy 2.4.6, Python 3.11.
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
import SimpleITK
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

for name in ("dcm2niix", "SimpleITK", "pydicom", "nibabel", "numpy"):
    print(name, importlib.metadata.version(name))
study, series, frame, whole, source = (generate_uid() for _ in range(5))
folder = pathlib.Path("parts")
folder.mkdir()


def item(**attributes):
    made = Dataset()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


for part in (0, 1):
    made = item(SOPClassUID="1.2.840.10008.5.1.4.1.1.4.1", SOPInstanceUID=generate_uid(), Modality="MR",
                StudyInstanceUID=study, SeriesInstanceUID=series, FrameOfReferenceUID=frame, SeriesNumber=1,
                InstanceNumber=1, PatientName="A", PatientID="1", ImageType=["ORIGINAL", "PRIMARY", "VOLUME", "NONE"],
                NumberOfFrames=3, Rows=8, Columns=10, SamplesPerPixel=1, PhotometricInterpretation="MONOCHROME2",
                PresentationLUTShape="IDENTITY", BitsAllocated=16, BitsStored=12, HighBit=11, PixelRepresentation=0,
                ConcatenationUID=whole, SOPInstanceUIDOfConcatenationSource=source, InConcatenationNumber=part + 1,
                InConcatenationTotalNumber=2, ConcatenationFrameOffsetNumber=3 * part)
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made.SharedFunctionalGroupsSequence = [item(
        PlaneOrientationSequence=[item(ImageOrientationPatient=[1, 0, 0, 0, 1, 0])],
        PixelMeasuresSequence=[item(PixelSpacing=[1, 1], SliceThickness=3, SpacingBetweenSlices=3)])]
    made.PerFrameFunctionalGroupsSequence = [item(
        PlanePositionSequence=[item(ImagePositionPatient=[0, 0, 3.0 * k])],
        FrameContentSequence=[item(StackID="1", InStackPositionNumber=k + 1, DimensionIndexValues=[1, k + 1])])
        for k in range(3 * part, 3 * part + 3)]
    made.PixelData = np.arange(240).astype("<u2").tobytes()
    made.save_as(folder / f"{part + 1}.dcm", enforce_file_format=True)
said = subprocess.run(["env/bin/dcm2niix", "-f", "out%r", "-o", ".", "parts"], check=True, capture_output=True, text=True)
shapes = [nibabel.load(path).shape for path in sorted(pathlib.Path().glob("out*.nii"))]
names = SimpleITK.ImageSeriesReader.GetGDCMSeriesFileNames("parts", series)
size = SimpleITK.ReadImage(names).GetSize()
print(f"right: one volume of 10 x 8 x 6; dcm2niix: {shapes}; SimpleITK: {size}")
seen = shapes == [(10, 8, 3)] * 2 and size == (10, 8, 3, 2) and "oncatenation" not in said.stdout
print("as described" if seen else "the behaviour has changed")
sys.exit(0 if seen else 1)
PYTHON
