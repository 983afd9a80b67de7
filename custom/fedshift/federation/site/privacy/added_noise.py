"""Noise on what the methods computed, as a site's policy demands it.

What the noise protects against is explained in ``docs/security.md``. In short:

- Some arrays are means over n training images of a number that the task bounds. If a case has at most k images,
  replacing it by another case with as many images changes the mean by at most k/n of the range. All such arrays are
  scaled by their ranges and get noise together.
- Statistics of features have no bound, and a case also influences them through the weights. Their difference to what
  the site received is scaled down to norm ``clip``, so that two messages differ by at most 2·clip whatever the data.
- The change of the network's parameters is treated in the same way; or the site trains by DP-SGD
  (`fedshift.federation.site.privacy.dp_sgd`), and what leaves is covered by the noise of its steps.

Counts of samples and steps are considered public and get no noise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Literal, TypeVar

import numpy as np

from fedshift.federation.site.privacy.accounting import Budget
from fedshift.methods.base import ArraySpec
from fedshift.methods.method_set import MethodSet
from fedshift.schema.errors import PolicyError
from fedshift.schema.messages import Broadcast, MethodArrays, Weights
from fedshift.schema.policy import Policy
from fedshift.tasks.base import Task

log = logging.getLogger("fedshift")

LEAST_DEVIATION = 0.05
"""Smallest noisy deviation as a part of the images' range, because other sites divide by it. The largest possible
deviation is 0.5, and the server's comparison of sites accepts a ratio of 10."""

Key = TypeVar("Key", bound=Hashable)
Named = Mapping[tuple[str, str], np.ndarray]
"""Arrays by method and name."""
Group = Literal["images", "features"]
"""Arrays that get noise together: means over images of bounded numbers, or statistics of features."""
Draw = Callable[[str, tuple[int, ...]], np.ndarray]
"""Standard normal noise for an array of the answer, by its name and shape."""


def group_of(spec: ArraySpec) -> Group | None:
    """The group in which an array gets noise; None if it gets none."""
    if spec.mean_of is None:
        return None
    return "features" if spec.mean_of == "features" else "images"


def budgets(policy: Policy, methods: MethodSet) -> tuple[Budget | None, Budget | None]:
    """The noise on a job's statistics, and on its network."""
    rounds, statistics, weights = methods.job.task.schedule.rounds, None, None
    if policy.statistics is not None:
        groups = {(spec.when, group_of(spec)) for named in methods.up.values() for spec in named.values()}
        once, each = (sum(when == w and group is not None for when, group in groups) for w in ("once", "round"))
        statistics = Budget(policy.statistics, once=once, per_round=each, rounds=rounds)
    if policy.weights is not None:
        weights = Budget(policy.weights, once=0, per_round=int(methods.sends_parameters), rounds=rounds)
    return statistics, weights


@dataclass(frozen=True)
class AddedNoise:
    """Puts noise on one answer of a site to ``broadcast``, and adds a line about each part to ``notes``, for its log.

    ``share``: the largest part of what statistics are of, of one subject; ``draw``: noise for this answer.
    """

    policy: Policy
    site: str
    task: Task
    methods: MethodSet
    share: float
    broadcast: Broadcast
    draw: Draw
    notes: list[str]

    def on_arrays(self, arrays: MethodArrays, budget: Budget) -> MethodArrays:
        """The methods' arrays, those of a group with noise."""
        groups: dict[Group, dict[tuple[str, str], np.ndarray]] = {}
        for method, named in arrays.items():
            for name, array in named.items():
                group = group_of(self.methods.up[method][name])
                if group is not None:
                    groups.setdefault(group, {})[method, name] = array
        noisy = {method: dict(named) for method, named in arrays.items()}
        for group, members in groups.items():
            add = self._on_images if group == "images" else self._on_features
            for (method, name), array in add(members, budget).items():
                spec = self.methods.up[method][name]
                noisy[method][name] = np.asarray(np.clip(array, spec.low, spec.high), spec.dtype)
        if groups:
            self._note_epsilon("statistics", budget)
        return noisy

    def _on_images(self, members: Named, budget: Budget) -> Named:
        """Noise on means over images of numbers that lie in a range."""
        elements = sum(array.size for array in members.values())
        deviation = budget.multiplier * self.share * sqrt(elements)  # in ranges
        noisy = {}
        for (method, name), array in members.items():
            spec, (low, high) = self.methods.up[method][name], self.task.intensities
            if spec.mean_of == "intensities":
                low, high = max(low, spec.low), min(high, spec.high)
                scale, least, most = deviation * (high - low), low, high
            else:  # no deviation is above half the range
                scale, least, most = deviation * (high - low) / 2, LEAST_DEVIATION * (high - low), (high - low) / 2
            noisy[method, name] = np.clip(array + scale * self.draw(f"{method}/{name}", array.shape), least, most)
            self.notes.append(f"{method}/{name} with noise of deviation {scale:.3g}")
        return noisy

    def _on_features(self, members: Named, budget: Budget) -> Named:
        """Noise on statistics without a range: on their clipped difference to the received ones."""
        assert self.policy.statistics is not None and self.policy.statistics.clip is not None
        clip = self.policy.statistics.clip
        received = {}
        for (method, name), array in members.items():
            reference = self.broadcast.arrays.get(method, {}).get(name, np.zeros_like(array))
            received[method, name] = reference if reference.shape == array.shape else np.zeros_like(array)
        changes = self._clipped({key: array.astype(np.float64) - received[key] for key, array in members.items()}, clip)
        deviation = 2 * clip * budget.multiplier
        self.notes.append(
            f"{len(members)} statistics of features with their change clipped to {clip:g} and noise of deviation "
            f"{deviation:.3g}"
        )
        return {
            key: received[key] + change + deviation * self.draw("/".join(key), change.shape)
            for key, change in changes.items()
        }

    def on_weights(self, weights: Weights, budget: Budget) -> Weights:
        """The network with noise on its clipped change."""
        assert self.policy.weights is not None
        clip, keys = self.policy.weights.clip, sorted(self.methods.trainable & set(weights))
        received = {key: self.broadcast.weights[key].astype(np.float64) for key in keys}
        if not received:
            return weights
        changes = self._clipped({key: weights[key].astype(np.float64) - value for key, value in received.items()}, clip)
        deviation = 2 * clip * budget.multiplier
        noisy = dict(weights)
        for key, change in changes.items():
            value = received[key] + change + deviation * self.draw(f"weights of {key}", change.shape)
            noisy[key] = np.asarray(value, weights[key].dtype)
        self.notes.append(f"network with its change clipped to {clip:g} and noise of deviation {deviation:.3g}")
        self._note_epsilon("network", budget)
        return noisy

    def _clipped(self, changes: Mapping[Key, np.ndarray], norm: float) -> dict[Key, np.ndarray]:
        """Scale all arrays down by one factor if their joint L2 norm is above ``norm``."""
        length = sqrt(sum(float(np.square(change).sum()) for change in changes.values()))
        # It depends on the data, so it is only for the site itself and not in the ordinary log.
        log.debug("site %s: a change of norm %.3g meets the bound %.3g", self.site, length, norm)
        if not isfinite(length):
            raise PolicyError(
                "not-finite",
                f"site {self.site}: what noise is to cover has no finite distance to what the server sent, so it "
                "cannot be clipped and does not leave: ask who runs the server",
            )
        factor = 1.0 if length <= norm else norm / length
        return {key: factor * change for key, change in changes.items()}

    def _note_epsilon(self, what: str, budget: Budget) -> None:
        spent, total = budget.spent(self.broadcast.round), budget.total
        self.notes.append(f"epsilon of the {what} so far {spent:.3g} of {total:.3g} at delta {budget.delta:g}")
