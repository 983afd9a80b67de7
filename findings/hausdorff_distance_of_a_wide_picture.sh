#!/bin/sh
# torchmetrics.functional.segmentation.hausdorff_distance, and the metric HausdorffDistance, measure how far the outlines of
# two masks are apart.
#
# Expected: two squares of 10 pixels, one 8 pixels to the right of the other, are 8 apart, on a picture of any size.
# Seen: on a picture of 40 rows and 40 columns they are, and on one of 40 rows and 60 columns they are 33 apart, and each of
# them is 22.8 away from itself. Nothing is said. The distances to a mask are kept in a picture in which a pixel is looked
# for by the number of rows, where that of columns is meant, so they are those of other places. Pictures that are higher
# than wide mostly end with an IndexError. SciPy has 8 for all of them, and 0 from itself.
# Versions: torchmetrics 1.9.0, torch 2.14.1, scipy 1.17.1.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torchmetrics==1.9.0 torch==2.14.1 scipy==1.17.1 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import numpy as np
import torch
from scipy.spatial.distance import directed_hausdorff
from torchmetrics.functional.segmentation import hausdorff_distance

print(*(f"{name} {version(name)}" for name in ("torchmetrics", "torch", "scipy")))


def square(height, width, left):
    mask = torch.zeros(1, 1, height, width, dtype=torch.bool)
    mask[..., 10:20, left : left + 10] = True
    return mask


seen = {}
for height, width in ((40, 40), (40, 60), (40, 80), (60, 60)):
    one, other = square(height, width, 10), square(height, width, 18)
    apart = float(hausdorff_distance(one, other, num_classes=1, include_background=True))
    same = float(hausdorff_distance(one, one, num_classes=1, include_background=True))
    points = [np.argwhere(mask[0, 0].numpy()) for mask in (one, other)]
    by_scipy = max(directed_hausdorff(*points)[0], directed_hausdorff(*points[::-1])[0])
    seen[height, width] = round(apart, 1), round(same, 1), by_scipy
    print(f"{height} rows, {width} columns: {apart:.1f} pixels apart (SciPy {by_scipy:g}), {same:.1f} from itself")
assert seen[40, 40] == seen[60, 60] == (8, 0, 8), f"it is otherwise now: {seen}"
assert seen[40, 60] == (33, 22.8, 8) and seen[40, 80] == (21.9, 20, 8), f"it is otherwise now: {seen}"
PYTHON
