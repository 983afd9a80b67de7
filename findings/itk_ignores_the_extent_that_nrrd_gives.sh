#!/bin/sh
# An NRRD file says how large samples are by "spacings", or by "axis mins" and "axis maxs", the ends of the grid along each
# axis, with "centers: cell" those of the first and the last sample's outer sides (per-axis specifications of the format).
#
# Expected: a grid of 20 samples from 0 to 40 has a spacing of 2, and its first sample lies at 1.
# Seen: SimpleITK puts the first sample at 1, which it can only know from a spacing of 2, and takes 1 for the spacing. A
# scan of 60 ml has 10 ml, is of half the length along one axis and of a third along another, and nothing is said. The
# same grid with "spacings" is right.
# Versions: SimpleITK 2.5.7, pynrrd 1.1.3 (which writes the files).
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q SimpleITK==2.5.7 pynrrd==1.1.3 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import nrrd
import numpy as np
import SimpleITK as sitk

print("SimpleITK", version("SimpleITK"), "pynrrd", version("pynrrd"))
sizes, spacing = np.array([20, 50, 10]), np.array([2.0, 1.0, 3.0])
grid = {"centerings": ["cell"] * 3, "axis mins": np.zeros(3)}
nrrd.write("extent.nrrd", np.ones(sizes, np.int16), grid | {"axis maxs": sizes * spacing})
nrrd.write("spacings.nrrd", np.ones(sizes, np.int16), grid | {"spacings": spacing})
seen = {}
for path in ("spacings.nrrd", "extent.nrrd"):
    scan = sitk.ReadImage(path)
    volume = np.prod(scan.GetSpacing()) * scan.GetNumberOfPixels() / 1000
    seen[path] = scan.GetSpacing(), scan.GetOrigin(), round(float(volume), 3)
    print(f"{path}: spacing {scan.GetSpacing()}, first sample at {scan.GetOrigin()}, {volume:g} ml")
first = (1, 0.5, 1.5)
assert seen["spacings.nrrd"] == ((2, 1, 3), first, 60), f"it is otherwise now: {seen}"
assert seen["extent.nrrd"] == ((1, 1, 1), first, 10), f"it is otherwise now: {seen}"
PYTHON
