"""Extra passes through a network that must leave no trace: the same random draws, no statistics moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift.methods.base import ArraySpec, Run, TrainingSamples
from fedshift.methods.shared.norms import is_norm, trainable
from fedshift.schema.seeding import derive_seed, generator, global_states, seeded_global, set_global_states
from fedshift.tasks.losses import Logits


@contextmanager
def frozen_statistics(net: nn.Module) -> Iterator[None]:
    """Norms normalise with the statistics of what they are given, as in training, and their running ones stay."""
    norms = [m for m in net.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    # An instance norm has no such switch, and a momentum of 0 would still round its statistics: it moves copies.
    others = [m for m in net.modules() if is_norm(m, "batch") and not isinstance(m, _BatchNorm)]
    statistics = [dict(m._buffers) for m in others]
    for norm in norms:
        norm.track_running_stats = False
    for other, buffers in zip(others, statistics, strict=True):
        other._buffers.update({name: b if b is None else b.clone() for name, b in buffers.items()})
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
        for other, buffers in zip(others, statistics, strict=True):
            other._buffers.update(buffers)


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """The network in evaluation mode."""
    training = net.training
    net.eval()
    try:
        yield
    finally:
        net.train(training)


@contextmanager
def extra_pass(run: Run, device: torch.device) -> Iterator[None]:
    """A pass of another model beside training: the training pass draws as if it had not been.

    Batch norms move the running statistics that they hold, so the other model must bring its own.
    """
    before = {name: generator.get_state() for name, generator in run.generators.items()}
    run.replay = True
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        run.replay = False
        _put_back(run, before)


@contextmanager
def probing(run: Run, device: torch.device) -> Iterator[None]:
    """A pass beside training: nothing is counted, and the training pass draws the same random numbers again."""
    with frozen_statistics(run.net), extra_pass(run, device):
        yield


def same_precision(like: Tensor) -> AbstractContextManager[object]:
    """Passes in the precision of the pass that gave ``like``: bf16 if it is in bf16."""
    return torch.autocast(like.device.type, torch.bfloat16, enabled=like.dtype == torch.bfloat16)


def gradient_over(
    run: Run, data: TrainingSamples, parameters: Mapping[str, nn.Parameter], *, method: str
) -> dict[str, Tensor]:
    """Gradient of the task's loss over the training samples, by parameter name; the network is left unchanged.

    Images are un-augmented; batch norms normalise as in training. ``parameters`` are those of the network that are
    wanted, ``method`` is who asks and names the random numbers.
    """
    wanted = list(parameters.values())
    total = [torch.zeros_like(p) for p in wanted]
    count, was_training, was_replay = 0, run.net.training, run.replay
    run.net.train()
    run.replay = True  # layers of other methods must not update their running values
    try:
        with frozen_statistics(run.net), seeded_global(derive_seed(run.seed, run.site, run.round, f"{method}.layers")):
            for x, y in trainable(data.chunks(generator(run.seed, run.site, run.round, f"{method}.order"))):
                logits = run.net(run.normalise(x.to(wanted[0].device), training=True))
                loss = run.objective(logits, y.to(wanted[0].device)) * len(x)
                for sum_, part in zip(total, torch.autograd.grad(loss, wanted, allow_unused=True), strict=True):
                    if part is not None:
                        sum_ += part
                count += len(x)
    finally:
        run.net.train(was_training)
        run.replay = was_replay
    return {name: sum_ / max(count, 1) for name, sum_ in zip(parameters, total, strict=True)}


def gradient_specs(
    parameters: Mapping[str, nn.Parameter], reveals: str, *, averaged: Literal["", "values", "changes"] = ""
) -> dict[str, ArraySpec]:
    """Specs of one array for each parameter; ``averaged`` is of those that sites send."""
    return {
        name: ArraySpec(
            tuple(p.shape),
            str(p.dtype).removeprefix("torch."),
            low=-1e6,
            high=1e6,
            alike="norm" if averaged else "",
            averaged=averaged,
            reveals=reveals,
            keep=False,
            kind="control",
        )
        for name, p in parameters.items()
    }


@contextmanager
def uncounted(run: Run) -> Iterator[None]:
    """A further pass of a step, with random draws of its own: no statistics are moved and methods count nothing."""
    before, run.replay = run.replay, True
    try:
        with frozen_statistics(run.net):
            yield
    finally:
        run.replay = before


@contextmanager
def at_weights(net: nn.Module, weights: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """The network with other tensors in place of its parameters, which gradients flow through.

    Whatever is called within sees them, and a module that has two names is no exception, as it would be with
    `torch.func.functional_call`.
    """
    before = [(module, dict(module._parameters)) for module in net.modules()]
    try:
        for module, parameters in before:
            module._parameters.update({k: p if p is None else weights.get(p, p) for k, p in parameters.items()})  # type: ignore[misc]
        yield
    finally:
        for module, parameters in before:
            module._parameters.update(parameters)


def mean_loss(run: Run, data: TrainingSamples) -> float:
    """The task's loss of the network as it is now, in evaluation mode, mean over the site's training samples.

    Images are un-augmented and normalised as at test.
    """
    total, count = _summed_loss(run, data.chunks())
    return total / count


def validation_loss(run: Run, data: TrainingSamples) -> float:
    """As `mean_loss`, over the site's validation samples, or over its training samples if it has no others."""
    total, count = _summed_loss(run, data.validation())
    return total / count if count else mean_loss(run, data)


@torch.no_grad()
def _summed_loss(run: Run, samples: Iterator[tuple[Tensor, Tensor]]) -> tuple[float, int]:
    total, count = 0.0, 0
    for logits, y in predicted(run, samples):
        total += float(run.objective(logits, y)) * len(y)
        count += len(y)
    return total, count


def predicted(run: Run, samples: Iterator[tuple[Tensor, Tensor]]) -> Iterator[tuple[Logits, Tensor]]:
    """Yield what the network as it is now gives for images, in evaluation mode and normalised as at test, and targets.

    Targets are on the network's device.
    """
    with evaluating(run.net):
        for x, y in samples:
            yield run.net(run.normalise(x.to(run.device), training=False)), y.to(run.device)


class Replayed:
    """A forward and backward pass that can be called again within a step: the same draws, no statistics moved."""

    def __init__(self, run: Run, compute: Callable[[], Tensor]) -> None:
        """``compute`` sets gradients and gives the loss."""
        self._run, self._compute, self._first = run, compute, True
        self._draws: dict[str, Tensor] = {}

    def __call__(self) -> Tensor:
        run = self._run
        if self._first:
            self._first = False
            self._draws = {name: generator.get_state() for name, generator in run.generators.items()}
            self._layers = global_states(run.device)  # dropout draws from them
            return self._compute()
        set_global_states(self._layers, run.device)
        _put_back(run, self._draws)
        run.replay = True
        try:
            with frozen_statistics(run.net):
                return self._compute()
        finally:
            run.replay = False


def _put_back(run: Run, draws: dict[str, Tensor]) -> None:
    """Generators as they were; one that was made since begins anew."""
    for name in list(run.generators):
        if name in draws:
            run.generators[name].set_state(draws[name])
        else:
            del run.generators[name]
