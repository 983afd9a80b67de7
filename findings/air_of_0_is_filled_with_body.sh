#!/bin/sh
# TorchIO's RandomAffine and Affine turn, scale and move a scan, and fill what comes in from outside with default_pad_value: the
# least value, a number, "mean", the mean of the values at the border, or "otsu", "the mean of the values at the border that
# lie under an Otsu threshold": air, where the scan reaches to the body at some sides.
#
# Expected: with "otsu" corners that come in are air, which is 0 in most scans of MR.
# Seen: where all values below the threshold are 0 the corners have the mean of the whole border, body and air, as with "mean":
# 21 % of the body's brightness here. Whether there are values below the threshold is decided by whether one of them is not 0.
# With 1 instead of 0 for air, or -1000, the corners are air. Nothing is said.
# Versions: torchio 1.2.1, SimpleITK 2.5.7, torch 2.13.0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torchio==1.2.1 SimpleITK==2.5.7 torch==2.13.0 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import torch
import torchio as tio

print(*(f"{name} {version(name)}" for name in ("torchio", "simpleitk", "torch")))


def corner(air, body, pad):
    """What a voxel of the corner has after a turn by 30 degrees; the body reaches from the first to the last slice."""
    scan = torch.full((1, 40, 40, 40), float(air))
    scan[:, 4:36, 4:36] = body
    turn = tio.Affine(scales=(1, 1, 1), degrees=(0, 0, 30), translation=(0, 0, 0), default_pad_value=pad)
    return round(float(turn(tio.ScalarImage(tensor=scan)).data[0, 0, 0, 20]), 1)


seen = {}
for air, body in ((0, 100), (1, 101), (-1000, 40)):
    seen[air] = {pad: corner(air, body, pad) for pad in ("otsu", "mean", "minimum")}
    print(f"air {air}, body {body}: the corner has", *(f"{value} with {pad}" for pad, value in seen[air].items()))
assert seen[1]["otsu"] == 1 and seen[-1000]["otsu"] == -1000, f"it is otherwise where air is not 0: {seen}"
assert seen[0]["minimum"] == 0 and seen[0]["otsu"] == seen[0]["mean"] > 20, f"it is otherwise now: {seen}"
PYTHON
