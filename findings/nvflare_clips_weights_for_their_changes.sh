#!/bin/sh
# NVFlare's filter PercentilePrivacy lets a site share the larger changes of its weights only: those below a percentile become
# 0, and gamma, 0.01 unless set, is "the upper limit to truncate abs values of weight diff", of which it is also said that
# "any weight diff with abs<gamma will become 0". NVFlare's recipes and ScriptRunner send whole weights unless told otherwise.
#
# Expected: whole weights are refused or left as they are, since nothing can be said of their changes without the model that
# they began with. Changes are at most gamma, and those below gamma are 0.
# Seen: whole weights are among the kinds that it filters by default, and are taken for changes: a layer whose weights spread
# by 0.05 arrives with none above 0.01, at 0.19 of its norm, and the server averages it as the new model. Nothing is said.
# Changes below gamma are not 0 but kept, all that are above the percentile. And the limit is gamma for each local step: a
# site that says that it made 10 steps shares changes of up to 0.1.
# Versions: nvflare 2.9.0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q nvflare==2.9.0 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import logging
from importlib.metadata import version

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy

print("nvflare", version("nvflare"))
said = []
listener = logging.Handler(logging.WARNING)
listener.emit = said.append
logging.getLogger().addHandler(listener)
GAMMA = 0.01


def filtered(kind, values, **meta):
    """What the server gets of values that a site sends."""
    sent = DXO(kind, data={"layer": values.copy()}, meta=meta).to_shareable()
    return from_shareable(PercentilePrivacy(percentile=10, gamma=GAMMA).process(sent, FLContext())).data["layer"]


random = np.random.default_rng(0)
seen = {}
for name, kind, spread, meta in (
    ("whole weights", DataKind.WEIGHTS, 0.05, {}),
    ("changes", DataKind.WEIGHT_DIFF, 0.05, {}),
    ("changes of 10 steps", DataKind.WEIGHT_DIFF, 0.05, {MetaKey.NUM_STEPS_CURRENT_ROUND: 10}),
    ("changes below gamma", DataKind.WEIGHT_DIFF, 0.002, {}),
):
    values = random.normal(0, spread, (64, 64, 3, 3))
    got = filtered(kind, values, **meta)
    norms = float(np.linalg.norm(got) / np.linalg.norm(values))
    seen[name] = tuple(round(float(each), 3) for each in (abs(values).max(), abs(got).max(), norms, (got != 0).mean()))
    print("{}: of up to {}, arrive at up to {} and {} of their norm, {} of them not 0".format(name, *seen[name]))
assert not said, f"something is said by now: {said}"
largest = {name: found[1] for name, found in seen.items()}
assert largest["whole weights"] == largest["changes"] == GAMMA, f"it is otherwise now: {seen}"
assert largest["changes of 10 steps"] == 10 * GAMMA, f"it is otherwise now: {seen}"
assert seen["whole weights"][2] < 0.2, f"it is otherwise now: {seen}"
before, after, norm, kept = seen["changes below gamma"]
assert before == after < GAMMA and norm > 0.99 and kept == 0.9, f"it is otherwise now: {seen}"
PYTHON
