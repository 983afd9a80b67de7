#!/bin/sh
# TorchIO's HistogramStandardization brings scans of several scanners to one scale (Nyúl and Udupa): train() averages
# landmarks, percentiles of the scans, and the transform moves a scan's own percentiles to them. The outer two, beyond which
# values count as outliers, are train()'s cutoff, (0.01, 0.99) unless set.
#
# Expected: the transform takes the percentiles that were trained. With cutoff=(0.05, 0.95) a scan that was trained with has the
# first landmark, 0, at its own 5th percentile and the last one, 100, at its 95th.
# Seen: the transform takes the 1st and the 99th, whatever was trained; it has no such option, and the landmarks say nothing of
# it. So the scan has 0 and 100 there, and 2.9 and 96.5 at its 5th and 95th percentile. A lesion of 3 % of the brain that is
# twice as bright as white matter has 100 where white matter has 91, and with the trained percentiles it has 220. Nothing is
# said. With the default cutoff all is as expected.
# Versions: torchio 1.2.1, torch 2.13.0, numpy 2.2.6.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torchio==1.2.1 torch==2.13.0 numpy==2.2.6 nibabel==5.4.2
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import numpy as np
import torch
import torchio as tio

print(*(f"{name} {version(name)}" for name in ("torchio", "torch", "numpy")))
random = np.random.default_rng(0)
tissue = np.repeat([0, 1, 2, 3], [8000, 25000, 29000, 2000])  # fluid, grey and white matter, and a lesion
brain = (np.array([30, 70, 100, 200])[tissue] + random.normal(0, 4, tissue.size)).astype(np.float32)
paths = []
for number, gain in enumerate((1, 3)):  # one brain, by two scanners
    paths.append(f"{number}.nii.gz")
    tio.ScalarImage(tensor=torch.tensor(brain * gain).reshape(1, 40, 40, 40)).save(paths[-1])


def standardized(cutoff):
    """Both scans with what was trained on them, and what the definition gives of the first."""
    landmarks = tio.HistogramStandardization.train(paths, cutoff=cutoff, progress=False)
    transform = tio.HistogramStandardization({"t1": landmarks})
    scans = [transform(tio.Subject(t1=tio.ScalarImage(path))).t1.data.numpy().ravel() for path in paths]
    percents = sorted({100 * cutoff[0], 10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90, 100 * cutoff[1]})
    values = np.percentile(brain, percents)
    piece = np.clip(np.searchsorted(values, brain) - 1, 0, len(values) - 2)  # the outer pieces go on beyond their ends
    slopes = np.diff(landmarks) / np.diff(values)
    return scans, landmarks[piece] + slopes[piece] * (brain - values[piece])


seen = {}
for cutoff in ((0.01, 0.99), (0.05, 0.95)):
    scans, right = standardized(cutoff)
    assert np.allclose(*scans, atol=0.1), "the two scanners differ"
    for name, scan in (("TorchIO", scans[0]), ("the definition", right)):
        low, high = (round(float(np.percentile(scan, 100 * at)), 1) for at in cutoff)
        white, lesion = (round(float(np.median(scan[tissue == kind])), 1) for kind in (2, 3))
        seen[cutoff, name] = low, high, white, lesion
        print(f"cutoff {cutoff}, {name}: {low} and {high} at its percentiles, white matter {white}, the lesion {lesion}")
assert np.allclose(seen[(0.01, 0.99), "TorchIO"], seen[(0.01, 0.99), "the definition"], atol=0.2), f"{seen}"
assert np.allclose(seen[(0.05, 0.95), "the definition"][:2], (0, 100), atol=0.1), f"{seen}"
right, seen_now = (seen[(0.05, 0.95), name] for name in ("the definition", "TorchIO"))
assert np.allclose(right[2:], (91, 220), atol=1), f"the definition gives {right}"
assert np.allclose(seen_now, (2.9, 96.5, 91, 100), atol=0.5), f"it is otherwise now: {seen_now}"
PYTHON
