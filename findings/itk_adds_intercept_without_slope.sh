#!/bin/sh
# A NIfTI header with scl_slope 0 says that its values are not scaled (nifti1.h, on scl_slope and scl_inter): slope and
# intercept apply only where the slope is not 0.
#
# Expected: with scl_slope 0 and scl_inter -1024 the stored values are the intensities, whatever reads them.
# Seen: nibabel gives the stored values; SimpleITK takes the slope for 1 and adds the intercept, so that a CT scan that is
# in Hounsfield units already is 1024 darker, by the same file.
# Versions: SimpleITK 2.5.7, nibabel 5.4.2.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q SimpleITK==2.5.7 nibabel==5.4.2 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import struct
from importlib.metadata import version

import nibabel
import numpy as np
import SimpleITK as sitk

print("SimpleITK", version("SimpleITK"), "nibabel", version("nibabel"))
nibabel.save(nibabel.Nifti1Image(np.full((3, 4, 5), 40, np.int16), np.diag([1, 1, 3, 1])), "scan.nii")
content = bytearray(open("scan.nii", "rb").read())
struct.pack_into("<ff", content, 112, 0.0, -1024.0)  # scl_slope, scl_inter
open("scan.nii", "wb").write(content)
by_nibabel = float(nibabel.load("scan.nii").get_fdata().max())
by_itk = float(sitk.GetArrayFromImage(sitk.ReadImage("scan.nii")).max())
print(f"stored 40, scl_slope 0, scl_inter -1024: nibabel reads {by_nibabel:g}, SimpleITK {by_itk:g}")
assert (by_nibabel, by_itk) == (40, -984), "both read alike by now"
PYTHON
