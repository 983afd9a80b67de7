#!/bin/sh
# OpenFL combines what collaborators send by its aggregation function GeometricMedian, if told so: the point whose weighed
# distances to all of them have the least sum, found with the algorithm of Weiszfeld. A few bad collaborators move it little.
#
# Expected: about that point; four steps, which it takes at most, come within 0.01 % of its sum of distances here. At least
# the sum is no larger than that of the mean, with which it begins, as no step of the algorithm makes it larger.
# Seen: of three collaborators with the weights (0, 0), (4, 0) and (1, 3) the sum is larger than that of the mean, and the
# point 0.72 away from the right one, from which the mean is 0.37 away. Of five networks of 50 weights it is 1.4 away, and
# the mean 0.6. In each step a collaborator's share is to be its weight divided by its distance; here it is the share that
# it had in the last step, divided by its distance, so that shares multiply up. With more steps (geometric_median(maxiter=…))
# one collaborator has all, and its network is the result. Nothing is said. One that is far away is left out all the same.
# Versions: openfl 1.9, numpy 2.2.6.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q openfl==1.9 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from openfl.interface.aggregation_functions import GeometricMedian
from openfl.interface.aggregation_functions.geometric_median import geometric_median
from openfl.utilities import LocalTensor

print(*(f"{name} {version(name)}" for name in ("openfl", "numpy")))


def by_openfl(sent):
    tensors = [LocalTensor(f"site {number}", one, 1 / len(sent)) for number, one in enumerate(sent)]
    return GeometricMedian()(tensors, None, "layer.weight", 1, ("trained",))


def by_weiszfeld(sent, steps):
    point = sent.mean(axis=0)
    for _ in range(steps):
        point = np.average(sent, axis=0, weights=1 / np.maximum(1e-5, np.linalg.norm(sent - point, axis=1)))
    return point


def distances(point, sent):
    """Their mean, which the geometric median makes least."""
    return float(np.linalg.norm(sent - point, axis=1).mean())


random = np.random.default_rng(0)
seen = {}
for name, sent in (
    ("three points", np.array([[0.0, 0], [4, 0], [1, 3]])),
    ("five networks", random.normal(size=(5, 50))),
    ("one of ten is far away", np.vstack([random.normal(size=(9, 50)), random.normal(50, 1, size=(1, 50))])),
):
    right = by_weiszfeld(sent, 2000)
    found = {
        "mean": sent.mean(axis=0),
        "four steps of Weiszfeld": by_weiszfeld(sent, 4),
        "the median": right,
        "OpenFL": by_openfl(sent),
        "OpenFL, 100 steps": geometric_median(sent, np.full(len(sent), 1 / len(sent)), maxiter=100, ftol=0),
    }
    for way, point in found.items():
        away, nearest = np.linalg.norm(point - right), np.linalg.norm(sent - point, axis=1).min()
        seen[name, way] = distances(point, sent), away, nearest
        print(f"{name}, {way}: mean distance {distances(point, sent):.4f}, {away:.3f} from the median,", end=" ")
        print(f"{nearest:.3f} from the nearest collaborator")
print("three points:", by_openfl(np.array([[0.0, 0], [4, 0], [1, 3]])).round(2), "and not", end=" ")
print(by_weiszfeld(np.array([[0.0, 0], [4, 0], [1, 3]]), 2000).round(2))

for name in ("three points", "five networks"):
    least, mean, steps, openfl = (seen[name, way][0] for way in ("the median", "mean", "four steps of Weiszfeld", "OpenFL"))
    assert steps < least * 1.0001 and least < mean, f"{name}: {seen}"
    assert openfl > mean and seen[name, "OpenFL"][1] > 1.5 * seen[name, "mean"][1], f"{name}: OpenFL is nearer now: {seen}"
    assert seen[name, "OpenFL, 100 steps"][2] < 0.05, f"{name}: with more steps it is no longer one collaborator: {seen}"
PYTHON
