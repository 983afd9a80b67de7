#!/bin/sh
# Flower's DifferentialPrivacyServerSideAdaptiveClipping, of flwr.server.strategy and of flwr.serverapp.strategy, clips
# clients' updates at a norm that it adapts in each round (Andrew et al., arXiv 1905.03871), so that a certain share of them
# is clipped: target_clipped_quantile, one half unless set.
#
# Expected: where updates have norms about 1, the clipping norm goes from 0.1, where it begins, to about 1, and where they
# have norms about 0.01 to about 0.01. By the paper's rule it does.
# Seen: it goes away from them. Where more updates are clipped than wanted it becomes smaller, and where fewer are it
# becomes larger, without an end. After 60 rounds it is 0.0002 with the larger updates, all of which are clipped, and 40
# with the smaller ones, none of which is, and whose mean gets noise for a norm of 40. What is counted are the clipped
# updates, and the rule that is used is the paper's for the share of those that are not. Nothing is said.
# Versions: flwr 1.42.0, numpy 2.2.6.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q flwr==1.42.0 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import logging
import math
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import strategy as by_results
from flwr.serverapp import strategy as by_messages

print(*(f"{name} {version(name)}" for name in ("flwr", "numpy")))
said = []
listener = logging.Handler(logging.WARNING)
listener.emit = lambda record: said.append(record.getMessage())
logging.getLogger("flwr").addHandler(listener)
logging.getLogger("flwr").setLevel(logging.WARNING)
CLIENTS, ROUNDS, NOISE = 100, 60, 1.0


def updates(size, random):
    """Updates of all clients in one round, whose norms lie between half and one and a half of a size."""
    moves = random.normal(size=(CLIENTS, 50))
    norms = size * random.uniform(0.5, 1.5, CLIENTS)
    return moves * (norms / np.linalg.norm(moves, axis=1))[:, None]


def old(size, random):
    """The strategy of flwr.server, which is given what clients send as FitRes."""
    inner = by_results.FedAvg(fit_metrics_aggregation_fn=lambda metrics: {})
    wrapped = by_results.DifferentialPrivacyServerSideAdaptiveClipping(inner, NOISE, CLIENTS)
    weights = np.zeros(50)
    for number in range(1, ROUNDS + 1):
        wrapped.current_round_params = [weights]
        sent = [
            (None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters([weights + move]), 10, {}))
            for move in updates(size, random)
        ]
        (weights,) = parameters_to_ndarrays(wrapped.aggregate_fit(number, sent, [])[0])
    return wrapped.clipping_norm


def new(size, random):
    """The strategy of flwr.serverapp, which is given messages; of these only their content matters here."""
    wrapped = by_messages.DifferentialPrivacyServerSideAdaptiveClipping(by_messages.FedAvg(), NOISE, CLIENTS)
    weights = np.zeros(50)
    for number in range(1, ROUNDS + 1):
        wrapped.current_arrays = ArrayRecord({"weights": Array(weights)})
        sent = [
            SimpleNamespace(
                has_error=lambda: False,
                content=RecordDict({
                    "arrays": ArrayRecord({"weights": Array(weights + move)}),
                    "metrics": MetricRecord({"num-examples": 10}),
                }),
            )
            for move in updates(size, random)
        ]
        weights = wrapped.aggregate_train(number, sent)[0]["weights"].numpy()
    return wrapped.clipping_norm


def paper(size, random):
    """The paper's rule, with the same start, noise and rate: the share of updates that are not clipped is led to a half."""
    norm = 0.1
    for _ in range(ROUNDS):
        below = np.sum(np.linalg.norm(updates(size, random), axis=1) <= norm) + random.normal(0, CLIENTS / 20)
        norm *= math.exp(-0.2 * (below / CLIENTS - 0.5))
    return norm


seen = {}
for name, way in (("flwr.server", old), ("flwr.serverapp", new), ("the paper", paper)):
    for size in (1.0, 0.01):
        np.random.seed(0)
        norm = seen[name, size] = way(size, np.random.default_rng(0))
        norms = np.linalg.norm(updates(size, np.random.default_rng(1)), axis=1)
        share = np.mean(norms > norm)
        print(f"{name}, updates of about {size}: after {ROUNDS} rounds the norm is {norm:.4g}, {share:.0%} are clipped")
assert not said, f"something is said by now: {said}"
assert 0.9 < seen["the paper", 1.0] < 1.1 and 0.009 < seen["the paper", 0.01] < 0.011, f"the paper's rule: {seen}"
for name in ("flwr.server", "flwr.serverapp"):
    assert seen[name, 1.0] < 0.001 and seen[name, 0.01] > 10, f"{name} adapts otherwise now: {seen}"
PYTHON
