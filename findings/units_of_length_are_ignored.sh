#!/bin/sh
# Headers may have lengths in another unit than mm: NIfTI (xyzt_units), NRRD ("space units"), MetaImage (DistanceUnits).
#
# Expected: one reader treats units alike in all formats, and two readers of one file agree on the size of a voxel.
# Seen: SimpleITK converts NIfTI's micrometres to mm, and leaves those of NRRD and of MetaImage as they are (of MetaImage
# it even passes the unit on, as ITK_VoxelUnits). nibabel leaves NIfTI's as they are. So a voxel of 1.2 mm has 1.2 or
# 1200 "mm", and a volume differs by 10^9, by format and by reader.
# Versions: SimpleITK 2.5.7, nibabel 5.4.2, pynrrd 1.1.3 (which writes the NRRD file).
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q SimpleITK==2.5.7 nibabel==5.4.2 pynrrd==1.1.3 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import nibabel
import nrrd
import numpy as np
import SimpleITK as sitk

print(*(f"{name} {version(name)}" for name in ("SimpleITK", "nibabel", "pynrrd")))
values, size = np.zeros((3, 4, 5), np.int16), 1200.0  # micrometres
image = nibabel.Nifti1Image(values, np.diag([size, size, size, 1]))
image.header.set_xyzt_units("micron")
nibabel.save(image, "scan.nii")
header = {"space": "left-posterior-superior", "space directions": np.eye(3) * size, "space units": ["um", "um", "um"]}
nrrd.write("scan.nrrd", values, header)
head = ["ObjectType = Image", "NDims = 3", "BinaryData = True", "BinaryDataByteOrderMSB = False", "DistanceUnits = um"]
head += ["ElementSpacing = 1200 1200 1200", "DimSize = 3 4 5", "ElementType = MET_SHORT", "ElementDataFile = LOCAL", ""]
open("scan.mha", "wb").write("\n".join(head).encode() + values.tobytes())

by_itk = {}
for name in ("scan.nii", "scan.nrrd", "scan.mha"):
    read = sitk.ReadImage(name)
    unit = read.GetMetaData("ITK_VoxelUnits") if read.HasMetaDataKey("ITK_VoxelUnits") else "no unit"
    by_itk[name] = round(read.GetSpacing()[0], 3)
    print(f"1200 um in {name}: SimpleITK reads {by_itk[name]:g} ({unit} beside it)")
by_nibabel = float(nibabel.load("scan.nii").header.get_zooms()[0])
print(f"1200 um in scan.nii: nibabel reads {by_nibabel:g}")
assert by_itk == {"scan.nii": 1.2, "scan.nrrd": 1200, "scan.mha": 1200} and by_nibabel == 1200, "they agree by now"
PYTHON
