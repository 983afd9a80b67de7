#!/bin/sh
# medpy.filter.image.resample gives an image another spacing, and writes the new one into the header.
#
# Expected: anatomy keeps its size and place in mm.
# Seen: a scan grows with its number of slices, since the first and the last voxel stay the ends of a grid that has more
# steps now. Five slices of 5 mm, whose middles are 20 mm apart, become 25 of 1 mm, which are 24 mm apart: a lesion in
# them is 20 % longer, and its middle lies at 12 mm and not at 10 mm. Fewer and thicker slices shrink it. SimpleITK's
# Resample to the same grid keeps size and place.
# Versions: medpy 0.5.2, SimpleITK 2.5.7, scipy 1.16.2.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q medpy==0.5.2 SimpleITK==2.5.7 scipy==1.16.2 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
import SimpleITK as sitk
from medpy.filter.image import resample
from medpy.io import load, save

print(*(f"{name} {version(name)}" for name in ("medpy", "SimpleITK", "scipy")))


def measured(path):
    """Middle and standard deviation of the lesion along the slices, in mm."""
    image = sitk.ReadImage(path)
    brightness = sitk.GetArrayFromImage(image).sum((1, 2))
    places = image.GetOrigin()[2] + image.GetSpacing()[2] * np.arange(len(brightness))
    middle = np.average(places, weights=brightness)
    spread = np.sqrt(np.average((places - middle) ** 2, weights=brightness))
    return len(brightness), round(float(middle), 2), round(float(spread), 2)


def blob(slices, thickness):
    z, y, x = np.indices((slices, 20, 20))
    middle = (slices - 1) / 2
    values = np.maximum(0, 1 - abs(z - middle) * thickness / 10) * (((y - 10) ** 2 + (x - 10) ** 2) < 25)
    image = sitk.GetImageFromArray(values.astype(np.float32))
    image.SetSpacing((1, 1, thickness))
    return image


seen = {}
for slices, thickness, wanted in ((5, 5.0, 1.0), (40, 1.0, 5.0)):
    scan = blob(slices, thickness)
    sitk.WriteImage(scan, "scan.mha")
    values, header = load("scan.mha")
    values, header = resample(values, header, (1.0, 1.0, wanted), bspline_order=1)
    save(values, "medpy.mha", header, force=True)
    size = [scan.GetWidth(), scan.GetHeight(), round(slices * thickness / wanted)]
    grid = size, sitk.Transform(), sitk.sitkLinear, scan.GetOrigin(), (1.0, 1.0, wanted), scan.GetDirection()
    sitk.WriteImage(sitk.Resample(scan, *grid), "simpleitk.mha")
    print(f"slices of {thickness:g} mm to slices of {wanted:g} mm")
    for name in ("scan", "medpy", "simpleitk"):
        seen[name, wanted] = measured(f"{name}.mha")
        count, middle, spread = seen[name, wanted]
        print(f"  {name}: {count} slices, middle of the lesion at {middle} mm, standard deviation {spread} mm")
middles = [seen[name, wanted][1] for wanted in (1, 5) for name in ("scan", "medpy", "simpleitk")]
assert middles == [10, 12, 10, 19.5, 17.5, 19.5], f"it is otherwise now: {middles}"
spreads = seen["medpy", 1][2], seen["simpleitk", 1][2]
assert spreads == (4.88, 4.06), f"it is otherwise now: {spreads}"
PYTHON
