"""Scale down changes that are larger than a limit, and cap the sample counts by which updates are weighted.

With w the model that the sites received, w_k an update, n_k its number of samples and L_k its limit::

    w_k ← w + min(1, L_k / ‖w_k − w‖) (w_k − w),    n_k ← min(n_k, limit of samples)

The norm is over all trainable parameters. Floating buffers have a norm and a limit of their own, and so have the arrays
of a method that are changes (`ArraySpec.averaged`: SCAFFOLD's control variates). Integer counters are not replaced.

Two sets of limits use it: rule ``norm_clipping`` of ``federation.robust`` (`limits_of_round`), and the limits that
every job has by default (`usual_limits`), which bound what one site can do and are not met by honest sites.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf

import numpy as np

from fedshift.federation.server.outliers import BUFFERS, FEWEST_TO_COMPARE, PARAMETERS
from fedshift.federation.server.replaced_update import ReplacedUpdate
from fedshift.federation.server.spool import SpooledUpdate
from fedshift.methods.base import ArraySpec, SiteUpdate
from fedshift.schema.messages import Weights


@dataclass(frozen=True)
class Limits:
    """The largest norm of each update's change, in the order of the updates, and the largest sample count."""

    parameters: Sequence[float]
    buffers: Sequence[float]
    arrays: Mapping[str, Sequence[float]] = field(default_factory=dict)
    samples: float = inf


def limits_of_round(updates: Sequence[SpooledUpdate], ratio: float) -> Limits:
    """Limits that are ``ratio`` times the medians of the round."""

    def limit(sizes: Sequence[float]) -> list[float]:
        return [ratio * statistics.median(sizes)] * len(updates)

    changes = [update.change for update in updates]
    return Limits(
        parameters=limit([change.parameters for change in changes]),
        buffers=limit([change.buffers for change in changes]),
        arrays={method: limit([change.arrays[method] for change in changes]) for method in changes[0].arrays},
        samples=ratio * statistics.median(update.n_samples for update in updates),
    )


def usual_limits(
    updates: Sequence[SpooledUpdate],
    usual: Mapping[str, float],
    *,
    norm_ratio: float | None,
    sample_ratio: float | None,
) -> Limits | None:
    """Limits from what was usual in this round and earlier ones; None with fewer than three updates.

    A site that made more steps than the median may move that many times further. A reference of 0 is no limit.

    Args:
        updates: a round's accepted updates.
        usual: the result of `fedshift.federation.server.outliers.medians`.
        norm_ratio: limit of a change's norm as a multiple of the usual one; None: no limit.
        sample_ratio: limit of a sample count as a multiple of the round's median; None: no limit.
    """
    if len(updates) < FEWEST_TO_COMPARE:
        return None
    steps = max(1.0, statistics.median(update.n_steps for update in updates))
    more = [max(1.0, update.n_steps / steps) for update in updates]

    def limit(name: str) -> list[float]:
        reference = usual.get(name, 0.0)
        return [norm_ratio * reference * k if norm_ratio is not None and reference > 0 else inf for k in more]

    return Limits(
        parameters=limit(PARAMETERS),
        buffers=limit(BUFFERS),
        arrays={method: limit(method) for method in updates[0].change.arrays},
        samples=inf if sample_ratio is None else sample_ratio * statistics.median(u.n_samples for u in updates),
    )


def clip(
    updates: Sequence[SpooledUpdate],
    limits: Limits,
    *,
    weights: Weights,
    trainable: frozenset[str],
    specs: Mapping[str, Mapping[str, ArraySpec]],
) -> Sequence[SiteUpdate]:
    """The updates within their limits; an update that is within them already is returned as it is.

    Args:
        updates: a round's accepted updates.
        limits: for these updates.
        weights: what the sites received.
        trainable: keys of parameters, as against buffers.
        specs: arrays by method: `fedshift.methods.method_set.MethodSet.up`.
    """
    changes = {(m, name) for m, named in specs.items() for name, spec in named.items() if spec.averaged == "changes"}

    def within(number: int, update: SpooledUpdate) -> SiteUpdate:
        factors = _factors(number, update, limits)
        if all(factor == 1 for factor in factors.values()) and update.n_samples <= limits.samples:
            return update

        def weight(key: str) -> np.ndarray:
            own, factor = update.weights[key], factors[PARAMETERS if key in trainable else BUFFERS]
            if factor == 1 or np.issubdtype(own.dtype, np.integer):
                return own
            old = weights[key].astype(np.float64)
            return np.asarray((1 - factor) * old + factor * own, own.dtype)

        def array(method: str, name: str) -> np.ndarray:
            own = update.arrays[method][name]
            factor = factors.get(method, 1.0) if (method, name) in changes else 1.0
            return own if factor == 1 else np.asarray(factor * own, own.dtype)

        n_samples = update.n_samples if update.n_samples <= limits.samples else ceil(limits.samples)
        return ReplacedUpdate(update, weight, array, n_samples=n_samples)

    return [within(number, update) for number, update in enumerate(updates)]


def exceeded(updates: Sequence[SpooledUpdate], limits: Limits) -> Iterator[tuple[str, str]]:
    """Sites whose update is beyond a limit, with what is done about it."""
    for number, update in enumerate(updates):
        for name, factor in _factors(number, update, limits).items():
            if factor < 1:
                yield (
                    update.site,
                    f"its change of {name} is scaled down to {factor:.2g} of it (federation.clip_norm_ratio)",
                )
        if update.n_samples > limits.samples:
            counted = f"{ceil(limits.samples)} samples in place of {update.n_samples}"
            yield update.site, f"it counts for {counted} (federation.clip_sample_ratio)"


def _factors(number: int, update: SpooledUpdate, limits: Limits) -> dict[str, float]:
    """What an update's changes are multiplied by: parameters, buffers, and the arrays of each method."""
    change = update.change
    pairs = {
        PARAMETERS: (change.parameters, limits.parameters[number]),
        BUFFERS: (change.buffers, limits.buffers[number]),
        **{method: (change.arrays[method], of[number]) for method, of in limits.arrays.items()},
    }
    return {name: 1.0 if norm <= limit else limit / norm for name, (norm, limit) in pairs.items()}
