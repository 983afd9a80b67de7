#!/bin/sh
# imageio reads DICOM with a reader of its own (deprecated, and still the one that is taken, also with pydicom installed),
# and applies rescale slope and intercept where the file has them.
#
# Expected: with slope 1 and intercept 0 the stored values.
# Seen: the type of the result is chosen by the largest value, and where none is negative it has one bit too few: up to 255
# they are int8, up to 65535 int16. So of an 8-bit picture 200 is read as -56, of a 16-bit one 40000 as -25536, and a
# slice of 12 bits whose largest value happens to be 200 has -56, while the next slice of the scan, with 300, is right.
# pydicom and SimpleITK read all of them right.
# Versions: imageio 2.38.1, pydicom 3.0.2, SimpleITK 2.5.7.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q imageio==2.38.1 pydicom==3.0.2 SimpleITK==2.5.7 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import SimpleITK as sitk
from pydicom import dcmread
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.pixels import apply_rescale
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage, generate_uid

Path("scan").mkdir()
print(*(f"{name} {version(name)}" for name in ("imageio", "pydicom", "SimpleITK")))


def read(allocated, stored, brightest):
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = MRImageStorage, generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file = FileDataset(None, {}, file_meta=meta, preamble=bytes(128))
    file.SOPClassUID, file.SOPInstanceUID = MRImageStorage, meta.MediaStorageSOPInstanceUID
    file.StudyInstanceUID, file.SeriesInstanceUID, file.FrameOfReferenceUID = (generate_uid() for _ in range(3))
    file.Modality, file.PatientID, file.PatientName, file.InstanceNumber = "MR", "1", "Made", 1
    file.ImageType = ["ORIGINAL", "PRIMARY", "M"]
    file.ImagePositionPatient, file.ImageOrientationPatient = [0, 0, 0], [1, 0, 0, 0, 1, 0]
    file.PixelSpacing, file.SliceThickness, file.Rows, file.Columns = [1, 1], 3, 8, 8
    file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = allocated, stored, stored - 1, 0
    file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
    file.RescaleSlope, file.RescaleIntercept = 1, 0
    pixels = np.zeros((8, 8), f"<u{allocated // 8}")
    pixels[4, 4] = brightest
    file.PixelData = pixels.tobytes()
    file.save_as("scan/slice.dcm", enforce_file_format=True)
    again = dcmread("scan/slice.dcm")
    return (
        int(imageio.imread("scan/slice.dcm")[4, 4]),
        int(apply_rescale(again.pixel_array, again)[4, 4]),
        int(sitk.GetArrayFromImage(sitk.ReadImage("scan/slice.dcm"))[0, 4, 4]),
    )


seen = {case: read(*case) for case in ((8, 8, 200), (16, 12, 200), (16, 12, 300), (16, 16, 40000))}
for (allocated, stored, brightest), (by_imageio, by_pydicom, by_itk) in seen.items():
    print(f"{brightest} in {stored} of {allocated} bits: imageio {by_imageio}, pydicom {by_pydicom}, SimpleITK {by_itk}")
assert all(found[1] == found[2] == brightest for (_, _, brightest), found in seen.items()), "they read it otherwise now"
assert [found[0] for found in seen.values()] == [-56, -56, 300, -25536], "imageio reads it otherwise now"
PYTHON
