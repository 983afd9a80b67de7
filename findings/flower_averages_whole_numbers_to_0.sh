#!/bin/sh
# Flower's strategy FedAvg of flwr.server.strategy averages the arrays that clients send, weighed by their numbers of examples.
# Arrays of whole numbers are among them in most networks: PyTorch's batch normalization counts its batches in one.
#
# Expected: where all clients send the same numbers they are the mean, of any type.
# Seen: whole numbers become 0. Each client's share of the examples, a fraction, is turned to the type of the array before
# they are multiplied, which makes it 0, unless one client has all examples. Two clients that send 10 and 20 have a mean of
# 0 and 0, in the same round in which arrays of floats have the right one. Nothing is said. Batch normalization with
# momentum=None then begins its running mean anew in each round. With inplace=False, which is not the default, it is 10 and
# 20; FedAvgM and FedMedian have that, too.
# Versions: flwr 1.42.0, numpy 2.2.6.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q flwr==1.42.0 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import logging
from importlib.metadata import version

import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg, FedAvgM, FedMedian

print(*(f"{name} {version(name)}" for name in ("flwr", "numpy")))
said = []
listener = logging.Handler(logging.WARNING)
listener.emit = lambda record: said.append(record.getMessage())
logging.getLogger("flwr").addHandler(listener)


def sent(examples):
    """What a client sends: the same numbers twice, as whole ones and as floats."""
    arrays = [np.array([10, 20]), np.array([10, 20], np.float32)]
    return FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), examples, {})


seen = {}
for name, strategy in (
    ("FedAvg", FedAvg()),
    ("FedAvg, inplace=False", FedAvg(inplace=False)),
    ("FedAvgM", FedAvgM()),
    ("FedMedian", FedMedian()),
):
    parameters, _ = strategy.aggregate_fit(2, [(None, sent(100)), (None, sent(300))], [])
    whole, floats = parameters_to_ndarrays(parameters)
    seen[name] = whole.tolist(), floats.tolist()
    print("{}: clients send 10 and 20, the means are {} of whole numbers and {} of floats".format(name, *seen[name]))
assert not said, f"something is said by now: {said}"
right = [10, 20]
assert seen.pop("FedAvg") == ([0, 0], right), "whole numbers have another mean now"
assert all(means == (right, right) for means in seen.values()), f"other strategies have other means now: {seen}"
PYTHON
