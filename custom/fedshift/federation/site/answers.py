"""A site's last answer, saved so that the same task is not done twice.

An answer can be lost on the way to the server: the network fails, or the server dies before the round is closed. The
server then sends the same task again, possibly after the site's process was restarted. Two tasks are the same if the
round, the model and all arrays of the message are equal.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshift.federation.tensor_files import first_words, to_arrays, write_tensors
from fedshift.schema.compression import Packed
from fedshift.schema.messages import Broadcast, Update

log = logging.getLogger("fedshift")


class AnswerStore:
    """The last answer of one site in one job. ``task`` is always a task's `fingerprint`."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is the site's folder for the job's state; it is created at the first write."""
        self._path = folder / "answer.pt"
        self._kept: str | None = None

    def find(self, task: str) -> Update | None:
        """The saved answer if it is the answer to ``task``, else None."""
        if self._kept not in (None, task) or not self._path.is_file():
            return None
        try:
            kept = torch.load(self._path, map_location="cpu", weights_only=True)
            self._kept = kept.pop("task")
            if self._kept != task:
                return None
            arrays = {method: to_arrays(named) for method, named in kept.pop("arrays").items()}
            packed = {key: Packed(**to_arrays(parts)) for key, parts in kept.pop("packed", {}).items()}
            return Update(weights=to_arrays(kept.pop("weights")), arrays=arrays, packed=packed, **kept)
        except Exception as error:  # torch raises many types for a damaged file
            log.warning("%s cannot be read (%s): the round is trained again", self._path, first_words(error))
            return None

    def keep(self, task: str, update: Update) -> None:
        """Save the answer in place of the last one. If that fails, a repeated task is done a second time."""
        content: dict[str, Any] = vars(update) | {
            "task": task,
            "weights": _tensors(update.weights),
            "arrays": {method: _tensors(named) for method, named in update.arrays.items()},
            "packed": {key: _parts(packed) for key, packed in update.packed.items()},
        }
        if not update.packed:
            del content["packed"]
        try:
            write_tensors(content, self._path)
        except OSError as error:
            log.warning("%s cannot be written (%s)", self._path, error.strerror)
        else:
            self._kept = task


def fingerprint(broadcast: Broadcast, context: str = "") -> str:
    """BLAKE2b hash (32 hex digits) of a task; ``context`` is anything else that a site's answer depends on."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{context}\0{broadcast.round} {broadcast.best_round}".encode())
    for name, arrays in sorted({"": broadcast.unpacked().weights, **broadcast.arrays}.items()):
        for key, value in sorted(arrays.items()):
            array = np.ascontiguousarray(value)
            digest.update(f"\0{name}\0{key}\0{array.dtype}\0{array.shape}\0".encode())
            digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {key: torch.from_numpy(np.array(value)) for key, value in arrays.items()}


def _parts(packed: Packed) -> dict[str, Tensor]:
    scale = {} if packed.scale is None else {"scale": packed.scale}
    return _tensors({"codes": packed.codes, **scale})
