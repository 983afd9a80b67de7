#!/bin/sh
# batchgeneratorsv2, which augments images for nnU-Net, shifts brightness with BrightnessAdditiveTransform(mu, sigma).
#
# Expected: shifts of a Gaussian distribution of that mean and standard deviation, as its documentation says. With mu=0 half
# of the images become darker.
# Seen: with synchronize_channels=True, the default, which gives all channels one shift, it lies anywhere between mu and
# sigma, as between two limits. With mu=0 and sigma=0.5 no image becomes darker, all become 0.25 brighter in the mean, and
# the standard deviation is 0.15. With mu=0.5 and sigma=0.5 all have the same shift. Nothing is said. With
# synchronize_channels=False the shifts are as documented, on images of a single channel, too.
# Versions: batchgeneratorsv2 0.3.6, torch 2.13.0, numpy 2.2.6.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q batchgeneratorsv2==0.3.6 torch==2.13.0 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
import torch
from batchgeneratorsv2.transforms.intensity.brightness import BrightnessAdditiveTransform

print(*(f"{name} {version(name)}" for name in ("batchgeneratorsv2", "torch", "numpy")))
np.random.seed(0)
torch.manual_seed(0)
seen = {}
for mu, sigma in ((0.0, 0.5), (0.5, 0.5)):
    for together in (True, False):
        transform = BrightnessAdditiveTransform(mu, sigma, synchronize_channels=together)
        shifts = np.array([float(transform(image=torch.zeros(1, 4, 4))["image"].mean()) for _ in range(4000)])
        seen[mu, together] = mean, deviation, darker = shifts.mean(), shifts.std(), (shifts < 0).mean()
        print(
            f"mu={mu}, sigma={sigma}, synchronize_channels={together}: shifts of {shifts.min():.2f} to "
            f"{shifts.max():.2f}, mean {mean:.2f}, standard deviation {deviation:.2f}, {darker:.0%} darker"
        )


def near(key, *expected):
    return np.allclose(seen[key], expected, rtol=0, atol=0.03)


assert near((0.0, False), 0, 0.5, 0.5) and near((0.5, False), 0.5, 0.5, 0.16), f"single shifts are otherwise now: {seen}"
assert near((0.0, True), 0.25, 0.14, 0) and near((0.5, True), 0.5, 0, 0), f"it is otherwise now: {seen}"
PYTHON
