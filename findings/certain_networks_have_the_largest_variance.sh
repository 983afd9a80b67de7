#!/bin/sh
# MONAI's VarianceMetric, and compute_variance, take what a network said of one scan in several runs, as with dropout, or of
# several networks: [N, C, H, W, D], N repeats of C channels. It is the uncertainty by which active learning chooses scans.
#
# Expected: the variance over the repeats of each channel's probability, which is 0 where all repeats say the same.
# Seen: repeats and channels are thrown together, and the variance is that of all of them. Where a network of two classes says
# 1 and 0 in each of ten runs it is 0.25, the largest that there is, as much as where half of the runs say the one class and
# half the other. Where it says 0.5 and 0.5 in all runs it is 0. Runs that differ a little, around 0.95, are said to be less
# certain than runs that differ much more, around 0.5. So active learning asks for labels of the scans that the network is
# surest of. Nothing is said. With a single channel, as with two of which the background is left out, it is as expected.
# Probabilities of 0 are 0.0005 afterwards, in the tensor that was given.
# Versions: monai 1.6.1, torch 2.13.0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q monai==1.6.1 torch==2.13.0 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import torch
from monai.metrics import VarianceMetric

print(*(f"{name} {version(name)}" for name in ("monai", "torch")))
metric = VarianceMetric(scalar_reduction="mean")
without_background = VarianceMetric(include_background=False, scalar_reduction="mean")


def scan(*runs):
    """What each run says of the class, everywhere in a picture of 8 x 8 pixels, beside the background's probability."""
    says = torch.tensor(runs)
    return torch.stack((1 - says, says), dim=1)[..., None, None].repeat(1, 1, 8, 8)


scans = {
    "all runs say 1": scan(*[1.0] * 10),
    "all runs say 0.5": scan(*[0.5] * 10),
    "half of them 0.9, half 1": scan(*[0.9, 1.0] * 5),
    "half of them 0.3, half 0.7": scan(*[0.3, 0.7] * 5),
    "half of them 0, half 1": scan(*[0.0, 1.0] * 5),
}
seen, single = {}, {}
for name, runs in scans.items():
    right = float(runs.var(dim=0, unbiased=False).mean())
    single[name] = round(float(without_background(runs.clone())), 2), round(right, 2)
    seen[name] = round(float(metric(runs.clone())), 2)
    print(f"{name}: {seen[name]:.2f}, over the repeats {right:.2f}, of one channel alone {single[name][0]:.2f}")
given = scan(*[1.0] * 10)
metric(given)
print(f"a tensor of 0 and 1 that was given is of {' and '.join(f'{value:g}' for value in given.unique().tolist())} now")
assert list(seen.values()) == [0.25, 0.0, 0.2, 0.04, 0.25], f"it is otherwise now: {seen}"
assert all(alone == right for alone, right in single.values()), f"one channel alone is otherwise now: {single}"
assert round(float(given.min()), 6) == 0.0005, "the tensor is left as it is now"
PYTHON
