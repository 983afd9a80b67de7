"""A client of NVFlare's client API that trains in a plain loop: JOB DATA."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import nvflare.client as flare
import torch

from benchmarks.performance.plain_party import Party

flare.init()
party = Party(Path(sys.argv[1]), Path(sys.argv[2]), flare.get_site_name())
while flare.is_running():
    model = flare.receive()
    if model is None:
        break
    weights = {key: np.asarray(value) for key, value in model.params.items()}
    trained, n, scores = party.train(weights, int(model.current_round or 0) + 1)
    params = {key: torch.from_numpy(value) for key, value in trained.items()}
    flare.send(flare.FLModel(params=params, metrics=scores or None, meta={"NUM_STEPS_CURRENT_ROUND": n}))
