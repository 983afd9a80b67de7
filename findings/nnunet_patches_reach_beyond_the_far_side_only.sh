#!/bin/sh
# nnU-Net 2 centres a third of each batch's patches on a voxel of the foreground, as far as the patch stays within bounds
# that its loader works out for both sides of a volume.
#
# Expected: a lesion at one side of the body is shown as one at the other side is, mirrored.
# Seen: only the bound at the near side is kept. A patch around a lesion at the first voxels begins where the volume
# begins and holds nothing else than the scan; around one as close to the last voxels it reaches beyond the volume, and
# 68 % of it are filled with zeros. Where a volume is smaller than the patch, it is moved towards the near side alone, up
# to where the lesion is in the middle, and never towards the far side. So a change of the axes' signs in the files, which
# moves no anatomy, changes what a network is trained on.
# Versions: nnunetv2 2.8.1, torch 2.13.0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q nnunetv2==2.8.1 torch==2.13.0
cd "$folder"
export nnUNet_raw="$folder/raw" nnUNet_preprocessed="$folder/preprocessed" nnUNet_results="$folder/results"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from nnunetv2.training.dataloading.data_loader import nnUNetDataLoader
from nnunetv2.utilities.label_handling.label_handling import LabelManager

print("nnunetv2", version("nnunetv2"))
PATCH = 32
labels = LabelManager({"background": 0, "lesion": 1}, None)


class Volume:
    """A data set of one volume with one voxel of the foreground."""

    def __init__(self, side, place):
        self.identifiers, self.side, self.place = ["case"], side, place

    def load_case(self, identifier):
        seg = np.zeros((1, *[self.side] * 3), np.int8)
        seg[0, self.place, self.place, self.place] = 1
        return np.ones(seg.shape, np.float32), seg, None, {"class_locations": {1: np.argwhere(seg == 1)}}


def shown(side, place):
    """The part of a patch that is not in the volume, and where the lesion is in it."""
    loader = nnUNetDataLoader(Volume(side, place), 1, [PATCH] * 3, [PATCH] * 3, labels, 1.0)
    target = next(loader)["target"][0, 0].numpy()
    return round(float((target == -1).mean()), 2), int(np.argwhere(target == 1)[0, 0])


seen = {}
for side, near in ((64, 5), (20, 2)):
    for name, place in (("near", near), ("far", side - 1 - near)):
        seen[side, name] = shown(side, place)
        outside, at = seen[side, name]
        print(f"volume of {side}, patch of {PATCH}, lesion at {place}: {outside:.0%} of the patch is outside, lesion at {at}")
assert seen[64, "near"] == (0, 5) and seen[64, "far"] == (0.68, 16), f"it is otherwise now: {seen}"
assert seen[20, "near"] == (0.76, 8) and seen[20, "far"] == (0.79, 16), f"it is otherwise now: {seen}"
PYTHON
