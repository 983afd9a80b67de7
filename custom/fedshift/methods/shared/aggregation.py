"""Sums over sites that server halves share: float64, in site order, one tensor at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from fedshift.methods.base import ConfigT, Server, ServerContext, SiteUpdate
from fedshift.schema.messages import Weights

BLOCK = 1 << 16
"""Numbers that are summed at a time."""
PART = 1 << 21
"""Numbers that are read at a time from an update on disk."""


@runtime_checkable
class ReadInParts(Protocol):
    """Arrays by name that need not be read as a whole."""

    def part(self, key: str, numbers: slice) -> np.ndarray:
        """Some of the numbers of an array, flat, in C order."""


def sample_fractions(updates: Sequence[SiteUpdate]) -> list[float]:
    """n_k / n for each update."""
    total = sum(update.n_samples for update in updates)
    return [update.n_samples / total for update in updates]


def site_fractions(updates: Sequence[SiteUpdate], weights: str) -> list[float]:
    """n_k / n with ``weights="samples"``, 1 / K with ``"uniform"``."""
    return [1.0 / len(updates)] * len(updates) if weights == "uniform" else sample_fractions(updates)


def places(updates: Sequence[SiteUpdate], ctx: ServerContext) -> list[int]:
    """Indices of the updates' sites in the job's list of sites."""
    return [ctx.sites.index(update.site) for update in updates]


def project(values: np.ndarray, *, lowest: float = 0.0, total: float = 1.0) -> np.ndarray:
    """Euclidean projection onto {sum = ``total``, every element ≥ ``lowest``}: (N,) -> (N,) float64."""
    above = values.astype(np.float64) - lowest
    room = max(total - lowest * len(above), 0.0)  # rounding can make it slightly negative
    descending = np.sort(above)[::-1]
    thresholds = (np.cumsum(descending) - room) / np.arange(1, len(above) + 1)
    last = np.flatnonzero(descending >= thresholds)[-1]
    projected: np.ndarray = np.maximum(above - thresholds[last], 0) + lowest
    return projected


def effective_steps(tau: int, momentum: float) -> float:
    """How many plain gradients τ steps of SGD with momentum ρ, begun at zero, add up to.

    The k-th gradient is in the weights (1 − ρ^(τ−k+1)) / (1 − ρ) times::

        a = (τ − ρ (1 − ρ^τ) / (1 − ρ)) / (1 − ρ)
    """
    return (tau - momentum * (1 - momentum**tau) / (1 - momentum)) / (1 - momentum)


def proximal_steps(tau: int, pull: float) -> float:
    """How many plain gradients τ steps of SGD with FedProx's term add up to; ``pull`` is η μ, below 1.

    Every step first takes the part η μ of the way back to where the round began, so the k-th gradient is in the weights
    (1 − η μ)^(τ−k) times::

        a = (1 − (1 − η μ)^τ) / (η μ)
    """
    return (1 - (1 - pull) ** tau) / pull if pull else float(tau)


def average(weights: Weights, updates: Sequence[SiteUpdate], coefficients: Sequence[float]) -> Weights:
    """Weighted sum of the updates' tensors, Σ_k c_k w_k.

    Keys that no update carries stay as in ``weights``. Integer buffers (batch counters)
    are not averaged: the largest is taken. Dtypes and shapes stay those of ``weights``.
    """
    result: Weights = {}
    for key, old in weights.items():
        if key not in updates[0].weights:
            result[key] = old
        elif np.issubdtype(old.dtype, np.integer):
            largest = np.max([update.weights[key] for update in updates], axis=0)
            result[key] = np.asarray(largest, old.dtype)  # numpy turns 0-d results into scalars
        else:
            result[key] = _sum(old, updates, coefficients, key)
    return result


class MeanStep(Server[ConfigT]):
    """Averages the sites' models, and then gives each parameter another value; buffers stay averages.

    The options have ``weights``: ``samples`` is n_k / n, ``uniform`` 1 / K.
    """

    owns = frozenset({"combine"})

    @abstractmethod
    def new_value(self, key: str, old: np.ndarray, mean: np.ndarray, updates: Sequence[SiteUpdate]) -> np.ndarray:
        """Return a parameter's new value from w, float64, and the sites' mean."""

    def combine(self, weights: Weights, updates: Sequence[SiteUpdate], ctx: ServerContext) -> Weights:
        result = average(weights, updates, site_fractions(updates, cast(Any, self.config).weights))
        for key in sorted(ctx.trainable & set(updates[0].weights)):
            new = self.new_value(key, weights[key].astype(np.float64), result[key], updates)
            result[key] = np.asarray(new, weights[key].dtype)
        return result


def move(
    weights: Weights,
    updates: Sequence[SiteUpdate],
    coefficients: Sequence[float],
    *,
    trainable: frozenset[str],
    buffers: Sequence[float] | None = None,
) -> Weights:
    """Move along the sites' changes: w + Σ_k c_k (w_k − w) for parameters, whatever the sign and sum of c.

    A combination that is not convex would make running variances negative, so floating buffers are averaged with
    the convex ``buffers`` (default: by sample count).
    """
    result = average(weights, updates, sample_fractions(updates) if buffers is None else buffers)
    rest = 1.0 - sum(coefficients)
    for key in weights:
        if key in trainable and key in updates[0].weights:
            result[key] = _sum(weights[key], updates, coefficients, key, rest=rest)
    return result


def inner_products(
    weights: Weights, updates: Sequence[SiteUpdate], *, trainable: frozenset[str], with_model: bool = False
) -> np.ndarray:
    """Inner products of the sites' changes w_k − w over all trainable parameters, (K, K) float64.

    With ``with_model`` w itself comes first, (K + 1, K + 1).

    One tensor of all sites is in memory at a time. Without BLAS, whose last digits depend on the number of processors.
    """
    total = np.zeros((len(updates) + with_model,) * 2)
    for key in sorted(trainable & set(updates[0].weights)):
        old, models = weights[key].reshape(-1), [update.weights[key].reshape(-1) for update in updates]
        for start in range(0, old.size, BLOCK):
            block = slice(start, start + BLOCK)
            vectors = np.stack([model[block] for model in models]).astype(np.float64) - old[block]
            if with_model:
                vectors = np.concatenate((old[block].astype(np.float64)[None], vectors))
            total += np.einsum("ip,jp->ij", vectors, vectors)
    return total


def _sum(
    old: np.ndarray, updates: Sequence[SiteUpdate], coefficients: Sequence[float], key: str, rest: float | None = None
) -> np.ndarray:
    """Σ_k c_k w_k, and rest · w if there is a rest, in float64 and as the type of ``old``, which is w.

    Of updates on disk a part of a tensor is in memory at a time, however large it is.
    """
    result = np.empty(old.shape, old.dtype)
    flat, flat_old = result.reshape(-1), np.asarray(old, order="C").reshape(-1)
    readers = [_reader(update, key) for update in updates]
    for first in range(0, flat.size, PART):
        part = slice(first, first + PART)
        total = np.zeros(flat[part].size, np.float64)
        for reader, coefficient in zip(readers, coefficients, strict=True):
            _add(reader(part), coefficient, total)
        if rest is not None:
            total += rest * flat_old[part].astype(np.float64)
        flat[part] = total
    return result


def _add(values: np.ndarray, coefficient: float, total: np.ndarray) -> None:
    for start in range(0, values.size, BLOCK):  # what is in the processor's cache
        block = values[start : start + BLOCK].astype(np.float64)
        block *= coefficient
        total[start : start + BLOCK] += block


def _reader(update: SiteUpdate, key: str) -> Callable[[slice], np.ndarray]:
    """Reads a part of an update's flat tensor: from disk, or from what is in memory or was computed."""
    weights = update.weights
    if isinstance(weights, ReadInParts):
        return lambda part: weights.part(key, part)
    whole = weights[key].reshape(-1)
    return lambda part: whole[part]
