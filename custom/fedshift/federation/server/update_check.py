"""Check one update before it may be summed. Every check gives a reason that a person can read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fedshift.data.samples import epoch_starts
from fedshift.methods.base import ArraySpec
from fedshift.methods.method_set import MethodSet
from fedshift.schema.compression import CODES, WeightsAs
from fedshift.schema.messages import TEST_PREFIX, Arrays, Update, Weights
from fedshift.tasks.base import Task

if TYPE_CHECKING:
    from fedshift.federation.server.global_model import GlobalModel

MOST_SAMPLES = 10**9
"""Largest accepted number of samples or steps."""
LARGEST_BUFFER_FACTOR = 1e6
"""A floating buffer may be this many times max(1, the largest received absolute value)."""
BLOCK = 1 << 16
"""Elements that are squared at a time."""
PASSES_PER_STEP = 16
"""Forward passes allowed per optimiser step. A batch counter counts passes, and some methods make several per step."""

Ranges = Mapping[str, tuple[float, float]]
"""Metric name -> smallest and largest value, inclusive."""
Fault = Callable[[Arrays, int], tuple[str, str] | None]
"""A server half's own check of a site's arrays: `fedshift.methods.base.Server.fault`."""
TRAINING: Ranges = {"train_loss": (-1e9, 1e9), "seconds": (0.0, 1e9), "parts": (2.0, 1e6)}
"""Metrics of local training, beside the task's scores."""


class Rejected(Exception):
    """An answer of a site that must not be used: which key is wrong, and why."""

    def __init__(self, key: str, reason: str) -> None:
        """``key`` is the array or field that is wrong."""
        super().__init__(f"{key}: {reason}")
        self.key, self.reason = key, reason


@dataclass(frozen=True)
class Change:
    """How far an update is from what its site received: L2 norms of the change over all parameters and all floating
    buffers, and for each method that of its arrays with ``ArraySpec.alike``.
    """

    parameters: float = 0.0
    buffers: float = 0.0
    arrays: Mapping[str, float] = field(default_factory=dict)


class Received:
    """What sites received in a round, prepared once so that all updates of the round can be compared with it."""

    def __init__(self, weights: Weights, *, trainable: frozenset[str], withheld: frozenset[str]) -> None:
        """``trainable`` are the keys of parameters (others are buffers), ``withheld`` those that never leave a site."""
        self.weights = {key: value for key, value in weights.items() if key not in withheld}
        self.parameters = {key: self.weights[key] for key in sorted(trainable & self.weights.keys())}
        self.counters = frozenset(key for key, v in self.weights.items() if np.issubdtype(v.dtype, np.integer))
        rest = {key: v for key, v in self.weights.items() if key not in trainable and key not in self.counters}
        self.buffers = {key: v for key, v in rest.items() if np.issubdtype(v.dtype, np.floating)}
        self.most = {key: LARGEST_BUFFER_FACTOR * max(1.0, float(np.abs(v).max(initial=0))) for key, v in rest.items()}
        self.norm = _norm(self.parameters.values())


class UpdateCheck:
    """Unpacks and checks the updates of a run against the job and the server's model, which they change."""

    def __init__(self, methods: MethodSet, task: Task, model: GlobalModel) -> None:
        self._job, self._task, self._model = methods.job, task, model
        self.specs, self._withheld, self._is_pooled = methods.up, methods.withheld, methods.pooled is not None
        self._received: Received | None = None

    def forget_model(self) -> None:
        """Updates are from now on compared with the model as it is then; the former one need not stay in memory."""
        self._received = None

    def check(self, update: Update, *, round_: int, n_samples: int) -> tuple[Update, Change]:
        """Unpack and check an update of a site with ``n_samples`` training samples. Returns it with all its weights.

        Raises:
            Rejected: something in it is not as it must be.
        """
        keys = self._model.packed_keys - self._withheld if round_ else frozenset()
        check_packed(update, self._model.weights, keys, self._job.federation.weights_as)
        restored = update.restored(self._model.weights)
        return restored, self._check(restored, round_, n_samples)

    def steps(self, n_samples: int) -> int | None:
        """Planned optimiser steps of a round of a site with ``n_samples``; None if the job's method decides."""
        schedule = self._job.task.schedule
        if self._is_pooled:
            return None
        starts = epoch_starts(n_samples, batch_size=schedule.batch_size, drop_last=schedule.drop_last)
        return schedule.steps(len(starts))

    def _compared_with(self) -> Received:
        return Received(self._model.weights, trainable=self._model.trainable, withheld=self._withheld)

    def _check(self, update: Update, round_: int, n_samples: int) -> Change:
        return self._check_clear(update, round_, n_samples, specs=self.specs)

    def _check_clear(
        self, update: Update, round_: int, n_samples: int, *, specs: Mapping[str, Mapping[str, ArraySpec]]
    ) -> Change:
        """Check what is in clear; ``specs`` are of the arrays that are, by method."""
        scores = self._task.metrics
        if self._job.evaluation.every is not None:  # a job may have test scores of rounds
            scores = {**scores, **{f"{TEST_PREFIX}{name}": bounds for name, bounds in scores.items()}}
        if self._received is None:
            self._received = self._compared_with()
        return check_update(
            update,
            round_=round_,
            received=self._received,
            specs=specs,
            metrics=scores,
            n_samples=n_samples,
            max_norm=self._job.federation.max_update_norm,
            n_steps=self.steps(n_samples),
            fewer_steps=self._job.task.schedule.minutes is not None,
            faults={name: half.fault for name, half in self._model.halves},
        )


def check_packed(update: Update, weights: Weights, keys: frozenset[str], weights_as: WeightsAs) -> None:
    """Check packed weights, which must have these ``keys``, before they are added to ``weights``; else `Rejected`."""
    _check_keys(update.packed, dict.fromkeys(keys), "the packed weights")
    for key in sorted(keys):
        packed = update.packed[key]
        if key in update.weights:
            raise Rejected(key, "came twice, packed and as it is")
        if packed.codes.dtype != CODES[weights_as]:
            raise Rejected(key, f"has codes of {packed.codes.dtype}, expected {CODES[weights_as]}")
        if packed.shape != weights[key].shape:
            raise Rejected(key, f"has shape {packed.shape}, expected {weights[key].shape}")


def check_update(
    update: Update,
    *,
    round_: int,
    received: Received,
    specs: Mapping[str, Mapping[str, ArraySpec]],
    metrics: Ranges,
    n_samples: int,
    max_norm: float,
    n_steps: int | None = None,
    fewer_steps: bool = False,
    faults: Mapping[str, Fault] | None = None,
) -> Change:
    """Check an update against its round and the job's methods.

    Args:
        update: a site's answer.
        round_: the round that is open; 0 is the statistics round, which carries no weights.
        received: what the site received in that round.
        specs: arrays by method: `fedshift.methods.method_set.MethodSet.up`.
        metrics: the task's scores and their ranges.
        n_samples: training samples that the site has registered.
        max_norm: largest distance of the parameters from the received ones, in multiples of max(1, their norm).
        n_steps: steps that the schedule makes with so many samples; None if a method decides.
        fewer_steps: whether the schedule lets a site stop earlier.
        faults: the methods' own checks.

    Raises:
        Rejected: the first fault.
    """
    for name in ("round", "n_samples", "n_steps"):
        if not _is_whole(getattr(update, name)):
            raise Rejected(name, "is no whole number of 64 bits")
    if update.round != round_:
        raise Rejected("round", f"an answer to round {update.round} came in round {round_}")
    if not 1 <= update.n_samples <= MOST_SAMPLES:
        raise Rejected("n_samples", f"{update.n_samples} is not between 1 and {MOST_SAMPLES}")
    if update.n_samples != n_samples:
        raise Rejected("n_samples", f"is {update.n_samples}, but the site said {n_samples} of its data")
    moved = buffers = 0.0
    if round_ == 0:
        _check_keys(update.weights, {}, "the statistics round")
    else:
        if not 1 <= update.n_steps <= MOST_SAMPLES:
            raise Rejected("n_steps", f"{update.n_steps} is not between 1 and {MOST_SAMPLES}")
        if n_steps is not None and (update.n_steps > n_steps or (update.n_steps < n_steps and not fewer_steps)):
            most = "at most " if fewer_steps else ""
            raise Rejected("n_steps", f"is {update.n_steps}, but the job makes {most}{n_steps} of {n_samples} samples")
        moved, buffers = _check_weights(update, received, max_norm)
    check_metrics(update.metrics, {**metrics, **TRAINING})
    when = "once" if round_ == 0 else "round"
    due = {m: {name: spec for name, spec in named.items() if spec.when == when} for m, named in specs.items()}
    wanted = {method: named for method, named in due.items() if named}
    _check_keys(update.arrays, wanted, "methods")
    for method, named in wanted.items():
        _check_keys(update.arrays[method], named, method)
        for name, spec in named.items():
            key, array = f"{method}/{name}", update.arrays[method][name]
            _check_form(key, array, spec.shape, np.dtype(spec.dtype))
            _check_range(key, array, spec.low, spec.high)
        _check_free_sizes(method, update.arrays[method], named, n_samples)
        check_method = (faults or {}).get(method)
        fault = check_method(update.arrays[method], n_samples) if check_method else None
        if fault is not None:
            raise Rejected(f"{method}/{fault[0]}", fault[1])
    alike = {
        method: [update.arrays[method][name] for name, spec in named.items() if spec.alike]
        for method, named in wanted.items()
    }
    return Change(moved, buffers, {method: _norm(arrays) for method, arrays in alike.items() if arrays})


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and abs(int(value)) < 2**63


def check_metrics(metrics: Mapping[str, float], allowed: Ranges) -> None:
    """Check that all metrics are known numbers in their ranges; raises `Rejected` if one is not."""
    for name, value in metrics.items():
        if name not in allowed:
            raise Rejected(f"metrics.{name}", "is not expected")
        low, high = allowed[name]
        if not isinstance(value, float | np.floating) and not _is_whole(value):
            raise Rejected(f"metrics.{name}", f"is a {type(value).__name__}, not a number")
        if not low <= value <= high:
            raise Rejected(f"metrics.{name}", f"is {value:g}, allowed is {low:g} to {high:g}")


def _check_weights(update: Update, received: Received, max_norm: float) -> tuple[float, float]:
    """Check the weights. Returns the norms of the change of parameters and of buffers."""
    _check_keys(update.weights, received.weights, "weights")
    for key, reference in received.weights.items():
        array = update.weights[key]
        _check_form(key, array, reference.shape, reference.dtype)
        if key in received.counters:
            # Compare Python integers: the difference of extreme int64 values would overflow.
            pairs, most = zip(array.flat, reference.flat, strict=True), PASSES_PER_STEP * update.n_steps
            if not all(int(before) <= int(after) <= int(before) + most for after, before in pairs):
                raise Rejected(key, f"counted more than {most} batches in one round, or backwards")
        elif key in received.most:
            _check_range(key, array, -received.most[key], received.most[key])
            if key.endswith("running_var") and array.min(initial=0) < 0:
                raise Rejected(key, "a variance is negative")
    moved = _distance(update.weights, received.parameters)
    if not np.isfinite(moved):  # only now is it worth looking for the key
        for key in received.parameters:
            _check_range(key, update.weights[key], -np.inf, np.inf)
    limit = max_norm * max(1.0, received.norm)
    if not moved <= limit:
        raise Rejected("weights", f"moved by {moved:.3g} in one round, allowed is {limit:.3g}")
    return moved, _distance(update.weights, received.buffers)


def _check_keys(received: Mapping[str, object], expected: Mapping[str, object], what: str) -> None:
    missing, extra = sorted(set(expected) - set(received)), sorted(map(str, set(received) - set(expected)))
    if missing:
        raise Rejected(missing[0], f"is missing from {what} ({len(missing)} of {len(expected)} are)")
    if extra:
        raise Rejected(extra[0], f"is not expected in {what}")


def _check_form(key: str, array: np.ndarray, shape: Sequence[int | str], dtype: np.dtype) -> None:
    if type(array) is not np.ndarray:  # a masked array would hide what it masks
        raise Rejected(key, f"is a {type(array).__name__}, not an array")
    fits = array.shape == shape or (
        len(array.shape) == len(shape)
        and all(isinstance(want, str) or have == want for have, want in zip(array.shape, shape, strict=True))
    )
    if not fits:
        raise Rejected(key, f"has shape {array.shape}, expected {shape}")
    if array.dtype != dtype:
        raise Rejected(key, f"has type {array.dtype}, expected {dtype}")


def _check_range(key: str, array: np.ndarray, low: float, high: float) -> None:
    if not array.size:
        return
    least, most = array.min(), array.max()
    if not (np.isfinite(least) and np.isfinite(most)):  # both are NaN if any number is
        raise Rejected(key, "holds NaN or infinity")
    if least < low or most > high:
        raise Rejected(key, f"goes from {least:g} to {most:g}, allowed is {low:g} to {high:g}")


def _check_free_sizes(method: str, arrays: Arrays, specs: Mapping[str, ArraySpec], n_samples: int) -> None:
    """Check sizes that a site chooses: the same in all arrays of a method, from 1 to the number of samples."""
    chosen: dict[str, int] = {}
    for name, spec in specs.items():
        for have, want in zip(arrays[name].shape, spec.shape, strict=True):
            if not isinstance(want, str):
                continue
            if not 1 <= have <= n_samples:
                raise Rejected(f"{method}/{name}", f"has {have} {want}, allowed are 1 to {n_samples}")
            if chosen.setdefault(want, have) != have:
                raise Rejected(f"{method}/{name}", f"has {have} {want}, another array has {chosen[want]}")


def _distance(new: Mapping[str, np.ndarray], old: Mapping[str, np.ndarray]) -> float:
    with np.errstate(over="ignore"):  # infinite is too large for every limit
        return float(np.sqrt(sum(_squares(new[key], less=value) for key, value in old.items())))


def _norm(arrays: Iterable[np.ndarray]) -> float:
    with np.errstate(over="ignore"):
        return float(np.sqrt(sum(map(_squares, arrays))))


def _squares(array: np.ndarray, *, less: np.ndarray | None = None) -> float:
    """Sum of squares in float64, block by block: a float64 copy of a large array would cost more than the sum.

    By `numpy.einsum` and not `numpy.dot`: BLAS adds in its own threads, so that the last digits would depend on the
    number of processors, and waits milliseconds for them while sites keep all processors busy.
    """
    flat, other, total = array.reshape(-1), None if less is None else less.reshape(-1), 0.0
    for start in range(0, flat.size, BLOCK):
        part = flat[start : start + BLOCK]
        block = (part if other is None else part - other[start : start + BLOCK]).astype(np.float64)
        total += float(np.einsum("i,i->", block, block))
    return total
