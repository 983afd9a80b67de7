#!/bin/sh
# batchgeneratorsv2, which augments images for nnU-Net, adds Gaussian noise with GaussianNoiseTransform(noise_variance=…).
# nnU-Net 2 gives it (0, 0.1).
#
# Expected: noise of that variance, so that 0.1 gives a standard deviation of sqrt(0.1) = 0.316.
# Seen: the number is the standard deviation. A pipeline that is written after the name of the parameter, or after texts
# that give nnU-Net's noise as a variance of up to 0.1, has noise up to three times as strong as nnU-Net's.
# Versions: batchgeneratorsv2 0.3.6, torch 2.13.0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q batchgeneratorsv2==0.3.6 torch==2.13.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import torch
from batchgeneratorsv2.transforms.intensity.gaussian_noise import GaussianNoiseTransform

print("batchgeneratorsv2", version("batchgeneratorsv2"))
torch.manual_seed(0)
noise = GaussianNoiseTransform(noise_variance=(0.1, 0.1))(image=torch.zeros(1, 200, 200))["image"]
deviation = float(noise.std())
print(f"noise_variance=0.1 gives a standard deviation of {deviation:.3f}, a variance of {deviation**2:.4f}")
assert abs(deviation - 0.1) < 0.005, "the number is the variance by now"
PYTHON
