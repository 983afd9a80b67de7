#!/bin/sh
# seg-metrics measures segmentations of a folder or of arrays, label by label: Dice, and of surfaces the Hausdorff distance
# (hd), its 95th percentile (hd95), the mean distance (msd) and others, for which lower is better and 0 means the same.
#
# Expected: of an organ that a network missed altogether they are infinite, not a number, or an error, as with MONAI,
# surface-distance and MedPy; so are those of an organ that is not there and was found.
# Seen: all of them are 0, better than of any segmentation that finds a part of it. A network that misses the organ in half
# of the cases halves its mean hd95. What is logged then speaks of precision, recall and rates, and not of distances.
# Versions: seg-metrics 1.2.8, SimpleITK 2.5.7.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q seg-metrics==1.2.8 SimpleITK==2.5.7 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from seg_metrics.seg_metrics import write_metrics

print(*(f"{name} {version(name)}" for name in ("seg-metrics", "SimpleITK")))
NAMES = ["dice", "hd", "hd95", "msd"]


def box(start, stop):
    mask = np.zeros((24, 24, 24), np.uint8)
    mask[6:16, 6:16, start:stop] = 1
    return mask


organ, nothing = box(6, 16), box(0, 0)
cases = {
    "the same": (organ, organ),
    "one voxel aside": (organ, box(7, 17)),
    "half of it": (organ, box(6, 11)),
    "missed": (organ, nothing),
    "found where none is": (nothing, organ),
}
seen = {}
for name, (truth, found) in cases.items():
    (measured,) = write_metrics(labels=[1], gdth_img=truth, pred_img=found, metrics=NAMES, spacing=[1, 1, 1])
    seen[name] = {metric: round(float(measured[metric][0]), 2) for metric in NAMES}
    print(f"{name}: {seen[name]}")
for name in ("missed", "found where none is"):
    assert seen[name] == dict.fromkeys(NAMES, 0), f"it is otherwise now: {seen[name]}"
assert seen["one voxel aside"]["hd"] == 1 and seen["half of it"]["hd95"] > 1, f"it is otherwise now: {seen}"
PYTHON
