#!/bin/sh
# MONAI's sliding_window_inference multiplies the scan itself by its window's weights, if there is one window at a time
# and the predictor returns its input or a view of it (an identity, a slice of channels, a reshape).
#
# Expected: inference leaves its input as it is, and an identity gives back the scan. Its documentation says nothing of
# predictors that must return a copy.
# Seen: with sw_batch_size=1 and mode="gaussian" the input has other values afterwards, and the output is not the input,
# since overlapping windows read voxels that are scaled already. With sw_batch_size=2 windows are copied, and both are
# right.
# Versions: monai 1.6.1 with torch 2.13.0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 monai==1.6.1 numpy==2.2.6
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import torch
from monai.inferers import sliding_window_inference

print("monai", version("monai"), "torch", version("torch"))
changed = {}
for at_once in (1, 2):
    scan = torch.ones(1, 1, 24, 24, 24)
    found = sliding_window_inference(scan, (16, 16, 16), at_once, lambda window: window, overlap=0.5, mode="gaussian")
    changed[at_once] = float((scan - 1).abs().max()), float((found - 1).abs().max())
    print(
        f"sw_batch_size={at_once}: a scan of ones has values off by up to {changed[at_once][0]:.3f} afterwards, the "
        f"output of the identity by {changed[at_once][1]:.3f}"
    )
assert changed[1][0] > 0.5 and changed[1][1] > 0.5, "the scan is left as it is by now"
assert max(changed[2]) < 1e-5
PYTHON
