#!/bin/sh
# confidenceinterval's classification_report_with_ci gives precision, recall and F1 of each class, and their averages, each
# with a confidence interval of the level that is asked for: confidence_level, 0.95 unless set.
#
# Expected: intervals of 99 % are wider than those of 95 %, and those of 50 % narrower.
# Seen: those of each class's F1 are. All others are of 95 %, whatever is asked for: precision and recall of each class, and
# precision, recall and F1 of both averages. Nothing is said. So of one class, asked for at 50 %, precision has an interval
# that is three times as wide as that of F1; at 99 % intervals hold less often than promised. The functions that it calls,
# precision_score and others, do use the level.
# Versions: confidenceinterval 1.0.5, scikit-learn 1.9.1.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q confidenceinterval==1.0.5 scikit-learn==1.9.1 statsmodels==0.15.0 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from confidenceinterval import classification_report_with_ci, precision_score

print(*(f"{name} {version(name)}" for name in ("confidenceinterval", "scikit-learn")))
right = np.arange(300) % 3
drawn = np.where(np.arange(300) % 5 == 0, (right + 1) % 3, right)  # a fifth is taken for the next class
levels = 0.5, 0.95, 0.99
reports = {level: classification_report_with_ci(right, drawn, confidence_level=level) for level in levels}
alone, widths = {}, {}
for level, report in reports.items():
    low, high = precision_score(right, drawn, confidence_level=level, average="micro")[1]
    alone[level] = round(high - low, 2)
    for row in report.to_dict("records"):
        for score in ("Precision", "Recall", "F1-Score"):
            low, high = row[f"{score} CI"]
            widths.setdefault((row["Class"], score), []).append(round(float(high - low), 3))
for (row, score), width in widths.items():
    print(f"{row}, {score}: widths", *(f"{of:.3f} at {level:.0%}" for level, of in zip(levels, width, strict=True)))
print("precision_score alone, micro: widths", *(f"{of:.2f} at {level:.0%}" for level, of in alone.items()))
grown = {key for key, (at_50, at_95, at_99) in widths.items() if at_50 < at_95 < at_99}
still = {key for key, width in widths.items() if len(set(width)) == 1}
assert grown == {(f"Class {number}", "F1-Score") for number in range(3)}, f"others follow the level now: {grown}"
assert grown | still == set(widths), "it is otherwise now"
assert alone[0.5] < alone[0.95] < alone[0.99], "precision_score does not follow the level now"
PYTHON
