#!/bin/sh
# CT of the head is often made with a tilted gantry: slices lie oblique to the table, and each one's position
# (0020,0032) is moved along the table. The volume is then a leaning stack, whose axes are not perpendicular.
#
# Expected: each slice lies where its file says, or the reader refuses the series or warns of it.
# Seen: SimpleITK stacks the slices straight up, and takes the distance along the table for the one between slices. With
# a tilt of 20 degrees and 20 slices of 5 mm the last one lies 33 mm from its place, a rod along the body points 20 degrees
# aside, and the volume of a voxel is 6 % too large. Nothing is said. The reader's option ForceOrthogonalDirectionOff puts
# the slices right. dcm2niix says that there is a tilt, and its straightened scan has both ends of the rod where they are.
# Versions: SimpleITK 2.5.7, dcm2niix 1.0.20260724, pydicom 3.0.2, nibabel 5.4.2.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q SimpleITK==2.5.7 dcm2niix==1.0.20260724 pydicom==3.0.2 nibabel==5.4.2 numpy==2.2.6
cd "$folder"
PATH="$folder/venv/bin:$PATH" "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import subprocess
from importlib.metadata import version
from pathlib import Path

import nibabel
import numpy as np
import SimpleITK as sitk
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

print(*(f"{name} {version(name)}" for name in ("SimpleITK", "dcm2niix", "pydicom", "nibabel")))
SIDE, SLICES, STEP, TILT = 48, 20, 5.0, np.deg2rad(20)
across = np.array([1, 0, 0])
down = np.array([0, np.cos(TILT), -np.sin(TILT)]).round(6)
study, series, frame = generate_uid(), generate_uid(), generate_uid()
Path("scan").mkdir()
truth = []
for k in range(SLICES):
    file = Dataset()
    file.SOPClassUID, file.SOPInstanceUID = CTImageStorage, generate_uid()
    file.StudyInstanceUID, file.SeriesInstanceUID, file.FrameOfReferenceUID = study, series, frame
    file.PatientName, file.PatientID, file.Modality, file.PatientPosition = "Made", "1", "CT", "HFS"
    file.InstanceNumber, file.SeriesNumber, file.GantryDetectorTilt = k + 1, 1, 20
    position = np.array([0, 0, STEP * k])
    file.ImagePositionPatient, file.ImageOrientationPatient = position.tolist(), [*across, *down]
    file.PixelSpacing, file.SliceThickness, file.Rows, file.Columns = [1, 1], STEP, SIDE, SIDE
    file.SamplesPerPixel, file.PhotometricInterpretation, file.PixelRepresentation = 1, "MONOCHROME2", 0
    file.BitsAllocated, file.BitsStored, file.HighBit = 16, 12, 11
    file.RescaleSlope, file.RescaleIntercept = 1, -1024
    pixels = np.zeros((SIDE, SIDE), "<u2")
    pixels[20, 20] = 2000  # a rod along the table
    truth.append(position + 20 * across + 20 * down)
    file.PixelData = pixels.tobytes()
    file.file_meta = FileMetaDataset()
    file.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file.save_as(f"scan/{k:02}.dcm", enforce_file_format=True)
truth = np.array(truth)


def by_itk(forced):
    reader = sitk.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames("scan"))
    reader.SetForceOrthogonalDirection(forced)
    scan = reader.Execute()
    places = [scan.TransformIndexToPhysicalPoint((20, 20, k)) for k in range(SLICES)]
    edges = np.array(scan.GetDirection()).reshape(3, 3) * scan.GetSpacing()
    return np.array(places), abs(np.linalg.det(edges))


def by_dcm2niix():
    done = subprocess.run(["dcm2niix", "-f", "scan", "scan"], check=True, capture_output=True, text=True)
    print(*(f"dcm2niix: {line}" for line in done.stdout.splitlines() if "have gantry tilt" in line), sep="\n")
    scan = nibabel.load("scan/scan_Tilt_1.nii")
    values = scan.get_fdata()
    places = []
    for k in range(SLICES):
        weights = values[..., k] - values[..., k].min()
        weights[weights < 1000] = 0
        middle = [np.average(grid, weights=weights) for grid in np.indices(weights.shape)]
        places.append(nibabel.affines.apply_affine(scan.affine, [*middle, k]) * (-1, -1, 1))
    return np.array(places), abs(np.linalg.det(scan.affine))


def ends(places):
    """How far the ends of the rod are from their places, in mm, and its angle to the table."""
    places = places[np.argsort(places[:, 2])]
    far = np.linalg.norm(places - truth, axis=1)
    rod = places[-1] - places[0]
    return round(float(far[0]), 1), round(float(far[-1]), 1), round(float(np.degrees(np.arccos(rod[2] / np.linalg.norm(rod)))))


seen = {}
print(f"a voxel has {STEP * np.cos(TILT):.2f} mm³")
for name, (places, volume) in (("SimpleITK", by_itk(True)), ("its option", by_itk(False)), ("dcm2niix", by_dcm2niix())):
    seen[name] = ends(places)
    first, last, angle = seen[name]
    print(f"{name}: ends of the rod {first} and {last} mm away, {angle} degrees aside, a voxel has {volume:.2f} mm³")
reader = sitk.ImageSeriesReader()
reader.SetFileNames(reader.GetGDCMSeriesFileNames("scan"))
assert reader.GetForceOrthogonalDirection() and by_itk(True)[1] > 4.99, "slices are stacked otherwise now"
assert seen["SimpleITK"] == (0, 33, 20) and seen["its option"] == (0, 0, 0), f"it is otherwise now: {seen}"
assert max(seen["dcm2niix"]) <= 0.5, f"dcm2niix has it otherwise now: {seen}"
PYTHON
