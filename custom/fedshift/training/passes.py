"""Extra passes through a network that must leave no trace: the same random draws, no statistics moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift.methods.base import Run


@contextmanager
def frozen_statistics(net: nn.Module) -> Iterator[None]:
    """Batch norms normalise with the batch's statistics, as in training, and their running ones stay."""
    norms = [m for m in net.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


class Replayed:
    """A forward and backward pass that can be called again within a step: the same draws, no statistics moved."""

    def __init__(self, run: Run, compute: Callable[[], Tensor]) -> None:
        """``compute`` sets gradients and gives the loss."""
        self._run, self._compute = run, compute
        self._first = True
        self._draws: dict[str, Tensor] = {}

    def __call__(self) -> Tensor:
        """The loss."""
        run = self._run
        if self._first:
            self._first = False
            self._draws = {name: generator.get_state() for name, generator in run.generators.items()}
            self._layers = torch.get_rng_state()
            return self._compute()
        torch.set_rng_state(self._layers)
        for name in list(run.generators):
            if name in self._draws:
                run.generators[name].set_state(self._draws[name])
            else:
                del run.generators[name]  # made in the first pass: it begins anew
        run.replay = True
        try:
            with frozen_statistics(run.net):
                return self._compute()
        finally:
            run.replay = False
