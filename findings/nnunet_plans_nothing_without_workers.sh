#!/bin/sh
# nnU-Net 2 reads from the environment variable nnUNet_n_proc_DA how many processes augment images. Its trainer takes 0
# and augments in the process that trains.
#
# Expected: 0 changes nothing about planning, which augments no image.
# Seen: the planner takes the same number for torch's threads while it measures a network, and torch refuses 0: no plan
# is made ("set_num_threads expects a positive integer"). With 1 the same data set is planned.
# Versions: nnunetv2 2.8.1, torch 2.13.0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q nnunetv2==2.8.1 torch==2.13.0
cd "$folder"
export nnUNet_raw="$folder/raw" nnUNet_preprocessed="$folder/preprocessed" nnUNet_results="$folder/results"
"$folder/venv/bin/python" - <<'PYTHON'
import json
import os
from pathlib import Path

import numpy as np
import SimpleITK as sitk

folder = Path(os.environ["nnUNet_raw"]) / "Dataset001_Ball"
for part in ("imagesTr", "labelsTr"):
    (folder / part).mkdir(parents=True)
draw = np.random.default_rng(0)
place = np.linalg.norm(np.indices((24, 32, 32)) - np.array([12, 16, 16]).reshape(3, 1, 1, 1), axis=0)
for case in range(3):
    ball = (place < 6 + case).astype(np.uint8)
    scan = ball * 100 + draw.normal(0, 10, ball.shape).astype(np.float32)
    sitk.WriteImage(sitk.GetImageFromArray(scan), str(folder / "imagesTr" / f"case{case}_0000.nii.gz"))
    sitk.WriteImage(sitk.GetImageFromArray(ball), str(folder / "labelsTr" / f"case{case}.nii.gz"))
described = {"channel_names": {"0": "MRI"}, "labels": {"background": 0, "ball": 1}, "numTraining": 3}
(folder / "dataset.json").write_text(json.dumps(described | {"file_ending": ".nii.gz"}))
PYTHON
"$folder/venv/bin/pip" list 2> /dev/null | grep -i '^nnunetv2'
"$folder/venv/bin/nnUNetv2_extract_fingerprint" -d 1 -np 1 > /dev/null
for workers in 1 0; do
    rm -f "$nnUNet_preprocessed/Dataset001_Ball/nnUNetPlans.json"
    nnUNet_n_proc_DA=$workers "$folder/venv/bin/nnUNetv2_plan_experiment" -d 1 > log 2>&1 || true
    planned=no
    [ -f "$nnUNet_preprocessed/Dataset001_Ball/nnUNetPlans.json" ] && planned=yes
    echo "nnUNet_n_proc_DA=$workers: a plan is written: $planned; last line: $(tail -n 1 log)"
    echo "$planned" >> answers
done
[ "$(cat answers)" = "yes
no" ]
