#!/bin/sh
# MISeval has a Hausdorff distance ("HD"), which is the largest distance from a pixel of one mask to the other mask, and an
# average Hausdorff distance ("AHD").
#
# Expected: two squares of which one is moved by 5 pixels along the rows, or across them, are 5 apart in both cases, and in
# the mean less than that.
# Seen: "AHD" is the largest distance, 5: no mean is taken. "HD" is another number altogether: it compares rows of the
# mask, each as one point with as many coordinates as there are columns. So it is 0 for a mask that is moved by any
# distance down or up, and a count's root for others, and not in pixels. No option gives the mean.
# Versions: miseval 1.3.0, hausdorff 0.2.6, scipy 1.17.1 (with which the right ones are calculated).
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q miseval==1.3.0 hausdorff==0.2.6 scipy==1.17.1 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from miseval import evaluate
from scipy.spatial.distance import cdist

print(*(f"{name} {version(name)}" for name in ("miseval", "hausdorff", "scipy", "numpy")))


def square(row, column):
    mask = np.zeros((60, 60), int)
    mask[row : row + 20, column : column + 20] = 1
    return mask


def right(one, other):
    """The Hausdorff distance and the average one, of all pixels of the masks."""
    apart = cdist(np.argwhere(one), np.argwhere(other))
    near = apart.min(1), apart.min(0)
    return max(near[0].max(), near[1].max()), max(near[0].mean(), near[1].mean())


seen = {}
truth = square(10, 10)
for name, found in (("5 down", square(15, 10)), ("20 down", square(30, 10)), ("5 aside", square(10, 15))):
    own = [float(evaluate(truth, found, metric=metric)) for metric in ("HD", "AHD")]
    seen[name] = [round(value, 2) for value in (*own, *right(truth, found))]
    print("{}: MISeval's HD {} and AHD {}, right are {} and {}".format(name, *seen[name]))
assert all(ahd == hausdorff for _, ahd, hausdorff, _ in seen.values()), f"it is otherwise now: {seen}"
assert [hd for hd, *_ in seen.values()] == [0, 0, 3.16], f"it is otherwise now: {seen}"
PYTHON
