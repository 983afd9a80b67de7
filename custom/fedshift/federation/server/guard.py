"""Everything that is checked before an update may be summed. Each check gives a reason a person can read.

`check_update` looks at one update when it comes; `outliers` compares a round's updates before they are combined.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isclose
from typing import Protocol

import numpy as np

from fedshift.methods.base import ArraySpec
from fedshift.schema.compression import CODES, WeightsAs
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.messages import Arrays, Scores, Update, Weights

PARAMETERS = "weights"
"""What `medians` calls the movement of the parameters, beside the names of methods."""

MOST_SAMPLES = 10**9
LARGEST_BUFFER = 1e6
"""Times the received one, or 1: what one round may make of a running statistic."""
BLOCK = 1 << 16
"""Numbers of an array that are squared at a time."""
PASSES_PER_STEP = 16
"""A batch counter moves once a forward pass; methods make a few for one optimiser step."""

Ranges = Mapping[str, tuple[float, float]]
"""Metric name -> smallest and largest value, inclusive."""

FEWEST_TO_COMPARE = 3
"""Updates of a round without which none can be said to be far from the others."""

Fault = Callable[[Arrays, int], tuple[str, str] | None]
"""A server half's own check of a site's arrays: `fedshift.methods.base.Server.fault`."""

TRAINING: Ranges = {"train_loss": (-1e9, 1e9), "seconds": (0.0, 1e9)}


class Rejected(Exception):
    """An update that must not be used: which key, and why."""

    def __init__(self, key: str, reason: str) -> None:
        """``key`` is the array or field at fault."""
        super().__init__(f"{key}: {reason}")
        self.key, self.reason = key, reason


@dataclass(frozen=True)
class Change:
    """How far a site moved from what it received, measured once: the norm over all parameters, and over the buffers.

    ``arrays`` is, by method, the norm of what it says is ``alike`` at all sites.
    """

    parameters: float = 0.0
    buffers: float = 0.0
    arrays: Mapping[str, float] = field(default_factory=dict)


class Received:
    """What sites received in a round, looked at once: what the round's updates are compared with."""

    def __init__(self, weights: Weights, *, trainable: frozenset[str], withheld: frozenset[str]) -> None:
        """``trainable`` are the keys of parameters, as against buffers; ``withheld`` those that never leave a site."""
        self.weights = {key: value for key, value in weights.items() if key not in withheld}
        self.parameters = {key: self.weights[key] for key in sorted(trainable & self.weights.keys())}
        self.counters = frozenset(key for key, v in self.weights.items() if np.issubdtype(v.dtype, np.integer))
        rest = {key: v for key, v in self.weights.items() if key not in trainable and key not in self.counters}
        self.buffers = {key: v for key, v in rest.items() if np.issubdtype(v.dtype, np.floating)}
        self.most = {key: LARGEST_BUFFER * max(1.0, float(np.abs(v).max(initial=0))) for key, v in rest.items()}
        self.norm = _norm(self.parameters.values())


class Measured(Protocol):
    """An update that passed `check_update`."""

    site: str
    n_samples: int
    n_steps: int
    change: Change

    @property
    def arrays(self) -> Mapping[str, Mapping[str, np.ndarray]]:
        """Method to its arrays by name."""
        ...


def check_packed(update: Update, weights: Weights, keys: frozenset[str], weights_as: WeightsAs) -> None:
    """Whether the packed part of an update is the one that is asked for, so that it can be added to the weights.

    What comes of that `check_update` looks at.

    Args:
        update: a site's answer.
        weights: what its changes will be added to.
        keys: of ``weights`` those that must come packed: none in the statistics round.
        weights_as: how they must be packed.

    Raises:
        Rejected: the first fault found.
    """
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
    faults: Mapping[str, Fault] | None = None,
) -> Change:
    """Compare an update with what its round and the job's methods allow.

    Args:
        update: a site's answer.
        round_: the round that is open; 0 is the statistics round, which carries no weights.
        received: what the site received in that round.
        specs: arrays by method, as ``fedshift.methods.array_specs`` gives them.
        metrics: the task's scores and their ranges.
        n_samples: what the site said of its data.
        max_norm: largest distance of the parameters from the received ones, in multiples of max(1, their norm).
        n_steps: optimiser steps that the job's schedule makes of so many samples, where that can be told.
        faults: what the methods' server halves check themselves.

    Raises:
        Rejected: the first fault found.
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
        if n_steps is not None and update.n_steps != n_steps:
            raise Rejected("n_steps", f"is {update.n_steps}, but the job makes {n_steps} of {n_samples} samples")
        moved, buffers = _check_weights(update, received, max_norm)
    _check_metrics(update.metrics, {**metrics, **TRAINING})
    when = "once" if round_ == 0 else "round"
    wanted = {
        method: {name: spec for name, spec in named.items() if spec.when == when} for method, named in specs.items()
    }
    wanted = {method: named for method, named in wanted.items() if named}
    _check_keys(update.arrays, wanted, "methods")
    for method, named in wanted.items():
        _check_keys(update.arrays[method], named, method)
        for name, spec in named.items():
            _check_array(f"{method}/{name}", update.arrays[method][name], spec)
        _check_free_sizes(method, update.arrays[method], named, n_samples)
        own_check = (faults or {}).get(method)
        fault = own_check(update.arrays[method], n_samples) if own_check else None
        if fault is not None:
            raise Rejected(f"{method}/{fault[0]}", fault[1])
    alike = {
        method: [update.arrays[method][name] for name, spec in named.items() if spec.alike]
        for method, named in wanted.items()
    }
    return Change(moved, buffers, {method: _norm(arrays) for method, arrays in alike.items() if arrays})


def medians(updates: Sequence[Measured], earlier: Mapping[str, float]) -> dict[str, float]:
    """The usual size of what `outliers` compares: by name the median over a round's updates, or an earlier larger one.

    Sites that have fitted their data hardly move, and then a single difficult batch takes one of them far beyond the
    median of that round, but not beyond what was usual before.

    Args:
        updates: a round's updates, each of which passed `check_update`; fewer than three change nothing.
        earlier: what this gave for the round before; empty for the first.
    """
    if len(updates) < FEWEST_TO_COMPARE:
        return dict(earlier)
    sizes = [{PARAMETERS: update.change.parameters, **update.change.arrays} for update in updates]
    now = {name: float(statistics.median(size[name] for size in sizes)) for name in sizes[0]}
    return {**earlier, **{name: max(size, earlier.get(name, 0.0)) for name, size in now.items()}}


def outliers(
    updates: Sequence[Measured],
    *,
    usual: Mapping[str, float],
    specs: Mapping[str, Mapping[str, ArraySpec]],
    max_norm_ratio: float | None,
    max_sample_ratio: float | None,
) -> Iterator[tuple[str, Rejected]]:
    """Sites whose updates are far outside what the sites sent in this round or before, at most once each, and why.

    Two sites cannot say which of them is right, so fewer than three are not compared. Nor is anything of which the
    usual size is 0. A site that made more steps than the median may move as many times further.

    Args:
        updates: a round's updates, each of which passed `check_update`.
        usual: what `medians` gives for them.
        specs: arrays by method; only those that are ``alike`` are compared.
        max_norm_ratio: how many times the usual size a norm may be, or a statistic above or below the round's median;
            None: any.
        max_sample_ratio: how many times the median a sample count may be; None: any.
    """
    if len(updates) < FEWEST_TO_COMPARE:
        return
    samples = statistics.median(update.n_samples for update in updates)
    steps = max(1.0, statistics.median(update.n_steps for update in updates))
    moved, methods = usual[PARAMETERS], list(updates[0].change.arrays)
    middle = {
        (method, name): np.median([update.arrays[method][name] for update in updates], axis=0)
        for method, named in specs.items()
        for name, spec in named.items()
        if spec.alike == "elements" and method in methods and name in updates[0].arrays[method]
    }

    def fault(update: Measured) -> Rejected | None:
        if max_sample_ratio is not None and update.n_samples > max_sample_ratio * samples:
            return Rejected(
                "n_samples",
                f"is {update.n_samples}, more than {max_sample_ratio:g} times the sites' median of {samples:g}; if "
                "that is right, raise federation.max_sample_ratio",
            )
        if max_norm_ratio is None:
            return None
        advice = "; if that is right, raise federation.max_norm_ratio"
        allowed = max_norm_ratio * max(1.0, update.n_steps / steps)
        change = update.change.parameters
        if moved > 0 and not change <= allowed * moved:
            return Rejected(
                "weights",
                f"moved by {change:.3g} in this round, the largest median of a round so far is {moved:.3g} and "
                f"{allowed:g} times that is allowed{advice}",
            )
        for method in methods:
            norm, size = update.change.arrays[method], usual[method]
            if size > 0 and not norm <= max_norm_ratio * size:
                return Rejected(
                    method,
                    f"sent arrays of norm {norm:.3g}, the largest median of a round so far is {size:.3g} and "
                    f"{max_norm_ratio:g} times that is allowed{advice}",
                )
        for (method, name), median in middle.items():
            array = update.arrays[method][name]
            out = (array > max_norm_ratio * median) | (array * max_norm_ratio < median)
            if out.any():
                return Rejected(
                    f"{method}/{name}",
                    f"holds {array[out][0]:.3g}, the sites' median is {median[out][0]:.3g} and {max_norm_ratio:g} "
                    f"times more or less is allowed{advice}",
                )
        return None

    for update in updates:
        found = fault(update)
        if found is not None:
            yield update.site, found


def check_scores(
    scores: Scores,
    *,
    round_: int,
    metrics: Ranges,
    parts: tuple[str, ...] = ("val", "test"),
    personal: bool = False,
    counts: Mapping[str, int] | None = None,
    gradient_norm: bool = False,
    n_classes: int = 0,
    per_case: tuple[str, ...] = (),
) -> None:
    """Compare a site's scores of an aggregate with what was asked for.

    Args:
        scores: a site's answer.
        round_: the round whose aggregate is being scored.
        metrics: the task's scores and their ranges.
        parts: what a site scores the model on.
        personal: whether sites fine-tune the model for themselves and score that too.
        counts: how many samples the site has said that each split has.
        gradient_norm: whether the job asks for it.
        n_classes: of the task.
        per_case: the scores that every case has.

    Raises:
        Rejected: the first fault found.
    """
    if scores.personal and not personal:
        raise Rejected("scores.personal", "is not expected: no method of the job fine-tunes")
    if scores.round != round_:
        raise Rejected("round", f"scores of round {scores.round} came instead of those of round {round_}")
    for splits in (scores.values, scores.personal):
        for split, values in splits.items():
            if split not in parts:
                raise Rejected(f"scores.{split}", "is no split that is scored")
            _check_metrics(values, metrics)
    told = {f"evaluations.{part}": (evaluation, part, scores.values) for part, evaluation in scores.evaluations.items()}
    if scores.personal_evaluation is not None:
        told["personal_evaluation"] = (scores.personal_evaluation, "test", scores.personal)
    for key, (evaluation, part, values_by_part) in told.items():
        if part not in parts:
            raise Rejected(key, "is no split that is scored")
        if evaluation.scores != values_by_part.get(part):
            raise Rejected(f"{key}.scores", "are not the scores that were given")
        most = (counts or {}).get(part, MOST_SAMPLES)
        if evaluation.gradient_norm is not None and not gradient_norm:
            raise Rejected(f"{key}.gradient_norm", "is not expected: the job does not ask for it")
        if part == "val" and evaluation != Evaluation(scores=evaluation.scores, gradient_norm=evaluation.gradient_norm):
            raise Rejected(key, "says more of validation than is asked")
        _check_evaluation(key, evaluation, metrics, most=most, n_classes=n_classes, per_case=per_case)


def _check_evaluation(
    key: str, told: Evaluation, metrics: Ranges, *, most: int, n_classes: int, per_case: tuple[str, ...]
) -> None:
    """Single numbers in their ranges, no more cases than samples, a score that is the mean of its cases."""
    for name, spread in told.distributions.items():
        if name not in per_case:
            raise Rejected(f"{key}.distributions.{name}", "is not expected")
        low, high = metrics[name]
        for value in (spread.mean, *(spread.quantiles or ()), *(spread.interval or ()), *(spread.cases or ())):
            if not low <= value <= high:
                raise Rejected(f"{key}.distributions.{name}", f"holds {value:g}, allowed is {low:g} to {high:g}")
        if spread.n > most:
            raise Rejected(f"{key}.distributions.{name}", f"has {spread.n} cases, the part has {most} samples")
        if told.scores.get(name) != spread.mean:
            raise Rejected(f"{key}.distributions.{name}", "has another mean than the score")
    if told.empty is not None and told.empty > most:
        raise Rejected(f"{key}.empty", f"is {told.empty}, the part has {most} samples")
    if told.confusion is not None:
        total = sum(map(sum, told.confusion))
        if len(told.confusion) != n_classes or total > most:
            raise Rejected(f"{key}.confusion", f"has {len(told.confusion)} classes and {total} samples")
        right = sum(row[number] for number, row in enumerate(told.confusion))
        if not isclose(right, told.scores.get("accuracy", 0.0) * total, abs_tol=1e-6 * (1 + total)):
            raise Rejected(f"{key}.confusion", "has another accuracy than the score")


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and abs(int(value)) < 2**63


def _check_metrics(got: Mapping[str, float], allowed: Ranges) -> None:
    for name, value in got.items():
        if name not in allowed:
            raise Rejected(f"metrics.{name}", "is not expected")
        low, high = allowed[name]
        if not isinstance(value, float | np.floating) and not _is_whole(value):
            raise Rejected(f"metrics.{name}", f"is a {type(value).__name__}, not a number")
        if not low <= value <= high:
            raise Rejected(f"metrics.{name}", f"is {value:g}, allowed is {low:g} to {high:g}")


def _check_counter(key: str, new: np.ndarray, old: np.ndarray, most: int) -> None:
    # Compared as Python integers: a difference of extreme int64 values would wrap around.
    pairs = zip(new.ravel().tolist(), old.ravel().tolist(), strict=True)
    if not all(before <= now <= before + most for now, before in pairs):
        raise Rejected(key, f"counted more than {most} batches in one round, or backwards")


def _check_weights(update: Update, received: Received, max_norm: float) -> tuple[float, float]:
    """How far parameters and buffers have moved."""
    _check_keys(update.weights, received.weights, "weights")
    for key, reference in received.weights.items():
        array = update.weights[key]
        _check_form(key, array, reference.shape, reference.dtype)
        if key in received.counters:
            _check_counter(key, array, reference, PASSES_PER_STEP * update.n_steps)
        elif key in received.most:
            most = received.most[key]
            _check_range(key, array, -most, most)
            if key.endswith("running_var") and array.min(initial=0) < 0:
                raise Rejected(key, "a variance is negative")
    moved = _distance(update.weights, received.parameters)
    if not np.isfinite(moved):  # looked for only now: the distance has seen every number
        for key in received.parameters:
            _check_finite(key, update.weights[key])
    limit = max_norm * max(1.0, received.norm)
    if not moved <= limit:
        raise Rejected("weights", f"moved by {moved:.3g} in one round, allowed is {limit:.3g}")
    return moved, _distance(update.weights, received.buffers)


def _check_keys(got: Mapping[str, object], expected: Mapping[str, object], what: str) -> None:
    missing, extra = sorted(set(expected) - set(got)), sorted(map(str, set(got) - set(expected)))
    if missing:
        raise Rejected(missing[0], f"is missing from {what} ({len(missing)} of {len(expected)} are)")
    if extra:
        raise Rejected(extra[0], f"is not expected in {what}")


def _check_array(key: str, array: np.ndarray, spec: ArraySpec) -> None:
    _check_form(key, array, spec.shape, np.dtype(spec.dtype))
    _check_finite(key, array)
    if spec.low > -np.inf or spec.high < np.inf:
        _check_range(key, array, spec.low, spec.high)


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


def _check_finite(key: str, array: np.ndarray) -> None:
    if not np.isfinite(array).all():
        raise Rejected(key, "holds NaN or infinity")


def _check_range(key: str, array: np.ndarray, low: float, high: float) -> None:
    if not array.size:
        return
    least, most = array.min(), array.max()
    if not (np.isfinite(least) and np.isfinite(most)):
        raise Rejected(key, "holds NaN or infinity")
    if least < low or most > high:
        raise Rejected(key, f"goes from {least:g} to {most:g}, allowed is {low:g} to {high:g}")


def _check_free_sizes(method: str, arrays: Arrays, specs: Mapping[str, ArraySpec], n_samples: int) -> None:
    """A size that the site chooses is the same in all arrays of a method, and at most one for each sample."""
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
    return _root(_squares(new[key], less=value) for key, value in old.items())


def _norm(arrays: Iterable[np.ndarray]) -> float:
    return _root(_squares(array) for array in arrays)


def _root(squares: Iterable[float]) -> float:
    with np.errstate(over="ignore"):  # infinite is too large for every limit
        return float(np.sqrt(sum(squares)))


def _squares(array: np.ndarray, *, less: np.ndarray | None = None) -> float:
    """Summed in float64, block by block: a copy of a large array would cost more than the sum."""
    flat, other, total = array.reshape(-1), None if less is None else less.reshape(-1), 0.0
    for start in range(0, flat.size, BLOCK):
        part = flat[start : start + BLOCK]
        block = (part if other is None else part - other[start : start + BLOCK]).astype(np.float64)
        total += float(np.dot(block, block))
    return total
