#!/bin/sh
# The FROC curve of a detector has, for each threshold on its probabilities, the false positives per image and the part of
# all lesions that is found. MONAI makes it with compute_froc_curve_data and its score with compute_froc_score.
#
# Expected: one point for each probability that occurs, the lowest too. A detector that finds every lesion and nothing
# else scores 1.
# Seen: the lowest probability makes no point, so what has it is never found. Two lesions that are found with 1.0 each,
# and no false positive, score 0; found with 0.9 and 0.8 they score 0.5. With false positives, too, a lesion that has the
# lowest probability of all is left out: sensitivity ends at 0.5 where both lesions of two are found.
# Versions: monai 1.6.1, torch 2.13.0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 monai==1.6.1 numpy==2.2.6
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from monai.metrics import compute_froc_curve_data, compute_froc_score

print("monai", version("monai"))
seen = {}
for hits, alarms in (((1.0, 1.0), ()), ((0.9, 0.8), ()), ((0.9, 0.3), (0.8, 0.6))):
    hits, alarms = np.array(hits), np.array(alarms)
    per_image, sensitivity = compute_froc_curve_data(alarms, hits, num_targets=2, num_images=1)
    lowest = min([*hits, *alarms])
    right = (alarms >= lowest).sum(), (hits >= lowest).sum() / 2
    score = compute_froc_score(per_image, sensitivity)
    seen[tuple(hits)] = float(max(sensitivity)), float(score)
    print(f"2 lesions found with {hits.tolist()}, false positives with {alarms.tolist()}")
    print(f"  from {lowest} on: {right[0]} false positives, sensitivity {right[1]:g}")
    print(f"  MONAI: false positives {per_image.tolist()}, sensitivity {sensitivity.tolist()}, score {score:g}")
assert seen == {(1.0, 1.0): (0, 0), (0.9, 0.8): (0.5, 0.5), (0.9, 0.3): (0.5, 0.5)}, f"it is otherwise now: {seen}"
PYTHON
