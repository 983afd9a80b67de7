#!/bin/sh
# MONAI's PydicomReader takes all files of a series for one volume whose slices are equally far apart: the distance is
# the mean of those between neighbours in its list, whatever they are. Positions (0020,0032) may well repeat in a series,
# as in diffusion (a slice for each b-value) or in time, and a slice may be missing.
#
# Expected: an error or a warning if slices share a position, or are not equally far apart. SimpleITK's reader of series
# warns of both.
# Seen: two b-values at three positions become one volume of six slices of 0.8 mm, where slices are 2 mm apart; with one
# slice missing of six, all others lie elsewhere than scanned. Nothing is said.
# Versions: monai 1.6.1, pydicom 3.0.2.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 monai==1.6.1 pydicom==3.0.2 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
from monai.data import PydicomReader
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage, generate_uid

print("monai", version("monai"), "pydicom", version("pydicom"))


def write_series(folder, heights, b_values):
    """One file a slice, in the order of the scan."""
    Path(folder).mkdir()
    study, series, frame = generate_uid(), generate_uid(), generate_uid()
    for number, (height, b_value) in enumerate(zip(heights, b_values, strict=True), start=1):
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = MRImageStorage, generate_uid()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        file = FileDataset(None, {}, file_meta=meta, preamble=bytes(128))
        file.SOPClassUID, file.SOPInstanceUID = MRImageStorage, meta.MediaStorageSOPInstanceUID
        file.Modality, file.PatientID, file.PatientName = "MR", "1", "Made"
        file.StudyInstanceUID, file.SeriesInstanceUID, file.FrameOfReferenceUID = study, series, frame
        file.InstanceNumber, file.DiffusionBValue = number, float(b_value)
        file.ImagePositionPatient, file.ImageOrientationPatient = [0, 0, height], [1, 0, 0, 0, 1, 0]
        file.PixelSpacing, file.SliceThickness = [1, 1], 2
        file.Rows = file.Columns = 8
        file.BitsAllocated = file.BitsStored = 16
        file.HighBit, file.PixelRepresentation, file.SamplesPerPixel = 15, 0, 1
        file.PhotometricInterpretation = "MONOCHROME2"
        file.PixelData = np.full((8, 8), 100 * number, np.uint16).tobytes()
        file.save_as(f"{folder}/{number:03d}.dcm", enforce_file_format=True)


seen = {}
for name, heights, b_values in (
    ("all", [0, 2, 4, 6, 8, 10], [0] * 6),
    ("two b-values", [0, 2, 4, 0, 2, 4], [0] * 3 + [800] * 3),
    ("one slice missing", [0, 2, 4, 8, 10], [0] * 5),
):
    write_series(name, heights, b_values)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        reader = PydicomReader()
        voxels, about = reader.get_data(reader.read(name))
    step = round(float(np.asarray(about["affine"])[2, 2]), 3)
    seen[name] = voxels.shape[2], step, len(warned)
    print(f"{name}, at {heights} mm: {voxels.shape[2]} slices, {step} mm apart, {len(warned)} warnings")
assert seen == {"all": (6, 2.0, 0), "two b-values": (6, 0.8, 0), "one slice missing": (5, 2.5, 0)}, "it is otherwise now"
PYTHON
