#!/bin/sh
# X-rays are often kept as one folder with a file for each patient, each a series of its own. imageio.v3.imread(path) reads
# DICOM with a reader of imageio's own (deprecated, and still the one that is taken, also with pydicom installed).
#
# Expected: the picture in the file at this path.
# Seen: the reader looks through the whole folder, and if that has more than one series it gives the first one, in the
# order of their UIDs, whichever file was asked for. Ten patients have the picture of one of them, and a network that is
# trained on them learns ten labels of it. It prints that it found ten series. imageio.v2.imread gives each file's own.
# Versions: imageio 2.38.1, pydicom 3.0.2.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q imageio==2.38.1 pydicom==3.0.2 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import contextlib
import io
from importlib.metadata import version
from pathlib import Path

import imageio.v2
import imageio.v3
import numpy as np
from pydicom import dcmread
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ComputedRadiographyImageStorage, ExplicitVRLittleEndian, generate_uid

print("imageio", version("imageio"), "pydicom", version("pydicom"))
Path("xrays").mkdir()
for number in range(1, 11):
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = ComputedRadiographyImageStorage
    meta.MediaStorageSOPInstanceUID, meta.TransferSyntaxUID = generate_uid(), ExplicitVRLittleEndian
    file = FileDataset(None, {}, file_meta=meta, preamble=bytes(128))
    file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    file.StudyInstanceUID, file.SeriesInstanceUID = generate_uid(), generate_uid()
    file.Modality, file.PatientID, file.PatientName, file.InstanceNumber = "CR", str(number), "Made", 1
    file.Rows = file.Columns = 8
    file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 12, 11, 0
    file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
    file.PixelData = np.full((8, 8), 300 * number, np.uint16).tobytes()
    file.save_as(f"xrays/{number:02}.dcm", enforce_file_format=True)

files = sorted(map(str, Path("xrays").iterdir()))
first = min(files, key=lambda path: dcmread(path).SeriesInstanceUID)
seen = {"pydicom": [int(dcmread(path).pixel_array[0, 0]) for path in files]}
for name, read in (("v3.imread", imageio.v3.imread), ("v2.imread", imageio.v2.imread)):
    with contextlib.redirect_stdout(io.StringIO()):  # its progress
        seen[name] = [int(read(path)[0, 0]) for path in files]
for name, values in seen.items():
    print(f"{name} of ten files: {values}")
print(f"the series with the first UID is in {first}")
same = [seen["pydicom"][files.index(first)]] * 10
assert seen["pydicom"] == seen["v2.imread"] == [300 * number for number in range(1, 11)], "each file's own is read otherwise"
assert seen["v3.imread"] == same, "imageio gives each file's own by now"
PYTHON
