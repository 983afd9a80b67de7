#!/bin/sh
# MINC's world coordinates grow to the right, to the front and to the head (RAS), as NIfTI's do. SimpleITK's grow to the
# left and to the back (LPS): it turns what it reads and writes of NIfTI.
#
# Expected: it turns MINC's as well, so that a scan lies where it lay, whichever of the two formats it is stored in.
# Seen: MINC's numbers are taken as they are. A scan of NIfTI that SimpleITK saves as MINC is turned by 180 degrees about
# the body's axis for those who read MINC, left is right and front is back; and a file of MINC is turned when SimpleITK
# reads it, so that nibabel and SimpleITK place the same voxel 108 mm apart here. Nothing is said.
# Versions: SimpleITK 2.5.7, nibabel 5.4.2, h5py 3.16.0 (with which nibabel reads MINC 2).
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q SimpleITK==2.5.7 nibabel==5.4.2 h5py==3.16.0 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import nibabel
import numpy as np
import SimpleITK as sitk

print(*(f"{name} {version(name)}" for name in ("SimpleITK", "nibabel", "h5py")))
values = np.zeros((5, 4, 3), np.int16)
values[4, 1, 2] = 1000
nibabel.save(nibabel.Nifti1Image(values, nibabel.affines.from_matvec(np.diag([1, 1, 2]), [40, 30, 20])), "scan.nii")
sitk.WriteImage(sitk.ReadImage("scan.nii"), "scan.mnc")


def by_nibabel(path):
    """Where the bright voxel is, in RAS."""
    image = nibabel.load(path)
    (place,) = np.argwhere(image.get_fdata() > 500)
    return tuple(nibabel.affines.apply_affine(image.affine, place).round(3).tolist())


def by_itk(path):
    image = sitk.ReadImage(path)
    (place,) = np.argwhere(sitk.GetArrayFromImage(image) > 500)
    left, back, head = image.TransformIndexToPhysicalPoint([int(number) for number in place[::-1]])
    return -left, -back, head


seen = {path: (by_nibabel(path), by_itk(path)) for path in ("scan.nii", "scan.mnc")}
for path, (one, other) in seen.items():
    print(f"{path}: the bright voxel is at {one} (nibabel) and {other} (SimpleITK), in RAS")
print(f"in MINC they are {np.linalg.norm(np.subtract(*seen['scan.mnc'])):.0f} mm apart")
here, turned = (44, 31, 24), (-44, -31, 24)
assert seen == {"scan.nii": (here, here), "scan.mnc": (turned, here)}, "it is otherwise now"
PYTHON
