#!/bin/sh
# peft puts LoRA beside a convolution as two of its kind: the first takes over kernel size, stride and padding, and leaves
# dilation and padding mode out. Merging adds the product of both to the layer's weights, which have them.
#
# Expected: a merged layer computes what it computed before, or such a layer is refused, as merging one with groups is.
# Seen: with dilation 2, or with circular padding, a merged layer computes something else. Nothing is said.
# Versions: peft 0.21.2, torch 2.13.0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 peft==0.21.2 transformers==5.24.0 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import warnings
from importlib.metadata import version

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

print("peft", version("peft"), "torch", version("torch"))


def difference(**options):
    """Of a convolution's results before and after merging, and what was said."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding="same", **options))
    x = torch.randn(1, 3, 8, 8)
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always")
        inject_adapter_in_model(LoraConfig(r=2, target_modules=["0"]), net)
        nn.init.normal_(net[0].lora_B["default"].weight)
        before = net(x)
        net[0].merge(safe_merge=True)
        after = net(x)
    return float((before - after).abs().max()), [str(each.message) for each in said]


plain, dilated, circular = difference(), difference(dilation=2), difference(padding_mode="circular")
print("plain:", plain)
print("dilation 2:", dilated)
print("circular padding:", circular)
assert plain[0] < 1e-4
assert dilated[0] > 1 and not dilated[1]
assert circular[0] > 1 and not circular[1]
PYTHON
