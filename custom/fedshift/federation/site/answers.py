"""A site's last answer, kept so that a task that comes again is not done again.

An answer can be lost on its way: the network is cut, or the server dies before its round is closed. The same task then
comes a second time, after a restart of the site's process perhaps, and is told by its content: the round, the model
and all arrays that came with it.
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

from fedshift.federation.site.state import first_words, write_whole
from fedshift.schema.compression import Packed
from fedshift.schema.messages import Broadcast, Update

log = logging.getLogger("fedshift")


class AnswerStore:
    """The last answer of one site in one job. A task is named by its `fingerprint`."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is the site's folder for the job's state; it is made when first written to."""
        self._path = folder / "answer.pt"
        self._kept: str | None = None

    def find(self, task: str) -> Update | None:
        """The answer to this very task, if it is the last one that was kept."""
        if self._kept not in (None, task) or not self._path.is_file():
            return None
        try:
            kept = torch.load(self._path, map_location="cpu", weights_only=True)
            self._kept = kept.pop("task")
            if self._kept != task:
                return None
            arrays = {method: _arrays(named) for method, named in kept.pop("arrays").items()}
            packed = {key: Packed(**_arrays(parts)) for key, parts in kept.pop("packed", {}).items()}
            return Update(weights=_arrays(kept.pop("weights")), arrays=arrays, packed=packed, **kept)
        except Exception as error:  # torch raises all kinds for a damaged file
            log.warning("%s cannot be read (%s): the round is trained again", self._path, first_words(error))
            return None

    def keep(self, task: str, update: Update) -> None:
        """Write the answer in place of the one before. Where that fails a repeated task is done again, no more."""
        content: dict[str, Any] = vars(update) | {
            "task": task,
            "weights": _tensors(update.weights),
            "arrays": {method: _tensors(named) for method, named in update.arrays.items()},
            "packed": {key: _parts(packed) for key, packed in update.packed.items()},
        }
        if not update.packed:
            del content["packed"]
        try:
            write_whole(content, self._path)
        except OSError as error:
            log.warning("%s cannot be written (%s)", self._path, error.strerror)
        else:
            self._kept = task


def fingerprint(broadcast: Broadcast, context: str = "") -> str:
    """Sixteen bytes, as hex, over all that decides a site's answer; ``context`` is what does beside the task itself."""
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


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    return {key: value.numpy() for key, value in tensors.items()}
