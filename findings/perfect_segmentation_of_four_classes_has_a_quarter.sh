#!/bin/sh
# segmentation-models-pytorch's metrics (iou_score, f1_score, sensitivity and others) take one number from the counts of each
# image and class by a reduction: "weighted" and "weighted-imagewise" take class_weights, the other ones of classes do not
# need any.
#
# Expected: a weighted mean: what all classes of all images have is the mean too, and a perfect segmentation has 1.
# Seen: with "weighted-imagewise" a perfect segmentation of four classes has 0.25. Weights are divided by their sum, and what is
# multiplied with them is then averaged over the classes, not summed up, so that the score is divided by the number of
# classes: no network of ten classes has more than 0.1. Nothing is said. By "weighted", which sums up, a perfect one has 1.
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
from segmentation_models_pytorch.metrics import f1_score, get_stats, iou_score, sensitivity

print(*(f"{name} {version(name)}" for name in ("segmentation-models-pytorch", "torch")))
CLASSES, WEIGHTS = 4, [1.0, 2.0, 3.0, 4.0]
images = torch.arange(CLASSES).repeat_interleave(25).reshape(1, 10, 10).repeat(2, 1, 1)  # two images, all classes alike
moved = images.clone()
for label in range(CLASSES):  # the higher the class, the more of it is taken for the next one
    moved.view(2, CLASSES, 25)[:, label, : 2 + 3 * label] = (label + 1) % CLASSES
drawn = {"without a fault": images, "with faults": moved}
seen, right = {}, {}
for name, prediction in drawn.items():
    counts = get_stats(prediction, images, mode="multiclass", num_classes=CLASSES)
    for metric in (iou_score, f1_score, sensitivity):
        each = metric(*counts, reduction="none")  # of each image and class
        wanted = float((each.mean(0) * torch.tensor(WEIGHTS)).sum() / sum(WEIGHTS))
        for reduction in ("weighted", "weighted-imagewise"):
            score = float(metric(*counts, reduction=reduction, class_weights=WEIGHTS))
            seen[name, metric.__name__, reduction] = round(score, 3), round(wanted, 3)
            print(f"{name}, {metric.__name__}, {reduction}: {score:.3f}, the weighted mean is {wanted:.3f}")
for (name, metric, reduction), (score, wanted) in seen.items():
    if reduction == "weighted":
        assert score == wanted, f"{metric} by {reduction} is otherwise: {score}"
    else:
        assert abs(score - wanted / CLASSES) < 1e-3 and score < wanted, f"{metric} by {reduction} is otherwise now: {score}"
assert seen["without a fault", "iou_score", "weighted-imagewise"] == (0.25, 1.0)
PYTHON
