#!/bin/sh
# A radiograph has two distances between pixels: Imager Pixel Spacing (0018,1164), at the detector, and Pixel Spacing
# (0028,0030), which where both are there and differ was calibrated to the patient, as with a ball of known size beside
# the hip (PS3.3, 10.7.1.3). The patient's anatomy is smaller than its shadow.
#
# Expected: Pixel Spacing where the file has it.
# Seen: of CR, DX, mammography, fluoroscopy and angiography SimpleITK (GDCM) gives the detector's, without a word. A
# length of 100 mm is reported as 125 mm here, an area 56 % too large. Without the detector's distance the calibrated one
# is not used either: pixels are of 1 x 1 mm. Of secondary captures and ultrasound Pixel Spacing is read.
# Versions: simpleitk 2.5.5, pydicom 3.0.2.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q simpleitk==2.5.5 pydicom==3.0.2 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
import SimpleITK as sitk
from pydicom import uid
from pydicom.dataset import FileDataset, FileMetaDataset

print("simpleitk", version("simpleitk"), "pydicom", version("pydicom"))
CLASSES = {
    "CR": uid.ComputedRadiographyImageStorage,
    "DX": uid.DigitalXRayImageStorageForPresentation,
    "MG": uid.DigitalMammographyXRayImageStorageForPresentation,
    "RF": uid.XRayRadiofluoroscopicImageStorage,
    "XA": uid.XRayAngiographicImageStorage,
    "OT": uid.SecondaryCaptureImageStorage,
    "US": uid.UltrasoundImageStorage,
}
DETECTOR = {"ImagerPixelSpacing": [0.2, 0.2]}
CALIBRATED = {"PixelSpacing": [0.16, 0.16], "PixelSpacingCalibrationType": "FIDUCIAL"}


def read_spacing(modality, spacing):
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CLASSES[modality], uid.generate_uid()
    meta.TransferSyntaxUID = uid.ExplicitVRLittleEndian
    file = FileDataset(None, {}, file_meta=meta, preamble=bytes(128))
    file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    file.StudyInstanceUID, file.SeriesInstanceUID = uid.generate_uid(), uid.generate_uid()
    file.Modality, file.PatientID, file.PatientName = modality, "1", "Made"
    for keyword, value in spacing.items():
        setattr(file, keyword, value)
    file.Rows = file.Columns = 8
    file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 12, 11, 0
    file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
    file.PixelData = np.arange(64, dtype=np.uint16).tobytes()
    file.save_as("picture.dcm", enforce_file_format=True)
    return round(sitk.ReadImage("picture.dcm").GetSpacing()[0], 6)


seen = {
    modality: [read_spacing(modality, spacing) for spacing in (DETECTOR, DETECTOR | CALIBRATED, CALIBRATED)]
    for modality in CLASSES
}
print("mm between pixels; files with the detector's 0.2, with that and the calibrated 0.16, with 0.16 alone")
for modality, read in seen.items():
    print(modality, read)
radiographs = dict.fromkeys(("CR", "DX", "MG", "RF", "XA"), [0.2, 0.2, 1.0])
assert seen == {**radiographs, "OT": [1.0, 0.16, 0.16], "US": [1.0, 0.16, 0.16]}, "it is otherwise now"
PYTHON
