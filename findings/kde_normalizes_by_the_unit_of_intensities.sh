#!/bin/sh
# intensity-normalization's "kde" finds the most frequent intensity of a tissue (of T1, white matter) on a smoothed
# histogram, and divides the scan by it.
#
# Expected: white matter has about 1 afterwards, whatever the unit of the intensities is, which MR does not define.
# Seen: with intensities of 0 to 1 it has, and with the same scan times 1000, as scanners store it, it has 1.35: what it is
# divided by is then between grey and white matter. The histogram is to be smoothed by an 80th part of the largest value,
# and SciPy's gaussian_kde, which is given it, takes it for a multiple of the standard deviation: 0.01 of it in the one
# case and 12 times in the other, where no tissue is left to see. So scans of two scanners that differ in scale get
# different numbers for the same tissue, which the method is to prevent. "whitestripe" of the same package gives the same
# for all scales.
# Versions: intensity-normalization 3.0.1, scipy 1.17.1.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q intensity-normalization==3.0.1 scipy==1.17.1 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from intensity_normalization import normalize_image

print(*(f"{name} {version(name)}" for name in ("intensity-normalization", "scipy")))
random = np.random.default_rng(0)
tissues = {"fluid": (0.3, 1500), "grey matter": (0.6, 4000), "white matter": (0.9, 4000)}
places = np.split(np.arange(9500), np.cumsum([count for _, count in tissues.values()])[:-1])
brain = np.zeros((22, 22, 22))
for (middle, count), place in zip(tissues.values(), places, strict=True):
    brain.ravel()[place] = random.normal(middle, 0.04, count)
mask = brain != 0

seen = {}
for method in ("kde", "whitestripe"):
    for unit in (1, 10, 100, 1000):
        normal = normalize_image(brain * unit, method=method, mask=mask.astype(float), modality="t1").get_data()
        medians = [round(float(np.median(normal.ravel()[place])), 2) for place in places]
        seen[method, unit] = medians
        print(f"{method}, times {unit}:", ", ".join(f"{name} {value}" for name, value in zip(tissues, medians, strict=True)))
assert seen["whitestripe", 1] == seen["whitestripe", 1000], f"it is otherwise now: {seen}"
white = [seen["kde", unit][2] for unit in (1, 10, 100, 1000)]
assert white[:2] == [0.99, 1.0] and 1.25 < white[2] < 1.45 and 1.25 < white[3] < 1.45, f"it is otherwise now: {white}"
PYTHON
