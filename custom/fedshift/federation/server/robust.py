"""What of a round's accepted updates is combined: limits on one site's part in it, and the rules of robust aggregation.

Before the server halves see a round's updates, each update's arrays are replaced (`present`), one tensor of all sites
at a time. With w the model that the sites received, w_k one of K updates, n_k its samples, L_k its limit::

    clip            w_k ← w + min(1, L_k / ‖w_k − w‖) (w_k − w),   n_k ← min(n_k, limit of samples)
    trimmed_mean    w_k ← element-wise mean over sites without the ``trim`` smallest and ``trim`` largest values
    median          trimmed_mean with the largest possible ``trim``: one value remains, or the mean of two

**Limits.** Every job clips by default (`usual_limits`), at limits that bound what one site can do and that honest sites
do not meet. The rule ``norm_clipping`` of ``federation.robust`` clips at multiples of the round's medians
(`limits_of_round`). The norm is over all trainable parameters. Floating buffers have a norm and a limit of their own,
and so have the arrays of a method that are changes (`ArraySpec.averaged`: SCAFFOLD's control variates).

What does harm is the part of a change that points against those of the others: as long as theirs together it undoes the
round, while noise of the same length does next to nothing. A limit on the length that honest sites never meet is too
high for that, so this part has a limit of its own, by which the whole change is scaled down. With d_k the change of the
parameters and s_k the sum of the other sites' changes, none counted as longer than usual, it is ::

    max(0, - <d_k, s_k> / ‖s_k‖)

Honest sites do move against the others, late, when each pulls towards its own images, but then they hardly move.

**Rules.** FedAvg gives exactly the median or the trimmed mean whatever its weights, sample counts included, so a site
gains nothing with a false count. Methods that use the sites' changes (FedAvgM) use those of the replaced arrays. Those
whose sites add up their changes (SCAFFOLD, FedDyn) take clipping alone, which leaves a part of each that the server can
tell the site (`fedshift.methods.shared.tally`). Floating buffers and the methods' arrays that the server only averages
(FRAug's generator, HarmoFL's spectrum) are treated like weights. Integer counters and all other arrays (statistics of
FedRDN and FedFA, prototypes, losses) are not replaced: `update_check` and `outliers` limit them.

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018 (median, trimmed
mean); Sun et al., "Can You Really Backdoor Federated Learning?", 2019 (norm clipping). The former assume that honest
sites differ only by chance. Under feature shift they differ systematically, and the median drops what is particular to
one site: it costs accuracy even without an attack.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import ceil, inf

import numpy as np

from fedshift.federation.refusals import FEWEST_TO_COMPARE, ROBUST, rule_name
from fedshift.federation.server.outliers import BUFFERS, PARAMETERS
from fedshift.federation.server.spool import ReplacedUpdate, SpooledUpdate
from fedshift.methods.base import ArraySpec, SiteUpdate
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import FederationSpec, JobSpec, RobustSpec
from fedshift.schema.messages import Weights

log = logging.getLogger("fedshift")


def present(
    updates: Sequence[SpooledUpdate],
    spec: RobustSpec | None,
    *,
    limits: Limits | None = None,
    weights: Weights,
    trainable: frozenset[str],
    specs: Mapping[str, Mapping[str, ArraySpec]],
) -> Sequence[SiteUpdate]:
    """The updates as the server halves see them.

    Args:
        updates: a round's accepted updates, in site order.
        spec: the rule, if the job has one.
        limits: what `limits_of_job` gave, for jobs without a rule.
        weights: what the sites received.
        trainable: keys of parameters, as against buffers.
        specs: arrays by method: `fedshift.methods.method_set.MethodSet.up`.

    Raises:
        ConfigError: fewer updates than the rule leaves out.
    """
    if spec is not None and spec.rule == "norm_clipping" and updates:
        limits = limits_of_round(updates, spec.clip)
    if limits is not None:
        return clip(updates, limits, weights=weights, trainable=trainable, specs=specs)
    if spec is None or not updates:
        return updates
    trim = (len(updates) - 1) // 2 if spec.rule == "median" else spec.trim
    if 2 * trim >= len(updates):
        raise ConfigError(
            "too-few-answers", f"{ROBUST}: rule {rule_name(spec)} leaves nothing of {len(updates)} updates"
        )
    averaged = {(m, name) for m, named in specs.items() for name, s in named.items() if s.averaged}
    return _trimmed(updates, trim, weights, averaged)


# --- limits ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """The largest norms of the updates' changes in their order, the largest sample count, the fewest counted steps."""

    parameters: Sequence[float]
    buffers: Sequence[float]
    arrays: Mapping[str, Sequence[float]] = field(default_factory=dict)
    samples: float = inf
    steps: int = 0
    opposed: frozenset[int] = frozenset()
    """Numbers of updates whose limit of the parameters is lower because they move against the others."""


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


def limits_of_job(
    updates: Sequence[SpooledUpdate],
    job: JobSpec,
    round_: int,
    *,
    usual: Mapping[str, float],
    weights: Weights,
    trainable: frozenset[str],
) -> Limits | None:
    """The limits of a round's updates by a job's options, if it has such limits; logs those that are met."""
    federation = job.federation
    if federation.robust is not None or federation.encryption is not None:
        return None
    by_clock = job.task.schedule.minutes is not None
    limits = usual_limits(
        updates, usual if round_ else {}, federation, weights=weights, trainable=trainable, by_clock=by_clock
    )
    for site, what in exceeded(updates, limits) if limits else ():
        log.warning("round %d: site %s: %s", round_, site, what)
    return limits


def usual_limits(
    updates: Sequence[SpooledUpdate],
    usual: Mapping[str, float],
    federation: FederationSpec,
    *,
    weights: Weights,
    trainable: frozenset[str],
    by_clock: bool = False,
) -> Limits | None:
    """Limits from what was usual in this round and earlier ones; None with fewer than three updates.

    A site that made more steps than the median may move that many times further, up to ``clip_sample_ratio``: its steps
    follow from the samples that it says it has. A reference of 0 is no limit.

    Args:
        updates: a round's accepted updates.
        usual: the result of `fedshift.federation.server.outliers.medians`.
        federation: its ``clip_norm_ratio`` and ``clip_opposed_ratio`` (of the part that `opposition` gives) are of the
            usual norm, its ``clip_sample_ratio`` of the round's median; None is no limit.
        weights: what the sites received.
        trainable: keys of parameters, as against buffers.
        by_clock: whether the sites' clocks end a round. The server then has only a site's word for its number of steps,
            which FedNova divides by, so none counts for less than the median divided by ``clip_sample_ratio``.
    """
    if len(updates) < FEWEST_TO_COMPARE:
        return None
    norm_ratio, opposed_ratio = federation.clip_norm_ratio, federation.clip_opposed_ratio
    sample_ratio = federation.clip_sample_ratio
    steps = statistics.median(update.n_steps for update in updates)  # 0 in the statistics round
    more = [min(max(1.0, update.n_steps / max(1.0, steps)), sample_ratio or inf) for update in updates]
    samples = inf if sample_ratio is None else _most_samples([update.n_samples for update in updates], sample_ratio)

    def limit(name: str) -> list[float]:
        reference = usual.get(name, 0.0)
        return [norm_ratio * reference * k if norm_ratio is not None and reference > 0 else inf for k in more]

    parameters, lowered = limit(PARAMETERS), set[int]()
    reference = usual.get(PARAMETERS, 0.0)
    if opposed_ratio is not None and reference > 0:
        most = [opposed_ratio * reference * k for k in more]
        if any(update.change.parameters > limit for update, limit in zip(updates, most, strict=True)):
            against = opposition(updates, usual=reference, weights=weights, trainable=trainable)
            for number, part in enumerate(against):
                norm = updates[number].change.parameters
                if part > most[number] and norm * most[number] / part < parameters[number]:
                    parameters[number] = norm * most[number] / part
                    lowered.add(number)
    return Limits(
        parameters=parameters,
        buffers=limit(BUFFERS),
        arrays={method: limit(method) for method in updates[0].change.arrays},
        samples=samples,
        steps=ceil(steps / sample_ratio) if by_clock and sample_ratio is not None else 0,
        opposed=frozenset(lowered),
    )


def opposition(
    updates: Sequence[SpooledUpdate], *, usual: float, weights: Weights, trainable: frozenset[str]
) -> list[float]:
    """How far each site moves the parameters against the others; 0 if it moves along with them.

    In the sum of the others each site has one vote: sample counts do not matter, and a change that is longer than
    ``usual`` counts as if it were as long. Two tensors are in memory at a time, however many sites there are.
    """
    lengths = [update.change.parameters for update in updates]
    votes = [min(1.0, usual / max(length, usual)) for length in lengths]
    with_sum, sum_with_itself = np.zeros(len(updates)), 0.0
    for key in sorted(trainable & set(updates[0].weights)):
        received = weights[key].astype(np.float64)
        total = np.zeros_like(received)
        for update, vote in zip(updates, votes, strict=True):
            total += vote * (update.weights[key] - received)
        with_sum += [_product(update.weights[key] - received, total) for update in updates]
        sum_with_itself += _product(total, total)
    against = []
    for product, length, vote in zip(with_sum, lengths, votes, strict=True):
        with_others = product - vote * length**2
        others = sum_with_itself - 2 * vote * product + (vote * length) ** 2
        against.append(max(0.0, float(-with_others / others**0.5)) if others > 0 else 0.0)
    return against


def _product(a: np.ndarray, b: np.ndarray) -> float:
    """Inner product, without BLAS: its last digits would depend on the number of processors."""
    return float(np.einsum("i,i->", a.reshape(-1), b.reshape(-1)))


def _most_samples(counts: Sequence[int], ratio: float) -> float:
    """The largest count that a site weighs with: ``ratio`` times the median, and no more than all others together."""
    most = ratio * statistics.median(counts)
    counted = sorted(min(count, most) for count in counts)
    return min(most, sum(counted[:-1]))


def clip(
    updates: Sequence[SpooledUpdate],
    limits: Limits,
    *,
    weights: Weights,
    trainable: frozenset[str],
    specs: Mapping[str, Mapping[str, ArraySpec]],
) -> Sequence[SiteUpdate]:
    """The updates within their limits; one that is within them already is returned as it is. Arguments: `present`."""
    changes = {(m, name) for m, named in specs.items() for name, spec in named.items() if spec.averaged == "changes"}

    def within(number: int, update: SpooledUpdate) -> SiteUpdate:
        factors = _factors(number, update, limits)
        counts = update.n_samples <= limits.samples and update.n_steps >= limits.steps
        if counts and all(factor == 1 for factor in factors.values()):
            return update

        def weight(key: str) -> np.ndarray:
            sent, factor = update.weights[key], factors[PARAMETERS if key in trainable else BUFFERS]
            if factor == 1 or np.issubdtype(sent.dtype, np.integer):
                return sent
            old = weights[key].astype(np.float64)
            return np.asarray((1 - factor) * old + factor * sent, sent.dtype)

        def array(method: str, name: str) -> np.ndarray:
            sent = update.arrays[method][name]
            factor = factors.get(method, 1.0) if (method, name) in changes else 1.0
            return sent if factor == 1 else np.asarray(factor * sent, sent.dtype)

        n_samples = update.n_samples if update.n_samples <= limits.samples else ceil(limits.samples)
        n_steps = max(update.n_steps, limits.steps)
        scaled = {name: factor for name, factor in factors.items() if factor < 1}
        return ReplacedUpdate(update, weight, array, n_samples=n_samples, n_steps=n_steps, scaled=scaled)

    return [within(number, update) for number, update in enumerate(updates)]


def exceeded(updates: Sequence[SpooledUpdate], limits: Limits) -> Iterator[tuple[str, str]]:
    """Sites whose update is beyond a limit, with what is done about it."""
    for number, update in enumerate(updates):
        for name, factor in _factors(number, update, limits).items():
            against = name == PARAMETERS and number in limits.opposed
            what, option = (", against the others,", "opposed") if against else ("", "norm")
            scaling = (
                f"its change of {name}{what} is scaled down to {factor:.2g} of it (federation.clip_{option}_ratio)"
            )
            if factor < 1:
                yield update.site, scaling
        if update.n_samples > limits.samples:
            counted = f"{ceil(limits.samples)} samples in place of {update.n_samples}"
            yield update.site, f"it counts for {counted} (federation.clip_sample_ratio)"
        if update.n_steps < limits.steps:
            counted = f"{limits.steps} steps in place of {update.n_steps}"
            yield update.site, f"it counts with {counted} (federation.clip_sample_ratio)"


def _factors(number: int, update: SpooledUpdate, limits: Limits) -> dict[str, float]:
    """What an update's changes are multiplied by: parameters, buffers, and the arrays of each method."""
    change = update.change
    pairs = {
        PARAMETERS: (change.parameters, limits.parameters[number]),
        BUFFERS: (change.buffers, limits.buffers[number]),
        **{method: (change.arrays[method], most[number]) for method, most in limits.arrays.items()},
    }
    return {name: 1.0 if norm <= limit else limit / norm for name, (norm, limit) in pairs.items()}


# --- rules ----------------------------------------------------------------------------------------------


def trimmed_mean(values: np.ndarray, trim: int) -> np.ndarray:
    """Mean over the first axis without the ``trim`` smallest and largest: (K, …) -> (…) of the same type."""
    kept = np.sort(values, axis=0)[trim : len(values) - trim]
    return np.asarray(kept.mean(axis=0, dtype=np.float64), values.dtype)


def _trimmed(
    updates: Sequence[SpooledUpdate], trim: int, weights: Weights, averaged: Set[tuple[str, str]]
) -> list[SiteUpdate]:
    # Server halves read the same tensor of one site after another: keep it until another tensor is read.
    last: dict[tuple[str, str], np.ndarray] = {}

    def middle(method: str, name: str) -> np.ndarray:
        if (method, name) not in last:
            last.clear()
            named = [update.arrays[method] if method else update.weights for update in updates]
            last[method, name] = trimmed_mean(np.stack([arrays[name] for arrays in named]), trim)
        return last[method, name]

    def presented(sent: SpooledUpdate) -> SiteUpdate:
        def weight(key: str) -> np.ndarray:
            return sent.weights[key] if np.issubdtype(weights[key].dtype, np.integer) else middle("", key)

        def array(method: str, name: str) -> np.ndarray:
            return middle(method, name) if (method, name) in averaged else sent.arrays[method][name]

        return ReplacedUpdate(sent, weight, array)

    return [presented(update) for update in updates]
