"""Robust aggregation: what a few sites can do to the model is limited, whatever method combines the updates.

Before the server halves see a round's updates, each is presented with other arrays in place of its own. With K
updates w_k of a model w, and m the median over sites of ‖w_k − w‖ (norms over all trainable parameters together)::

    norm_clipping   w_k ← w + min(1, clip · m / ‖w_k − w‖) (w_k − w),   n_k ← min(n_k, ⌈clip · median n⌉)
    trimmed_mean    w_k ← mean over sites, element by element, without the ``trim`` smallest and the ``trim`` largest
    median          the same with as many left out as can be: one value is left, or the mean of two

So FedAvg gives exactly the median or the trimmed mean, whatever weights it has, sample counts included: with these
two a site that lies about its samples n_k gains nothing. With clipping sites keep weights of their own, but no site
counts for more samples than ``clip`` times the median, be that many true or not. Methods that move along the sites'
changes (FedAvgM, SCAFFOLD) move along what is presented.
Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018 (median, trimmed
mean); Sun et al., "Can You Really Backdoor Federated Learning?", 2019 (norm clipping). The first assume that honest
sites differ by chance alone. Under feature shift they differ for good, and the median leaves out what is particular
to one of them: it has a price also where nobody attacks.

Floating buffers go the same way: a median of variances is not negative, and clipping, with the buffers' own norms,
takes a convex average of two. Integer counters are as each site sent them; the guard bounds them. Of the arrays that
methods send, those that the server only averages (`ArraySpec.averaged`: SCAFFOLD's control variates, FRAug's
generator, HarmoFL's spectrum) are treated like weights; with ``norm_clipping`` only those that are changes
(SCAFFOLD's), by the norm that the guard measured. All others (statistics of FedRDN and FedFA, prototypes, FedMix's
averages, losses of AFL and VM) are as each site sent them, within what `fedshift.federation.server.guard` allows.

Nothing but one tensor of all sites is held at a time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from fedshift.federation.server.guard import FEWEST_TO_COMPARE
from fedshift.federation.server.spool import StoredUpdate
from fedshift.methods.base import ArraySpec, SiteUpdate
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec, RobustSpec
from fedshift.schema.messages import Weights

if TYPE_CHECKING:
    from fedshift.methods import Method

Arrays = Mapping[str, np.ndarray]
Part = Callable[[SiteUpdate], Arrays]
"""The weights of an update, or the arrays of one method."""

KEEP = "federation.robust"


def check(methods: Sequence[Method], job: JobSpec, net: nn.Module) -> None:
    """Refuse what the rule cannot do, when the job is made.

    Raises:
        ConfigError: too few sites, or a method that the rule would make pointless, and why.
    """
    spec = job.federation.robust
    if spec is None:
        return
    fewest = max(FEWEST_TO_COMPARE, 2 * spec.trim + 1) if spec.rule == "trimmed_mean" else FEWEST_TO_COMPARE
    if job.federation.min_sites < fewest:
        raise ConfigError(
            f"{KEEP}: rule {_told(spec)} needs {fewest} updates in every round, and federation.min_sites is "
            f"{job.federation.min_sites}: raise it{' or lower federation.robust.trim' if fewest > 3 else ''}"
        )
    for method in methods:
        if method.is_pooled:
            raise ConfigError(f"{KEEP}: method {method.name} trains where all images are, so no site sends an update")
        if method.server().tells_sites_apart and spec.rule != "norm_clipping":
            raise ConfigError(
                f"{KEEP}: method {method.name} gives each site's update a weight of its own, which rule {spec.rule} "
                "would undo: use rule norm_clipping or another method"
            )
    withheld = frozenset().union(*(method.client().withheld(net) for method in methods))
    if withheld >= {name for name, _ in net.named_parameters()}:
        raise ConfigError(
            f"{KEEP}: with method {' and '.join(m.name for m in methods)} no parameter leaves a site, so there is "
            "nothing to protect: leave it out"
        )


def present(
    updates: Sequence[StoredUpdate],
    spec: RobustSpec | None,
    *,
    weights: Weights,
    trainable: frozenset[str],
    specs: Mapping[str, Mapping[str, ArraySpec]],
) -> Sequence[SiteUpdate]:
    """The updates as the server halves are to see them.

    Args:
        updates: a round's accepted updates, in site order.
        spec: the rule; None: as they are.
        weights: what the sites received.
        trainable: keys of parameters, as against buffers.
        specs: arrays by method, as ``fedshift.methods.array_specs`` gives them.

    Raises:
        ConfigError: fewer updates than the rule leaves out.
    """
    if spec is None or not updates:
        return updates
    averaged = {(m, name): s.averaged for m, named in specs.items() for name, s in named.items() if s.averaged}
    if spec.rule == "norm_clipping":
        changes = {place for place, what in averaged.items() if what == "changes"}
        return _clipped(updates, spec.clip, weights, trainable, changes)
    trim = (len(updates) - 1) // 2 if spec.rule == "median" else spec.trim
    if 2 * trim >= len(updates):
        raise ConfigError(f"{KEEP}: rule {_told(spec)} leaves nothing of {len(updates)} updates")
    return _trimmed(updates, trim, weights, averaged)


def trimmed_mean(values: np.ndarray, trim: int) -> np.ndarray:
    """Mean over the first axis without the ``trim`` smallest and largest: (K, …) -> (…) of the same type."""
    kept = np.sort(values, axis=0)[trim : len(values) - trim]
    return np.asarray(kept.mean(axis=0, dtype=np.float64), values.dtype)


def clip_factors(norms: Sequence[float], clip: float) -> list[float]:
    """What each change is multiplied by so that none is larger than ``clip`` times their median."""
    limit = clip * statistics.median(norms)
    return [1.0 if norm <= limit else limit / norm for norm in norms]


# --- the rules ------------------------------------------------------------------------------------------


def _clipped(
    updates: Sequence[StoredUpdate],
    clip: float,
    weights: Weights,
    trainable: frozenset[str],
    changes: set[tuple[str, str]],
) -> list[SiteUpdate]:
    most_samples = clip * statistics.median(update.n_samples for update in updates)
    by_parameters = clip_factors([update.change.parameters for update in updates], clip)
    by_buffers = clip_factors([update.change.buffers for update in updates], clip)
    by_arrays = {
        method: clip_factors([update.change.arrays[method] for update in updates], clip)
        for method in sorted({method for method, _ in changes} & set(updates[0].change.arrays))
    }

    def presented(number: int, update: StoredUpdate) -> SiteUpdate:
        def weight(key: str) -> np.ndarray:
            own, factor = update.weights[key], (by_parameters if key in trainable else by_buffers)[number]
            if factor == 1 or np.issubdtype(own.dtype, np.integer):
                return own
            old = weights[key].astype(np.float64)
            return np.asarray((1 - factor) * old + factor * own, own.dtype)

        def array(method: str, name: str) -> np.ndarray:
            own = update.arrays[method][name]
            factor = by_arrays[method][number] if (method, name) in changes and method in by_arrays else 1.0
            return own if factor == 1 else np.asarray(factor * own, own.dtype)

        n_samples = update.n_samples if update.n_samples <= most_samples else ceil(most_samples)
        return _Presented(update, weight, array, n_samples=n_samples)

    return [presented(number, update) for number, update in enumerate(updates)]


def _trimmed(
    updates: Sequence[StoredUpdate], trim: int, weights: Weights, averaged: Mapping[tuple[str, str], str]
) -> list[SiteUpdate]:
    # Server halves ask for a tensor of each site in turn: the answer, which is the same, is kept until the next.
    last: dict[tuple[str, str], np.ndarray] = {}

    def middle(place: tuple[str, str], part: Part) -> np.ndarray:
        if place not in last:
            last.clear()
            last[place] = trimmed_mean(np.stack([part(update)[place[1]] for update in updates]), trim)
        return last[place]

    def presented(own: StoredUpdate) -> SiteUpdate:
        def weight(key: str) -> np.ndarray:
            if np.issubdtype(weights[key].dtype, np.integer):
                return own.weights[key]
            return middle(("weights", key), lambda update: update.weights)

        def array(method: str, name: str) -> np.ndarray:
            if (method, name) not in averaged:
                return own.arrays[method][name]
            return middle((f"arrays/{method}", name), lambda update: update.arrays[method])

        return _Presented(own, weight, array)

    return [presented(update) for update in updates]


def _told(spec: RobustSpec) -> str:
    return f"trimmed_mean with trim {spec.trim}" if spec.rule == "trimmed_mean" else spec.rule


class _Presented:
    """An update whose arrays are made when they are asked for."""

    def __init__(
        self,
        own: StoredUpdate,
        weight: Callable[[str], np.ndarray],
        array: Callable[[str, str], np.ndarray],
        *,
        n_samples: int | None = None,
    ) -> None:
        self.site, self.n_steps, self.metrics = own.site, own.n_steps, own.metrics
        self.n_samples = own.n_samples if n_samples is None else n_samples
        self._own, self._weight, self._array = own, weight, array

    @property
    def weights(self) -> Arrays:
        """Network keys to arrays."""
        return _Made(self._own.weights, self._weight)

    @property
    def arrays(self) -> Mapping[str, Arrays]:
        """Method to its arrays by name."""
        own = self._own.arrays

        def of(method: str) -> Arrays:
            return _Made(own[method], lambda name: self._array(method, name))

        return {method: of(method) for method in own}


class _Made(Mapping[str, np.ndarray]):
    """The keys of ``own`` with values that ``make`` gives."""

    def __init__(self, own: Arrays, make: Callable[[str], np.ndarray]) -> None:
        self._own, self._make = own, make

    def __getitem__(self, key: str) -> np.ndarray:
        if key not in self._own:
            raise KeyError(key)
        return self._make(key)

    def __contains__(self, key: object) -> bool:
        return key in self._own

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)
