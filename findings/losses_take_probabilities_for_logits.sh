#!/bin/sh
# segmentation-models-pytorch's losses take what a network gives before its last activation, or with from_logits=False
# probabilities: DiceLoss, JaccardLoss, TverskyLoss, FocalLoss and LovaszLoss have this option.
#
# Expected: with from_logits=False the probabilities of a perfect segmentation, 1 and 0, have a loss of 0. The Lovasz loss of
# several classes is defined on probabilities (Berman et al., arXiv 1705.08790), and is 1 where all is wrong.
# Seen: LovaszLoss does not look at the option, and takes the softmax of the probabilities: a perfect segmentation of two
# classes has a loss of 0.27, and of four 0.52, below which no network comes; one that is wrong everywhere has 0.73 and 0.83. In
# mode "binary" a perfect one has 0.5. FocalLoss in mode "multiclass" takes a sigmoid of the probability's logarithm, which
# makes 0.5 of 1: a perfect segmentation has 0.09 and 0.04, where the same network without its activation comes to 0. Nothing
# is said. DiceLoss, JaccardLoss and TverskyLoss have 0 and 1.
# Versions: segmentation-models-pytorch 0.6.0, torch 2.13.0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.2.6
"$folder/venv/bin/pip" install -q --no-deps segmentation-models-pytorch==0.6.0
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import sys
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType

import torch

# Losses and metrics need torch alone; the package's own __init__ needs torchvision and timm, too, for its encoders.
package = ModuleType("segmentation_models_pytorch")
package.__path__ = list(find_spec(package.__name__).submodule_search_locations)
sys.modules[package.__name__] = package
from segmentation_models_pytorch.losses import DiceLoss, FocalLoss, JaccardLoss, LovaszLoss, TverskyLoss
from torch.nn.functional import one_hot

print(*(f"{name} {version(name)}" for name in ("segmentation-models-pytorch", "torch")))
LOSSES = LovaszLoss, FocalLoss, DiceLoss, JaccardLoss, TverskyLoss
seen = {}
for classes in (2, 4):
    labels = torch.arange(classes).repeat_interleave(100 // classes).reshape(1, 10, 10)
    perfect = one_hot(labels, classes).movedim(-1, 1).float()
    for loss in LOSSES:
        of = loss("multiclass", from_logits=False)
        right, wrong = (round(float(of(drawn, labels)), 2) for drawn in (perfect, perfect.roll(1, dims=1)))
        logits = round(float(loss("multiclass")(200 * perfect - 100, labels)), 2)  # what has these probabilities
        seen[loss.__name__, classes] = right, wrong, logits
        print(f"{classes} classes, {loss.__name__}: {right} where all is right, {wrong} where all is wrong, and {logits} where")
        print("    all is right without an activation")
    with_option, without = (LovaszLoss("multiclass", from_logits=of)(perfect, labels) for of in (False, True))
    print(f"{classes} classes, LovaszLoss of the same numbers, with the option {with_option:.3f}, without it {without:.3f}")
    assert with_option == without, "LovaszLoss looks at the option now"
labels = torch.arange(2).repeat_interleave(50).reshape(1, 1, 10, 10)
for loss in LOSSES:
    seen[loss.__name__, "binary"] = round(float(loss("binary", from_logits=False)(labels.float(), labels)), 2)
    print(f"binary, {loss.__name__}: {seen[loss.__name__, 'binary']} where all is right")
for loss in LOSSES:
    assert all(seen[loss.__name__, classes][2] == 0 for classes in (2, 4)), f"it is otherwise without an activation: {seen}"
for loss in LOSSES[2:]:
    assert seen[loss.__name__, 2] == seen[loss.__name__, 4] == (0, 1, 0) and seen[loss.__name__, "binary"] == 0, f"{seen}"
assert seen["LovaszLoss", 2][:2] == (0.27, 0.73) and seen["LovaszLoss", 4][:2] == (0.52, 0.83), f"it is otherwise now: {seen}"
assert seen["LovaszLoss", "binary"] == 0.5 and seen["FocalLoss", "binary"] == 0, f"it is otherwise now: {seen}"
assert seen["FocalLoss", 2][0] == 0.09 and seen["FocalLoss", 4][0] == 0.04, f"it is otherwise now: {seen}"
PYTHON
