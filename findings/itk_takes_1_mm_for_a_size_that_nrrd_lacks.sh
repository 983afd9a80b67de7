#!/bin/sh
# An NRRD axis whose spacing is not known, or has no meaning, has NaN in the field "spacings" (per-axis specifications of
# the format).
#
# Expected: an error, or at least a warning that one size is not known.
# Seen: SimpleITK reads 1.0 for it and says nothing; a slice distance that nobody knows becomes 1 mm.
# Versions: SimpleITK 2.5.7.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q SimpleITK==2.5.7 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import SimpleITK as sitk

print("SimpleITK", version("SimpleITK"))
head = "NRRD0004\ntype: uchar\ndimension: 3\nsizes: 3 4 5\nspacings: 0.7 0.7 NaN\nencoding: raw\n\n"
open("scan.nrrd", "wb").write(head.encode() + bytes(60))
spacing = sitk.ReadImage("scan.nrrd").GetSpacing()
print(f"spacings: 0.7 0.7 NaN are read as {spacing}")
assert spacing == (0.7, 0.7, 1.0), "it is not read as 1 mm by now"
PYTHON
