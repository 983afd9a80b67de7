#!/bin/sh
# The NRRD format has two spellings of a space, in full and short: "left-posterior-superior" and "LPS" (section on
# orientation information, the field "space"). MONAI's NrrdReader turns a file to RAS only if it has the long one, and
# takes any other space for RAS, LAS and LPS with time too.
#
# Expected: the same affine for both spellings, and an error or a warning for a space that the reader does not know.
# Seen: a scan in "LPS" lies mirrored from left to right and from front to back, without a word. SimpleITK reads both
# alike. A mask in the other spelling, as another program writes it, no longer lies on its scan.
# Versions: monai 1.6.1, pynrrd 1.1.3, SimpleITK 2.5.7.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 monai==1.6.1 pynrrd==1.1.3 SimpleITK==2.5.7 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
import SimpleITK as sitk
from monai.data import NrrdReader

print(*(f"{name} {version(name)}" for name in ("monai", "pynrrd", "SimpleITK")), sep=", ")
head = "NRRD0005\ntype: uchar\ndimension: 3\nspace: {}\nsizes: 2 3 4\n"
head += "space directions: (1,0,0) (0,2,0) (0,0,3)\nspace origin: (10,20,30)\nencoding: raw\n\n"
corners = {}
for space in ("left-posterior-superior", "LPS", "LAS", "RAS"):
    open("scan.nrrd", "wb").write(head.format(space).encode() + bytes(24))
    reader = NrrdReader()
    _, about = reader.get_data(reader.read("scan.nrrd"))
    x, y, z = sitk.ReadImage("scan.nrrd").GetOrigin()  # in LPS
    corners[space] = np.asarray(about["affine"])[:3, 3].tolist(), [-x, -y, z]
    print(f"space: {space}: MONAI has the first voxel at {corners[space][0]} in RAS, SimpleITK at {corners[space][1]}")
right = {space: monai == itk for space, (monai, itk) in corners.items()}
assert right == {"left-posterior-superior": True, "LPS": False, "LAS": False, "RAS": True}, "other spaces are right now"
PYTHON
