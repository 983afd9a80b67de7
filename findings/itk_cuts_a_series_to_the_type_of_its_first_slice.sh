#!/bin/sh
# Each slice of PET has a rescale slope of its own (PS3.3, C.8.9.4): a scanner chooses it so that the largest value of that
# slice fills 16 bits. A slice in which nothing was measured may well have the slope 1.
#
# Expected: a series is read as stored value times slope, slice by slice, whichever slice is first.
# Seen: SimpleITK takes the type of all voxels from the first file. With a slope of 1 there it is uint16: the others lose
# what is behind the point, so that standardized uptakes of 0 to 4.9 become 0 to 4 and a volume above 2.5 is 20 % smaller,
# and Bq/ml above 65535 wrap around, so that the hottest voxels are no longer the hottest. Nothing is said. The same files
# in the other order are right, as they are with dcm2niix.
# Versions: SimpleITK 2.5.7, pydicom 3.0.2, dcm2niix 1.0.20260724, nibabel 5.4.2.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q SimpleITK==2.5.7 pydicom==3.0.2 dcm2niix==1.0.20260724 nibabel==5.4.2 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import subprocess
from importlib.metadata import version
from pathlib import Path

import nibabel
import numpy as np
import SimpleITK as sitk
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, PositronEmissionTomographyImageStorage, generate_uid

print(*(f"{name} {version(name)}" for name in ("SimpleITK", "pydicom", "dcm2niix", "nibabel")))


def write_series(folder, units, slopes, slices):
    Path(folder).mkdir()
    study, series, frame = generate_uid(), generate_uid(), generate_uid()
    files = []
    for number, (slope, pixels) in enumerate(zip(slopes, slices, strict=True), start=1):
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID = PositronEmissionTomographyImageStorage
        meta.MediaStorageSOPInstanceUID, meta.TransferSyntaxUID = generate_uid(), ExplicitVRLittleEndian
        file = FileDataset(None, {}, file_meta=meta, preamble=bytes(128))
        file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
        file.StudyInstanceUID, file.SeriesInstanceUID, file.FrameOfReferenceUID = study, series, frame
        file.Modality, file.PatientID, file.PatientName, file.Units = "PT", "1", "Made", units
        file.InstanceNumber, file.ImageType = number, ["ORIGINAL", "PRIMARY"]
        file.ImagePositionPatient, file.ImageOrientationPatient = [0, 0, 3 * number], [1, 0, 0, 0, 1, 0]
        file.PixelSpacing, file.SliceThickness = [1, 1], 3
        file.Rows = file.Columns = 20
        file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 16, 15, 0
        file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
        file.RescaleSlope, file.RescaleIntercept = slope, 0
        file.PixelData = pixels.astype("<u2").tobytes()
        files.append(f"{folder}/{number}.dcm")
        file.save_as(files[-1], enforce_file_format=True)
    return files


def read(files):
    image = sitk.ReadImage(files)
    return image.GetPixelIDTypeAsString(), sitk.GetArrayFromImage(image)


ramp, empty = np.arange(400).reshape(20, 20), np.zeros((20, 20), int)

slopes = [1, 0.0123, 0.0123]
uptake = [empty, ramp, ramp]
files = write_series("uptake", "GML", slopes, uptake)
right = np.stack([slope * pixels for slope, pixels in zip(slopes, uptake, strict=True)])
kind, by_itk = read(files)
_, reversed_ = read(files[::-1])
subprocess.run(["venv/bin/dcm2niix", "-f", "out", "-o", ".", "uptake"], check=True, stdout=subprocess.DEVNULL)
by_dcm2niix = np.asarray(nibabel.load("out.nii").dataobj)
print(f"uptake of up to {right.max():.2f}, {(right > 2.5).sum()} voxels above 2.5")
for name, values in {f"SimpleITK ({kind})": by_itk, "in the other order": reversed_, "dcm2niix": by_dcm2niix}.items():
    print(f"  {name}: up to {values.max():.2f}, {(values > 2.5).sum()} above 2.5")
assert np.array_equal(by_itk, np.trunc(right)), "SimpleITK reads it otherwise by now"
assert np.allclose(reversed_[::-1], right) and np.isclose(by_dcm2niix.max(), right.max()), "they read it otherwise by now"

files = write_series("activity", "BQML", [1, 2.5, 2.5], [empty, 80 * ramp, 80 * ramp])
kind, by_itk = read(files)
print(f"activity of up to {200 * 399} Bq/ml: SimpleITK ({kind}) reads {by_itk[1, -1, -1]} there, and up to {by_itk.max()}")
assert by_itk[1, -1, -1] == 200 * 399 - 2**16 and by_itk.max() < 2**16, "SimpleITK reads it otherwise by now"
PYTHON
