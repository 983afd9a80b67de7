#!/bin/sh
# SimpleITK measures the values of each label with LabelIntensityStatisticsImageFilter and LabelStatisticsImageFilter: mean,
# least and largest value, median.
#
# Expected: the median of a label's voxels, at least one that is between the least and the largest of them.
# Seen: it is read off a histogram of the whole image, whose bins are a 128th or a 256th of all its values. In a CT scan with
# air and bone an organ of 30 to 50 HU, median 40, has 33.7 and 41.6. With one bright voxel of metal elsewhere in the scan,
# 30000 HU, it has 89.8 and 29.3: above the largest value of the organ, and below the least, as the same objects give them.
# Versions: SimpleITK 2.5.7.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q SimpleITK==2.5.7 numpy==2.2.6
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
import SimpleITK as sitk

print("SimpleITK", version("SimpleITK"))
organ = np.zeros((40, 40, 40), np.uint8)
organ[10:20, 10:20, 10:20] = 1
scan = np.full(organ.shape, -1000, np.int16)  # air
scan[5:35, 5:35, 5:35] = 0
scan[organ > 0] = 30 + np.arange(1000) % 21

seen = []
for brightest in (3071, 30000):
    scan[30, 30, 30] = brightest
    values, label = sitk.GetImageFromArray(scan), sitk.GetImageFromArray(organ)
    by_intensity, by_label = sitk.LabelIntensityStatisticsImageFilter(), sitk.LabelStatisticsImageFilter()
    by_intensity.Execute(label, values)
    by_label.UseHistogramsOn()
    by_label.Execute(values, label)
    print(f"brightest voxel of the scan {brightest}: median of the organ {np.median(scan[organ > 0]):g}")
    for measured in (by_intensity, by_label):
        least, largest, median = measured.GetMinimum(1), measured.GetMaximum(1), measured.GetMedian(1)
        print(f"  {measured.GetName()}: {least:g} to {largest:g}, median {median:.1f}")
        seen.append(round(median, 1))
assert seen == [33.7, 41.6, 89.8, 29.3], f"it is otherwise now: {seen}"
PYTHON
