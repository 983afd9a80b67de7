#!/bin/sh
# Of two connected parts with equally many voxels, "keep the largest component" keeps one. Which one depends on the order
# in which the voxels are stored, and not on the anatomy.
#
# Expected: the mask of a mirrored scan is the mirrored mask, since mirroring (a file stored with another orientation)
# changes nothing of the patient; or all of the largest parts are kept; or the documentation says which one it is.
# Seen: MONAI keeps the part whose first voxel comes last, SciPy's usual idiom (argmax of the sizes), cc3d and SimpleITK
# the one that comes first, so that libraries disagree, and each of them keeps the other part of the mirrored mask.
# Versions: monai 1.6.1, scipy 1.16.2, connected-components-3d 3.24.0, SimpleITK 2.5.2.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 monai==1.6.1 scikit-image==0.25.2 scipy==1.16.2 numpy==2.2.6 \
    connected-components-3d==3.24.0 SimpleITK==2.5.2
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import cc3d
import numpy as np
import SimpleITK as sitk
import torch
from monai.transforms import KeepLargestConnectedComponent
from scipy import ndimage

for package in ("monai", "scikit-image", "scipy", "connected-components-3d", "SimpleITK"):
    print(package, version(package))
mask = np.zeros((8, 8, 8), np.uint8)
mask[1:3, 1:3, 1:3] = mask[5:7, 5:7, 5:7] = 1


def by_monai(given):
    keep = KeepLargestConnectedComponent()
    return np.asarray(keep(torch.from_numpy(given.copy())[None])[0])


def by_scipy(given):
    parts, _ = ndimage.label(given)
    return parts == 1 + np.bincount(parts.ravel())[1:].argmax()


def by_cc3d(given):
    return cc3d.largest_k(np.ascontiguousarray(given), k=1) > 0


def by_simpleitk(given):
    parts = sitk.RelabelComponent(sitk.ConnectedComponent(sitk.GetImageFromArray(np.ascontiguousarray(given))))
    return sitk.GetArrayFromImage(parts) == 1


def kept(found):
    """Which of the two parts is left, named by where it lies in the patient."""
    return " and ".join(name for name, place in (("A", (1, 1, 1)), ("B", (5, 5, 5))) if found[place])


told = {}
for way in (by_monai, by_scipy, by_cc3d, by_simpleitk):
    told[way.__name__] = kept(way(mask)), kept(way(mask[::-1, ::-1, ::-1])[::-1, ::-1, ::-1])
    print(f"{way.__name__}: keeps part {told[way.__name__][0]}; of the mirrored mask part {told[way.__name__][1]}")
assert all(here != mirrored for here, mirrored in told.values()), "a library keeps the same part in both by now"
assert len({here for here, _ in told.values()}) == 2, "the libraries agree by now"
PYTHON
