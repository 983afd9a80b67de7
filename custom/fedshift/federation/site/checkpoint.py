"""A checkpoint within a round: a site that is killed in the middle of local training goes on from it, to the same bits.

It is one file in the site's folder of the job, written between two optimiser steps whenever
``schedule.checkpoint_minutes`` have passed, and removed when the round's state is on disk. It holds what training has
changed so far: the network with its buffers, the optimiser's state, what the methods keep, the states of all random
number generators, and the running sum of the loss. What comes before the first step is done again where it gives the
same: the methods' ``begin``, and the order of the batches, of which no image is read.

It is used for the same task only: the fingerprint covers the job, the received weights and arrays, the site's data and
policy, the machine, and the code.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fedshift.federation.tensors import read_tensors, write_tensors
from fedshift.methods.base import Run
from fedshift.methods.chain import ClientChain
from fedshift.schema.errors import ConfigError
from fedshift.schema.seeding import global_states, set_global_states

log = logging.getLogger("fedshift")

FILE = "within_round.pt"

Content = dict[str, Any]
"""Tensors and plain values by name."""


@dataclass
class Checkpoint:
    """The file of one site in one round, with what an interrupted process has left of this task, if anything.

    ``folder`` is created at the first write; ``ask_task`` gives the task's fingerprint, if there is such a file or one
    is to be written; ``minutes`` are between two checkpoints, None for none.
    """

    folder: Path
    ask_task: Callable[[], str]
    minutes: float | None
    _parts: Content = field(default_factory=dict)
    _last: float = field(default_factory=time.monotonic)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """The result of a part of the round, which is made once: not again after an interruption.

        Tensors and plain values. Parts and loops come in the same order each time.
        """
        if name not in self._parts:
            saved: Content = self._saved.get("done", {})
            self._parts[name] = saved[name] if name in saved else make()
        return self._parts[name]

    def loop(self, name: str) -> Loop:
        """A training loop of the round: a new one, or the one that was interrupted."""
        return Loop(self, name, self._saved.pop("loop") if self._saved.get("name") == name else None)

    @property
    def due(self) -> bool:
        """Whether it is time to write."""
        return self.minutes is not None and time.monotonic() >= self._last + 60 * self.minutes

    def write(self, name: str, loop: Content) -> None:
        """Write the file in place of the last one. If that fails, training goes on without."""
        start = time.monotonic()
        try:
            write_tensors({"task": self._task, "done": self._parts, "name": name, "loop": loop}, self._path)
        except OSError as error:
            log.warning("%s cannot be written (%s): training goes on without", self._path, error.strerror)
        else:
            log.info("checkpoint after step %d of the round, in %.1f s", loop["step"], time.monotonic() - start)
        self._last = time.monotonic()

    def remove(self) -> None:
        """Remove the file, if there is one."""
        self._path.unlink(missing_ok=True)

    @property
    def _path(self) -> Path:
        return self.folder / FILE

    @cached_property
    def _task(self) -> str:
        return self.ask_task()

    @cached_property
    def _saved(self) -> Content:
        return self._read() if self._path.is_file() else {}

    def _read(self) -> Content:
        content = None
        try:
            content = read_tensors(self._path, "the round is begun anew")
        except ConfigError as error:
            log.warning("%s", error)
        if isinstance(content, dict) and content.get("task") == self._task:
            return content
        self.remove()
        return {}


class Loop:
    """A training loop that can be interrupted, and the time that it takes, interrupted parts included."""

    def __init__(self, checkpoint: Checkpoint | None = None, name: str = "", saved: Content | None = None) -> None:
        """``saved`` is what `keep` wrote; without ``checkpoint`` it writes nothing."""
        self._checkpoint, self._name, self._saved, self._began = checkpoint, name, saved, time.monotonic()
        self.seconds_before: float = 0.0 if saved is None else saved["seconds"]

    @property
    def seconds(self) -> float:
        """Seconds in the loop so far."""
        return self.seconds_before + time.monotonic() - self._began

    def resume(self, run: Run, chain: ClientChain) -> Content:
        """Set network, optimiser, methods and generators to what they were when the loop was interrupted.

        Returns the sums that `keep` was given; none if the loop is a new one.
        """
        saved, self._saved = self._saved, None
        return {} if saved is None else _restored(saved, run, chain)

    def keep(self, run: Run, chain: ClientChain, sums: Content) -> None:
        """Write a checkpoint if it is time for one. Called after a step, when nothing of the next has been drawn.

        ``sums`` is what the loop adds up over its steps.
        """
        if self._checkpoint is not None and self._checkpoint.due:
            self._checkpoint.write(self._name, {**_content(run, chain), "seconds": self.seconds, "sums": sums})


def _content(run: Run, chain: ClientChain) -> Content:
    """All that the steps of a round have changed so far."""
    assert run.optimizer is not None
    return {
        "step": run.step,
        "network": run.net.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "methods": chain.checkpoint(),
        "generators": {name: generator.get_state() for name, generator in run.generators.items()},
        "layers": global_states(next(run.net.parameters()).device),
    }


def _restored(saved: Content, run: Run, chain: ClientChain) -> Content:
    """The sums of an interrupted loop, after everything else is as it was."""
    assert run.optimizer is not None
    run.net.load_state_dict(saved["network"])
    run.optimizer.load_state_dict(saved["optimizer"])
    chain.restore(saved["methods"])
    for name, state in saved["generators"].items():
        run.generators.setdefault(name, torch.Generator()).set_state(state)
    set_global_states(saved["layers"], next(run.net.parameters()).device)
    run.step = saved["step"]
    log.warning(
        "site %s, round %d: training was interrupted: it goes on after step %d of %d",
        *(run.site, run.round, run.step, run.steps),
    )
    sums: Content = saved["sums"]
    return sums
