#!/bin/sh
# Two readers of one valid DICOM SEG disagree on its shape and volume.
#
# Expected: a segment that lies on slices 2, 3, 9 and 10 (3 mm apart) is read with these places, 0.192 ml. highdicom writes no
# frame for the empty slices between, as is its default and as DICOM allows.
# What happens: highdicom reads it right. SimpleITK stacks the four frames upon each other, 1 mm apart, without a warning:
# 0.064 ml, and both parts are one. It takes neither the frames' positions nor SpacingBetweenSlices.
# Seen with highdicom 0.28.2, pydicom 3.0.2 and SimpleITK 2.5.7.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q highdicom==0.28.2 pydicom==3.0.2 SimpleITK==2.5.7
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import importlib.metadata as versions
import pathlib
import sys

import highdicom as hd
import numpy as np
import SimpleITK as sitk
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

path = pathlib.Path(sys.argv[1], "seg.dcm")
uids = {name: generate_uid() for name in ("StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID")}
files = []
for k in range(12):
    made = Dataset()
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made.SOPClassUID, made.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.4", generate_uid()
    for name, value in uids.items():
        setattr(made, name, value)
    for name in ("PatientBirthDate", "PatientSex", "StudyID", "AccessionNumber", "StudyDate", "StudyTime"):
        setattr(made, name, "")
    made.PatientName, made.PatientID, made.ReferringPhysicianName = "X^Y", "1", ""
    made.Modality, made.SeriesNumber, made.InstanceNumber = "MR", 1, k + 1
    made.Rows = made.Columns = 16
    made.PixelSpacing, made.SliceThickness, made.SpacingBetweenSlices = [1, 1], 3, 3
    made.ImageOrientationPatient, made.ImagePositionPatient = [1, 0, 0, 0, 1, 0], [0, 0, 3 * k]
    made.SamplesPerPixel, made.PhotometricInterpretation = 1, "MONOCHROME2"
    made.BitsAllocated, made.BitsStored, made.HighBit, made.PixelRepresentation = 16, 16, 15, 0
    made.PixelData = np.zeros((16, 16), np.uint16).tobytes()
    files.append(made)
mask = np.zeros((12, 16, 16), np.uint8)
mask[[1, 2, 8, 9], 4:8, 4:8] = 1
category = hd.sr.CodedConcept("49755003", "SCT", "Morphologically Abnormal Structure")
kind = hd.sr.CodedConcept("4147007", "SCT", "Mass")
hd.seg.Segmentation(
    files,
    mask,
    "BINARY",
    [hd.seg.SegmentDescription(1, "lesion", category, kind, "MANUAL")],
    series_instance_uid=generate_uid(),
    series_number=2,
    sop_instance_uid=generate_uid(),
    instance_number=1,
    manufacturer="M",
    manufacturer_model_name="M",
    software_versions="1",
    device_serial_number="1",
).save_as(path)

right = mask.sum() * 3 / 1000
volume = hd.seg.segread(path).get_volume(combine_segments=True, dtype=np.uint8)
by_highdicom = volume.array.sum() * np.prod(volume.spacing) / 1000
image = sitk.ReadImage(str(path))
by_itk = np.count_nonzero(sitk.GetArrayFromImage(image)) * np.prod(image.GetSpacing()) / 1000
print({name: versions.version(name) for name in ("highdicom", "pydicom", "SimpleITK")})
print(f"right      {right:.3f} ml")
print(f"highdicom  {by_highdicom:.3f} ml, {volume.array.shape[0]} slices of {volume.spacing[0]:g} mm")
print(f"SimpleITK  {by_itk:.3f} ml, {image.GetDepth()} slices of {image.GetSpacing()[2]:g} mm")
sys.exit(not (np.isclose(by_highdicom, right) and np.isclose(by_itk, right / 3) and image.GetDepth() == 4))
PYTHON
