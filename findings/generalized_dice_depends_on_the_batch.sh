#!/bin/sh
# torchmetrics.functional.segmentation.generalized_dice_score, and the metric GeneralizedDiceScore, weigh each class of a
# case by the inverse of its size, or of the square of it (the default). A class that the case lacks has no such weight, and
# gets the largest one there is.
#
# Expected: a score for each case, which is of that case alone.
# Seen: a case without the second organ, in which a network drew a little of it, has a score of 1.00 alone in a batch, 0.93
# before a case that has both organs, and 0.02 after it. The largest weight is looked for over the cases of the batch, and
# laid out class by class where it is used case by case, so that a case gets the weight of another case's class; alone it
# gets 0, and what was drawn wrongly costs nothing. So scores change with batch size and order. Nothing is said. MONAI has
# 0.93 for this case in any batch.
# Versions: torchmetrics 1.9.0, monai 1.6.1, torch 2.13.0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torchmetrics==1.9.0 monai==1.6.1 torch==2.13.0 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import torch
from monai.metrics import compute_generalized_dice
from torch.nn.functional import one_hot
from torchmetrics.functional.segmentation import generalized_dice_score
from torchmetrics.segmentation import GeneralizedDiceScore

print(*(f"{name} {version(name)}" for name in ("torchmetrics", "monai", "torch")))


def picture(second=0):
    """The first organ, a square of 10 pixels, and the second, a square of so many, as an array for each class."""
    labels = torch.zeros(20, 20, dtype=torch.long)
    labels[2:12, 2:12] = 1
    labels[14 : 14 + second, 14 : 14 + second] = 2
    return one_hot(labels, 3).movedim(-1, 0)


lacks_one = picture(4), picture()  # what a network drew, and what is right
has_both = picture(2), picture(2)  # drawn without a fault
batches = {"alone": [lacks_one], "before another": [lacks_one, has_both], "after another": [has_both, lacks_one]}
seen, by_monai, of_metric = {}, {}, {}
for name, cases in batches.items():
    drawn, right = (torch.stack(each) for each in zip(*cases, strict=True))
    at = next(place for place, case in enumerate(cases) if case is lacks_one)
    scores = generalized_dice_score(drawn, right, num_classes=3, include_background=False)
    metric = GeneralizedDiceScore(num_classes=3, include_background=False)
    seen[name] = round(float(scores[at]), 2)
    of_metric[name] = round(float(metric(drawn, right)), 2)
    other = compute_generalized_dice(drawn, right, include_background=False, sum_over_classes=True)
    by_monai[name] = round(float(other[at]), 2)
    print(f"{name}: the case has {seen[name]}, the metric of the batch is {of_metric[name]}, MONAI has {by_monai[name]}")
assert set(by_monai.values()) == {0.93}, f"MONAI has other scores now: {by_monai}"
assert seen == {"alone": 1.0, "before another": 0.93, "after another": 0.02}, f"it is otherwise now: {seen}"
assert of_metric == {"alone": 1.0, "before another": 0.96, "after another": 0.51}, f"it is otherwise now: {of_metric}"
PYTHON
