"""What a site keeps on disk between rounds, written atomically: its state of each round, and its last answer.

An answer can be lost on the way to the server, which then sends the same task again, possibly after the site's process
was restarted. So the state of a round is on disk before the site answers, and a kept answer is sent again as it was.
Two tasks are the same if the round, the model and all arrays of the message are equal.
"""

from __future__ import annotations

import hashlib
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedshift.federation.tensors import copied, read_tensors, to_arrays, write_tensors
from fedshift.schema.compression import Packed
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.messages import Broadcast, Update

log = logging.getLogger("fedshift")

_NAME = re.compile(r"round_(\d{6})\.pt")


@dataclass
class SiteState:
    """Optimiser state, the parts of the network that stay at the site, and each method's own tensors.

    ``residual`` is the rounding error of packed answers that has not been sent yet (`fedshift.schema.compression`).
    ``local`` is the model that the site trains for itself alone (`fedshift.federation.site.local_model.State`).
    """

    optimizer: dict[str, Any] | None = None
    personal: dict[str, Tensor] = field(default_factory=dict)
    methods: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    residual: dict[str, Tensor] = field(default_factory=dict)
    local: dict[str, Any] = field(default_factory=dict)


class StateStore:
    """State files of one site in one job."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is created at the first write."""
        self._folder = folder

    def before(self, round_: int) -> SiteState | None:
        """The state after the last finished round before ``round_``, or None.

        A task that is sent twice therefore starts from the same state both times. A damaged file is renamed to
        ``.damaged``, and the state of the round before it is used.
        """
        for number in sorted((r for r in self._rounds() if r < round_), reverse=True):
            state = self._read(self._path(number))
            if state is not None:
                return state
        return None

    def has_trained(self, round_: int) -> bool:
        """Whether the site has trained in a round before ``round_``."""
        return any(0 < r < round_ for r in self._rounds())

    def write(self, round_: int, state: SiteState, *, best_round: int) -> None:
        """Save the state after ``round_`` and delete states that are no longer needed.

        The two states before it are kept, and the one with which the site would score the best model. Later states
        exist if ``round_`` is repeated; they are not touched.

        Raises:
            DataError: it cannot be written; the files that were there have not changed.
        """
        target = self._path(round_)
        earlier = sorted(r for r in self._rounds() if r < round_)
        # Jobs without packing or without local models have files without these keys.
        parts = {name: part for name, part in vars(state).items() if name not in ("residual", "local") or part}
        try:
            write_tensors(parts, target)
        except OSError as error:
            raise DataError(
                "no-space",
                f"{target} cannot be written ({error.strerror}): make room there; the site then takes part again",
            ) from None
        # The server goes back by up to two rounds if its own last state is damaged. A site that missed the best round
        # scores that model with the last state from before that round.
        keep = {*earlier[-2:], max((r for r in earlier if r <= best_round), default=round_)}
        for old in set(earlier) - keep:
            self._path(old).unlink()

    def _read(self, path: Path) -> SiteState | None:
        try:
            return SiteState(**read_tensors(path, "the state before it is used"))
        except (ConfigError, TypeError) as error:
            log.error("%s; it is now %s", error, path.replace(path.with_suffix(".damaged")).name)
            return None

    def _rounds(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        matches = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match.group(1)) for match in matches if match)

    def _path(self, round_: int) -> Path:
        return self._folder / f"round_{round_:06d}.pt"


class AnswerStore:
    """The last answer of one site in one job. ``task`` is always a task's `fingerprint`."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is created at the first write."""
        self._path = folder / "answer.pt"
        self._task: str | None = None

    def find(self, task: str) -> Update | None:
        """The saved answer if it is the answer to ``task``, else None."""
        if self._task not in (None, task) or not self._path.is_file():
            return None
        try:
            content = read_tensors(self._path, "the round is trained again")
            self._task = content.pop("task")
            if self._task != task:
                return None
            arrays = {method: to_arrays(named) for method, named in content.pop("arrays").items()}
            packed = {key: Packed(**to_arrays(parts)) for key, parts in content.pop("packed", {}).items()}
            return Update(weights=to_arrays(content.pop("weights")), arrays=arrays, packed=packed, **content)
        except (ConfigError, TypeError, KeyError, AttributeError) as error:
            log.warning("%s", error)
            return None

    def keep(self, task: str, update: Update) -> None:
        """Save the answer in place of the last one. If that fails, a repeated task is done a second time."""
        content: dict[str, Any] = vars(update) | {
            "task": task,
            "weights": copied(update.weights),
            "arrays": {method: copied(named) for method, named in update.arrays.items()},
            "packed": {
                key: copied({name: part for name, part in vars(packed).items() if part is not None})
                for key, packed in update.packed.items()
            },
        }
        if not update.packed:
            del content["packed"]
        try:
            write_tensors(content, self._path)
        except OSError as error:
            log.warning("%s cannot be written (%s)", self._path, error.strerror)
        else:
            self._task = task


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
