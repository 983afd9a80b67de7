"""Batches in parts: what a site does when the passes of its training batches run out of memory.

Training begins anew with each batch in twice as many parts. They go through the network one after the other, and their
gradients, each weighted by its share of the batch, add up to those of one optimiser step
(`fedshift.federation.site.passes`). It is the step of the whole batch if the loss is a mean over samples and no layer
compares samples. Batch norm, and methods' layers that use statistics of a batch, have those of each part. Running
statistics of norms move once a step, with its first part.

Because training begins from the received weights and the site's state again, its bits are those of a site that had so
many parts from the start. The number is kept in the site's folder of the job with the round from which it holds: later
rounds begin with it, and earlier ones that are asked for again are as they were.
"""

from __future__ import annotations

import gc
import json
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from fedshift.methods.base import Client
from fedshift.methods.method_set import MethodSet
from fedshift.methods.shared.norms import is_norm
from fedshift.schema.errors import TooLittleMemory
from fedshift.schema.files import write_text
from fedshift.tasks.kinds import build_task
from fedshift.tasks.out_of_memory import REMEDY, BatchTooLarge

log = logging.getLogger("fedshift")

FILE = "parts.json"
HOOKS = ("loss", "attach")
"""Of a method's client half, in the passes of a batch. The others are before and after them, with the whole batch."""

T = TypeVar("T")


@dataclass
class Parts:
    """In how many parts a site's batches go through the network; ``largest`` is the size of its largest batch."""

    folder: Path
    methods: MethodSet
    largest: int

    def number(self, round_: int) -> int:
        """Parts of a batch in a round."""
        return max((number for since, number in self._kept.items() if since <= round_), default=1)

    def size(self, round_: int) -> int | None:
        """Most samples of a part in a round; None for whole batches."""
        number = self.number(round_)
        return None if number == 1 else math.ceil(self.largest / number)

    def fitted(self, round_: int, train: Callable[[], T]) -> T:
        """What ``train`` gives, which is begun anew with more parts as long as they do not fit into memory.

        Raises:
            TooLittleMemory: they do not fit, and more parts are not possible.
        """
        while True:
            try:
                return train()
            except BatchTooLarge as error:
                self._double(round_, error)
            # The error, and with it all that the attempt held, has gone.
            gc.collect()
            torch.cuda.empty_cache()

    def _double(self, round_: int, error: BatchTooLarge) -> None:
        whole = needing_whole_batches(self.methods)
        if whole:
            raise TooLittleMemory(
                "out-of-memory",
                f"{error.fault}, and batches cannot go through the network in parts, because method "
                f"{' and '.join(whole)} needs all samples of a batch at once: {REMEDY}",
            ) from error
        least = smallest_part(self.methods)
        most, number = max(1, self.largest // least), self.number(round_)
        if number >= most:
            samples = "a single sample" if least == 1 else f"{least} samples"
            raise TooLittleMemory(
                "out-of-memory", f"{error.fault}, also with the smallest parts of a batch ({samples}): {REMEDY}"
            ) from error
        number = min(2 * number, most)
        self._keep(round_, number)
        log.warning(
            "%s: training begins anew with each batch in %d parts, whose gradients are added up, and so do later "
            "rounds; a smaller schedule.batch_size, or smaller images (such as data.matrix), takes less time",
            *(error.fault, number),
        )

    @cached_property
    def _kept(self) -> dict[int, int]:
        """Round from which it holds -> number."""
        try:
            content = json.loads((self.folder / FILE).read_text(encoding="utf-8"))
            return {int(since): int(number) for since, number in content.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as error:
            log.warning("%s cannot be read (%s): batches are whole again", self.folder / FILE, error)
            return {}

    def _keep(self, round_: int, number: int) -> None:
        self._kept[round_] = number
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(self.folder / FILE, json.dumps(self._kept))
        except OSError as error:
            log.warning("%s cannot be written (%s)", self.folder / FILE, error.strerror)


def needing_whole_batches(methods: MethodSet) -> list[str]:
    """Names of the methods whose loss or layers need all samples of a batch at once."""
    halves = {method.name: method.client() for method in methods}
    return [name for name, half in halves.items() if sees_parts(half) and not half.least_part]


def smallest_part(methods: MethodSet) -> int:
    """Fewest samples that the job's layers can be given at a time.

    Batch norm cannot train on one picture where nothing of its height and width is left.
    """
    halves = [method.client() for method in methods]
    least = max(half.least_part for half in halves)
    removed = any(half.removes_norms for half in halves) and not methods.job.evaluation.local
    has_batch_norm = not removed and any(is_norm(module, "batch") for module in methods.net.modules())
    return max(least, 2 if has_batch_norm and not build_task(methods.job).dense else 1)


def sees_parts(half: Client[Any]) -> bool:
    """Whether a hook of a client half is given a part of a batch."""
    return any(getattr(type(half), hook) is not getattr(Client, hook) for hook in HOOKS)
