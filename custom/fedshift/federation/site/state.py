"""What a site remembers between rounds: one file a round, written whole before the site answers."""

from __future__ import annotations

import errno
import logging
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedshift.schema.errors import DataError

log = logging.getLogger("fedshift")

_NAME = re.compile(r"round_(\d{6})\.pt")


@dataclass
class SiteState:
    """The state tree: optimiser, personal parts of the network, and each method's own tensors.

    ``residual`` is what packing has left out of the answers so far (`fedshift.schema.compression`).
    """

    optimizer: dict[str, Any] | None = None
    personal: dict[str, Tensor] = field(default_factory=dict)
    methods: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    residual: dict[str, Tensor] = field(default_factory=dict)


class StateStore:
    """State files of one site in one job."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is made when first written to."""
        self._folder = folder

    def before(self, round_: int) -> SiteState | None:
        """State after the last finished round before ``round_``, if there is one.

        So a task that is sent again starts from where it started the first time. A file that is damaged is set
        aside, and the one before it takes its place.
        """
        for number in sorted((r for r in self._rounds() if r < round_), reverse=True):
            state = self._read(number)
            if state is not None:
                return state
        return None

    def has_trained(self, round_: int) -> bool:
        """Whether the site has trained in a round before ``round_``."""
        return any(0 < r < round_ for r in self._rounds())

    def write(self, round_: int, state: SiteState, *, best_round: int) -> None:
        """Keep the state after ``round_``; of earlier ones the last two, and what the site held in the best round.

        Later ones (``round_`` is being repeated) are left alone.

        Raises:
            DataError: it cannot be written; what was there is as it was.
        """
        target = self._path(round_)
        try:
            # Without packing a file is as it was before there was any.
            write_whole({name: part for name, part in vars(state).items() if name != "residual" or part}, target)
        except OSError as error:
            raise DataError(
                f"{target} cannot be written ({error.strerror}): make room there; the site then takes part again"
            ) from None
        earlier = sorted(r for r in self._rounds() if r < round_)
        # Two, as the server goes back by two rounds when its own last state is damaged. A site that missed the best
        # round scores that model with the last state it had by then.
        keep = {*earlier[-2:], max((r for r in earlier if r <= best_round), default=round_)}
        for old in set(earlier) - keep:
            self._path(old).unlink()

    def _read(self, round_: int) -> SiteState | None:
        path = self._path(round_)
        try:
            return SiteState(**torch.load(path, map_location="cpu", weights_only=True))
        except Exception as error:  # torch raises all kinds for a damaged file, some without a word
            aside = path.replace(path.with_suffix(".damaged"))
            reason = first_words(error)
            log.error("%s cannot be read (%s): it is now %s, the state before it is used", path, reason, aside.name)
            return None

    def _rounds(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        matches = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match.group(1)) for match in matches if match)

    def _path(self, round_: int) -> Path:
        return self._folder / f"round_{round_:06d}.pt"


def first_words(error: Exception) -> str:
    """An error's first sentence, or its kind if it has none."""
    return str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__


def write_whole(content: dict[str, Any], path: Path) -> None:
    """Write a file of tensors and plain values, whole or not at all; its folder is made if it is not there.

    Raises:
        OSError: it cannot be written; an older file is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".partial")
    try:
        with beside.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except RuntimeError as error:  # torch's, when a disk is full; it does not say so
        beside.unlink(missing_ok=True)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
    except OSError:
        beside.unlink(missing_ok=True)
        raise
