#!/bin/sh
# A MetaImage header (.mha, .mhd) may say what stored numbers mean: ElementToIntensityFunctionSlope and
# ElementToIntensityFunctionOffset, which MetaIO, the library that defines the format, reads and writes.
#
# Expected: they are applied, as SimpleITK applies scl_slope and scl_inter of NIfTI and rescale slope and intercept of
# DICOM; or at least they are found in the image's metadata.
# Seen: a CT scan of air, water and bone (-1000, 0 and 1000 HU), stored with offset -1024 as CT of DICOM is, is read as 24,
# 1024 and 2024. SimpleITK neither applies the two nor keeps them, so nobody can do it afterwards, and a copy that it saves
# has lost them. VTK leaves the values too, and says slope and offset. NIfTI with the same numbers is in HU.
# Versions: SimpleITK 2.5.7, vtk 9.7.2, nibabel 5.4.2 (which writes the NIfTI file).
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q SimpleITK==2.5.7 vtk==9.7.2 nibabel==5.4.2 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version
from pathlib import Path

import nibabel
import numpy as np
import SimpleITK as sitk
from vtkmodules.vtkIOImage import vtkMetaImageReader

print(*(f"{name} {version(name)}" for name in ("SimpleITK", "vtk", "nibabel")))
SLOPE, OFFSET = 1, -1024
stored = np.array([24, 1024, 2024], "<i2").reshape(1, 1, 3)  # slices, rows, columns
fields = {
    "ObjectType": "Image",
    "NDims": 3,
    "BinaryData": "True",
    "BinaryDataByteOrderMSB": "False",
    "Offset": "0 0 0",
    "ElementSpacing": "1 1 1",
    "DimSize": "3 1 1",
    "Modality": "MET_MOD_CT",
    "ElementToIntensityFunctionSlope": SLOPE,
    "ElementToIntensityFunctionOffset": OFFSET,
    "ElementType": "MET_SHORT",
    "ElementDataFile": "LOCAL",
}
header = "".join(f"{name} = {value}\n" for name, value in fields.items())
Path("scan.mha").write_bytes(header.encode() + stored.tobytes())
scan = nibabel.Nifti1Image(stored.T, np.eye(4))
nibabel.save(scan, "scan.nii")
scan = bytearray(Path("scan.nii").read_bytes())
scan[112:120] = np.array([SLOPE, OFFSET], "<f4").tobytes()  # scl_slope and scl_inter
Path("scan.nii").write_bytes(scan)

seen = {}
for path in ("scan.nii", "scan.mha"):
    image = sitk.ReadImage(path)
    seen[path] = sitk.GetArrayFromImage(image).ravel().tolist()
    print(f"{path}: SimpleITK reads {seen[path]}")
keys = {key: image.GetMetaData(key) for key in image.GetMetaDataKeys()}
print("  metadata:", *keys)
sitk.WriteImage(image, "copy.mha")
kept = b"ElementToIntensityFunction" in Path("copy.mha").read_bytes()
print("  its copy has slope and offset" if kept else "  its copy has no slope and offset")
reader = vtkMetaImageReader()
reader.SetFileName("scan.mha")
reader.Update()
by_vtk = [int(value) for value in reader.GetOutput().GetScalarRange()], reader.GetRescaleSlope(), reader.GetRescaleOffset()
print(f"scan.mha: VTK reads from {by_vtk[0][0]} to {by_vtk[0][1]}, and says slope {by_vtk[1]:g} and offset {by_vtk[2]:g}")
assert seen == {"scan.nii": [-1000, 0, 1000], "scan.mha": [24, 1024, 2024]}, f"it is otherwise now: {seen}"
assert not kept and not any("1024" in value or "Intensity" in key for key, value in keys.items()), "they are kept by now"
assert by_vtk == ([24, 2024], SLOPE, OFFSET), f"VTK has it otherwise now: {by_vtk}"
PYTHON
