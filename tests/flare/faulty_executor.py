"""An executor for tests, shipped in a job's custom folder: it does what a broken or hostile site might do."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import numpy as np
from nvflare.apis.shareable import Shareable

from fedshift.flare import codec
from fedshift.flare.executor import FedshiftExecutor
from fedshift.schema.messages import Answer, Update


class FaultyExecutor(FedshiftExecutor):
    """``faults`` maps ``SITE.round`` to the fault that the site commits when it trains in that round."""

    def __init__(self, faults: dict[str, str]) -> None:
        super().__init__()
        self._faults = faults

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: Any, abort_signal: Any) -> Shareable:
        broadcast = codec.decode_task(shareable)
        site = fl_ctx.get_identity_name()
        fault = self._faults.get(f"{site}.{broadcast.round}") if task_name == codec.TRAIN else None
        if fault == "raise":
            raise OSError("the disk is gone")
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = self.answer(task_name, site, broadcast, fl_ctx, abort_signal)
        if fault is not None:
            assert isinstance(answer.content, Update)
            answer = Answer(_spoil(answer.content, fault), answer.info)
        return codec.encode_answers([answer])


def _spoil(update: Update, fault: str) -> Update:
    weights = dict(update.weights)
    key = "encoder1.enc1_conv1.weight"
    if fault == "nan":
        weights[key] = np.full_like(weights[key], np.nan)
    elif fault == "shape":
        weights[key] = weights[key][:1]
    elif fault == "missing":
        del weights[key]
    else:
        raise ValueError(fault)
    return replace(update, weights=weights)
