"""Robust aggregation limits what a few sites can do to the model, whichever method combines the updates.

Before the server halves see a round's updates, each update's arrays are replaced. With K updates w_k of a model w, and
m the median over sites of ‖w_k − w‖ (norm over all trainable parameters)::

    norm_clipping   w_k ← w + min(1, clip · m / ‖w_k − w‖) (w_k − w),   n_k ← min(n_k, ⌈clip · median n⌉)
    trimmed_mean    w_k ← element-wise mean over sites without the ``trim`` smallest and ``trim`` largest values
    median          trimmed_mean with the largest possible ``trim``: one value remains, or the mean of two

FedAvg then gives exactly the median or the trimmed mean whatever its weights, sample counts included, so a site gains
nothing with a false sample count n_k. With clipping sites keep their own weights, but no site counts for more samples
than ``clip`` times the median, whether its count is true or not. Methods that use the sites' changes (FedAvgM) use the
changes of the replaced arrays. Those whose sites add up their changes (SCAFFOLD, FedDyn) take clipping alone, which
leaves a part of each that the server can tell the site (`fedshift.methods.shared.tally`).

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018 (median, trimmed
mean); Sun et al., "Can You Really Backdoor Federated Learning?", 2019 (norm clipping). The former assume that honest
sites differ only by chance. Under feature shift they differ systematically, and the median drops what is particular to
one site: it costs accuracy even without an attack.

Floating buffers are treated the same way: a median of variances is not negative, and clipping, with the norm of the
buffers, is a convex average of two values. Integer counters are not replaced; `update_check` bounds them. Of the
methods' arrays, those that the server only averages (`ArraySpec.averaged`: FRAug's generator, HarmoFL's spectrum) are
treated like weights. ``norm_clipping`` replaces only those that are changes (SCAFFOLD's control variates), by the norm
that `update_check` measured. All others (statistics of FedRDN and FedFA, prototypes, FedMix's averages, losses of AFL
and VM) are not replaced; `update_check` and `outliers` limit them.

One tensor of all sites is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedshift.federation.refusals import ROBUST, rule_name
from fedshift.federation.server.clipping import clip, limits_of_round
from fedshift.federation.server.spool import Arrays, ReplacedUpdate, SpooledUpdate
from fedshift.methods.base import ArraySpec, SiteUpdate
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import RobustSpec
from fedshift.schema.messages import Weights

ArraysOf = Callable[[SiteUpdate], Arrays]
"""The weights of an update, or the arrays of one method."""


def present(
    updates: Sequence[SpooledUpdate],
    spec: RobustSpec | None,
    *,
    weights: Weights,
    trainable: frozenset[str],
    specs: Mapping[str, Mapping[str, ArraySpec]],
) -> Sequence[SiteUpdate]:
    """Return the updates as the server halves see them.

    Args:
        updates: a round's accepted updates, in site order.
        spec: the rule; None: updates are not changed.
        weights: what the sites received.
        trainable: keys of parameters, as against buffers.
        specs: arrays by method: `fedshift.methods.method_set.MethodSet.up`.

    Raises:
        ConfigError: fewer updates than the rule leaves out.
    """
    if spec is None or not updates:
        return updates
    averaged = {(m, name): s.averaged for m, named in specs.items() for name, s in named.items() if s.averaged}
    if spec.rule == "norm_clipping":
        return clip(updates, limits_of_round(updates, spec.clip), weights=weights, trainable=trainable, specs=specs)
    trim = (len(updates) - 1) // 2 if spec.rule == "median" else spec.trim
    if 2 * trim >= len(updates):
        raise ConfigError(
            "too-few-answers", f"{ROBUST}: rule {rule_name(spec)} leaves nothing of {len(updates)} updates"
        )
    return _trimmed(updates, trim, weights, averaged)


def trimmed_mean(values: np.ndarray, trim: int) -> np.ndarray:
    """Mean over the first axis without the ``trim`` smallest and largest: (K, …) -> (…) of the same type."""
    kept = np.sort(values, axis=0)[trim : len(values) - trim]
    return np.asarray(kept.mean(axis=0, dtype=np.float64), values.dtype)


# --- the rules ------------------------------------------------------------------------------------------


def _trimmed(
    updates: Sequence[SpooledUpdate], trim: int, weights: Weights, averaged: Mapping[tuple[str, str], str]
) -> list[SiteUpdate]:
    # Server halves read the same tensor of one site after another: keep it until another tensor is read.
    last: dict[tuple[str, str], np.ndarray] = {}

    def middle(place: tuple[str, str], arrays_of: ArraysOf) -> np.ndarray:
        if place not in last:
            last.clear()
            last[place] = trimmed_mean(np.stack([arrays_of(update)[place[1]] for update in updates]), trim)
        return last[place]

    def presented(sent: SpooledUpdate) -> SiteUpdate:
        def weight(key: str) -> np.ndarray:
            if np.issubdtype(weights[key].dtype, np.integer):
                return sent.weights[key]
            return middle(("weights", key), lambda update: update.weights)

        def array(method: str, name: str) -> np.ndarray:
            if (method, name) not in averaged:
                return sent.arrays[method][name]
            return middle((f"arrays/{method}", name), lambda update: update.arrays[method])

        return ReplacedUpdate(sent, weight, array)

    return [presented(update) for update in updates]
