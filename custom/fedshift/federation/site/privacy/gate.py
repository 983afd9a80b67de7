"""Enforce a site's policy on what the methods computed from its data, before it is sent.

What the noise protects against is explained in ``docs/privacy.md``. In short:

- Some arrays are means over n training images of a number that the task bounds. If a case has at most k images,
  replacing it by another case with as many images changes the mean by at most k/n of the range. All such arrays are
  scaled by their ranges and get noise together.
- Statistics of features have no bound, and a case also influences them through the weights. Their difference to what
  the site received is scaled down to norm ``clip``, so that two messages differ by at most 2·clip whatever the data.
- The change of the network's parameters is treated in the same way; or the site trains by DP-SGD
  (`fedshift.federation.site.privacy.dp_sgd`), and what leaves is covered by the noise of its steps.

Counts of samples and steps are considered public and get no noise. What leaves with noise is in the site's ledger
(`fedshift.federation.site.privacy.ledger`) before it leaves.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Hashable, Mapping
from dataclasses import astuple, dataclass, replace
from functools import cached_property, partial
from math import isfinite, sqrt
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from torch import nn

from fedshift.federation.site.privacy.accounting import Mechanism, composed_epsilon, epsilon_of, noise_multiplier
from fedshift.federation.site.privacy.dp_sgd import Plan, PrivateTraining, make_plan, refusal
from fedshift.federation.site.privacy.ledger import Ledger, Release, What, now
from fedshift.federation.site.privacy.noise import NoiseSource
from fedshift.methods.base import ArraySpec, Client
from fedshift.methods.method_set import MethodSet
from fedshift.methods.shared.norms import norm_keys
from fedshift.schema.errors import PolicyError
from fedshift.schema.messages import Broadcast, MethodArrays, Update, Weights
from fedshift.schema.policy import Noise, Policy
from fedshift.tasks.base import SiteData, Task

log = logging.getLogger("fedshift")

LEAST_DEVIATION = 0.05
"""Smallest noisy deviation as a part of the images' range, because other sites divide by it. The largest possible
deviation is 0.5, and the server's comparison of sites accepts a ratio of 10."""

Key = TypeVar("Key", bound=Hashable)

Group = Literal["images", "features"]
"""Arrays that get noise together: means over images of bounded numbers, or statistics of features."""


@dataclass(frozen=True)
class Population:
    """Counts of a site's training split. ``share``: the largest part of the images that statistics are of, of one
    subject. Scans of one subject are protected together, so what a policy calls a case is a subject here.
    """

    images: int
    subjects: int
    share: float
    fewest_of_a_class: int
    """The smallest number of images of a class that occurs; the number of subjects if labels are per pixel."""

    @classmethod
    def of(cls, data: SiteData, *, dense: bool) -> Population:
        """Count the training split of ``data``; ``dense`` is the task's (`fedshift.tasks.base.Task.dense`)."""
        counts = np.unique(data.subjects_of(data.window_cases("train")), return_counts=True)[1]
        share = float(counts.max() / counts.sum()) if len(counts) else 0.0
        fewest = len(counts)
        if not dense and data.n_train:
            labels = data.labels(data.members("train"))
            fewest = int(np.unique(labels.numpy(), return_counts=True)[1].min())
        return cls(data.n_train, len(counts), share, fewest)


class Budget:
    """The noise that one group of a job's messages needs, and the ε that they have used so far."""

    def __init__(self, noise: Noise, *, once: int, per_round: int, rounds: int) -> None:
        """``once`` messages in the statistics round and ``per_round`` in each of ``rounds`` others."""
        self.delta = noise.delta
        self._once, self._per_round, self._rounds = once, per_round, rounds
        self.multiplier = noise.multiplier or 0.0
        messages = once + per_round * rounds
        if noise.epsilon is not None and messages:
            self.multiplier = noise_multiplier(noise.epsilon, noise.delta, messages)
        self.total = self.spent(rounds)

    @property
    def planned(self) -> Mechanism:
        """All messages of the job."""
        return Mechanism(self.multiplier, steps=self._once + self._per_round * self._rounds)

    def spent(self, round_: int) -> float:
        """ε after a round."""
        messages = self._once + self._per_round * round_
        return epsilon_of(self.delta, sqrt(messages) / self.multiplier) if messages else 0.0


class Gate:
    """A site's policy in one job."""

    def __init__(
        self,
        policy: Policy,
        *,
        site: str,
        task: Task,
        methods: MethodSet,
        data: SiteData,
        folder: Path,
        ledger: Path,
        encrypts: bool,
    ) -> None:
        """Count the site's cases and work out the noise.

        Args:
            policy: the site's policy.
            site: its name.
            task: the job's task.
            methods: the job's methods.
            data: the site's data.
            folder: where the site keeps the job's state.
            ledger: the folder of the site's ledger.
            encrypts: whether what the site sends in this job is encrypted or masked.
        """
        self._policy, self._site, self._job, self._methods = policy, site, methods.job, methods
        self._task, self._encrypts = task, encrypts
        self._net, self._specs = methods.net, methods.up
        self._trainable = methods.trainable
        self._measured = sorted(
            name
            for name, buffer in methods.net.named_buffers()
            if buffer.is_floating_point() and name not in methods.withheld
        )
        self._population = Population.of(data, dense=task.dense)
        self._source, self._ledger = NoiseSource(folder, site), Ledger(ledger)
        self._rounds = methods.job.task.schedule.rounds
        self._statistics = self._weights = None
        if policy.statistics is not None:
            groups = {(spec.when, group_of(spec)) for named in self._specs.values() for spec in named.values()}
            once, each = (sum(when == w and group is not None for when, group in groups) for w in ("once", "round"))
            self._statistics = Budget(policy.statistics, once=once, per_round=each, rounds=self._rounds)
        if policy.weights is not None:
            sent = int(methods.sends_parameters)
            self._weights = Budget(policy.weights, once=0, per_round=sent, rounds=self._rounds)

    @property
    def trains(self) -> bool:
        """Whether the site's training images may be trained on."""
        return self._policy.train

    @property
    def tells_own_model(self) -> bool:
        """Whether scores of a model fine-tuned at the site may leave. With noise on the network they may not."""
        return not self._policy.covers_network

    def training(self, permit: str) -> PrivateTraining | None:
        """DP-SGD for the task of a permit, if the policy wants it and the network leaves; else None."""
        if self._steps is None:
            return None
        return PrivateTraining(
            self._steps, partial(self._source.draw, permit), chances=partial(self._source.chances, permit)
        )

    @cached_property
    def _steps(self) -> Plan | None:
        noise = self._policy.dp_sgd
        if noise is None or not self._methods.sends_parameters:
            return None
        population = self._population
        return make_plan(noise, self._job.task.schedule, images=population.images, subjects=population.subjects)

    def admit(self, broadcast: Broadcast) -> str:
        """Check a task whose answer depends on the training images, before it is done. Returns a permit for `release`.

        Raises:
            PolicyError: the policy forbids the job, what came is not finite, or noise forbids a second answer.
        """
        if not self._policy.train:
            raise PolicyError(
                f"site {self._site} only evaluates (privacy.train: false): hold it out ('fedshift job --held-out')"
            )
        self._require_encryption()
        noisy = self._statistics or self._weights or self._policy.dp_sgd
        if not self._population.images and noisy:
            raise PolicyError(
                f"site {self._site}: its policy puts noise on what leaves, and the site has no training cases: hold it "
                "out ('fedshift job --held-out'), and ask it for scores only"
            )
        for method, named in self._specs.items():
            for name, spec in named.items():
                self._check(method, name, spec)
        self._check_network()
        self._require_finite(broadcast)
        if not noisy:
            return ""
        if not 0 <= broadcast.round <= self._rounds:
            raise PolicyError(
                f"site {self._site}: round {broadcast.round} is beyond the job's {self._rounds}, for which its noise "
                "was worked out: start another job"
            )
        self._source.require_same(broadcast.round, self._settings)
        self._check_budget()
        return self._source.claim(broadcast)

    def _require_encryption(self) -> None:
        """Refuse to send in clear what the policy wants encrypted, whatever the job says of itself."""
        if self._policy.encryption is None or self._encrypts:
            return
        wanted = f"site {self._site}: its policy wants updates encrypted (privacy.encryption: required), and "
        if self._job.federation.encryption is None:
            raise PolicyError(
                f"{wanted}job {self._job.name} does not encrypt them: add '--set federation.encryption=ckks' or masks"
            )
        raise PolicyError(f"{wanted}here nothing encrypts what it sends in job {self._job.name}: it sends nothing")

    @property
    def _settings(self) -> str:
        """All that the scale of the noise depends on."""
        policy, statistics, weights, steps = self._policy, self._statistics, self._weights, self._steps
        return json.dumps(
            {
                "statistics": statistics and policy.statistics and [statistics.multiplier, policy.statistics.clip],
                "share": self._population.share,
                "weights": weights and policy.weights and [weights.multiplier, policy.weights.clip],
                "steps": steps and astuple(steps),
            }
        )

    def _check_network(self) -> None:
        """Refuse a network that the noise does not cover."""
        policy, sends = self._policy, self._methods.sends_parameters
        if policy.budget is not None and sends and not policy.covers_network:
            raise PolicyError(
                f"site {self._site}: its policy has a budget (privacy.budget), and the network would leave without "
                "noise, which no budget allows: set privacy.dp_sgd or privacy.weights at the site"
            )
        if policy.dp_sgd is not None and sends and self._job.task.schedule.minutes is not None:
            raise PolicyError(
                f"site {self._site}: its policy wants DP-SGD (privacy.dp_sgd), and a round that ends by the clock "
                "(schedule.minutes) makes a number of steps that tells of the cases drawn: make the job without, and "
                "with schedule.local_steps for shorter rounds"
            )
        why = self._no_dp_sgd if policy.dp_sgd is not None and sends else ""
        if why:
            raise PolicyError(f"site {self._site}: its policy wants DP-SGD (privacy.dp_sgd), and {why}")
        adding = next((method.name for method in self._methods if method.client().adds_up_changes), None)
        if policy.weights is not None and adding is not None:
            raise PolicyError(
                f"site {self._site}: its policy puts noise on the network ({self._noisy_key}), and with method "
                f"{adding} the site would add up its changes as they are without noise: choose another method"
            )
        own = next((method.name for method in self._methods if _scores_own_layers(method.client(), self._net)), None)
        if policy.covers_network and own is not None:
            raise PolicyError(
                f"site {self._site}: its policy puts noise on the network ({self._noisy_key}), and with method {own} "
                "the site would score a model with layers that it trains for itself without noise: choose another "
                "method"
            )
        if policy.covers_network and self._measured:
            raise PolicyError(
                f"site {self._site}: its policy puts noise on the network ({self._noisy_key}), and the running "
                f"statistics of {self._job.task.network.name} ({self._measured[0]} and others) would leave without: "
                "add method fedbn, or choose a network without batch norm"
            )

    @cached_property
    def _no_dp_sgd(self) -> str:
        """Why DP-SGD cannot protect the job."""
        return refusal(self._methods, self._task)

    def _check_budget(self) -> None:
        """Refuse a job that would go past what the policy allows all jobs together."""
        budget = self._policy.budget
        if budget is None:
            self._ledger.trusted()
            return
        planned = [one.planned for one in (self._statistics, self._weights) if one is not None and one.planned.steps]
        if self._steps is not None:
            planned.append(self._steps.mechanism(self._rounds))
        self._ledger.check(budget, planned, site=self._site, job=self._job.name, run=self._source.run())

    @property
    def _noisy_key(self) -> str:
        return "privacy.dp_sgd" if self._policy.dp_sgd is not None else "privacy.weights"

    def release(self, update: Update, broadcast: Broadcast, permit: str) -> Update:
        """Return the answer that may leave: with noise on arrays and weights as the policy demands.

        Args:
            update: what the methods made.
            broadcast: what it answers.
            permit: the result of `admit`.
        """
        notes: list[str] = []
        arrays, weights, metrics = update.arrays, update.weights, update.metrics
        for method, named in arrays.items():
            for name in named:
                if name not in self._specs.get(method, {}):
                    raise PolicyError(f"site {self._site}: method {method} does not say that it sends {name!r}")
        if permit:
            self._source.settle(update, self._settings)
            self._record(update, permit, notes)
        if self._statistics is not None:
            arrays = self._noisy_arrays(arrays, broadcast, permit, self._statistics, notes)
        if self._weights is not None and weights:
            weights = self._noisy_weights(weights, broadcast, permit, self._weights, notes)
        if self._steps is not None and weights:
            notes.append(f"network trained by DP-SGD, {self._steps.steps} steps with clip {self._steps.clip:g}")
        if self._policy.covers_network or self._policy.budget is not None:
            metrics = {name: value for name, value in metrics.items() if name != "train_loss"}
            notes.append("the training loss stays here")
        kinds = sorted({self._specs[method][name].kind for method, named in arrays.items() for name in named})
        notes.insert(0, f"leaves: {', '.join([*kinds, *(['network'] if weights else [])]) or 'counts'}")
        log.info("site %s, round %d: privacy policy: %s", self._site, update.round, "; ".join(notes))
        return replace(update, arrays=arrays, weights=weights, metrics=metrics)

    def _record(self, update: Update, permit: str, notes: list[str]) -> None:
        """Put into the ledger what is about to leave with noise."""
        policy, last = self._policy, ""
        groups: dict[Group, int] = {}
        for method, named in update.arrays.items():
            for name, array in named.items():
                group = group_of(self._specs[method][name])
                if group is not None:
                    groups[group] = groups.get(group, 0) + array.size
        for group, elements in sorted(groups.items() if self._statistics is not None else ()):
            assert self._statistics is not None and policy.statistics is not None
            mechanism, delta = Mechanism(self._statistics.multiplier), self._statistics.delta
            if group == "images":
                moved = self._population.share * sqrt(elements)
                last = self._enter("image statistics", moved, "intensity ranges", mechanism, delta, update, permit)
            else:
                assert policy.statistics.clip is not None
                moved = 2 * policy.statistics.clip
                last = self._enter("feature statistics", moved, "L2 norm", mechanism, delta, update, permit)
        if self._weights is not None and policy.weights is not None and self._trainable & set(update.weights):
            mechanism = Mechanism(self._weights.multiplier)
            last = self._enter(
                "network", 2 * policy.weights.clip, "L2 norm", mechanism, self._weights.delta, update, permit
            )
        if self._steps is not None and policy.dp_sgd is not None and update.weights:
            mechanism, delta = self._steps.mechanism(), policy.dp_sgd.delta
            last = self._enter("network", self._steps.clip, "gradient's L2 norm", mechanism, delta, update, permit)
        if last:
            notes.append(f"ledger up to {last}")

    def _enter(
        self,
        what: What,
        sensitivity: float,
        unit: str,
        mechanism: Mechanism,
        delta: float,
        update: Update,
        permit: str,
    ) -> str:
        """One line of the ledger. Returns its hash."""
        release = Release(
            date=now(),
            job=self._job.name,
            run=self._source.run() or "",
            round=update.round,
            dataset=self._job.task.dataset,
            what=what,
            mechanism="gaussian" if mechanism.sampling_rate == 1 else "sampled gaussian",
            sensitivity=sensitivity,
            unit=unit,
            deviation=mechanism.multiplier * sensitivity,
            multiplier=mechanism.multiplier,
            sampling_rate=mechanism.sampling_rate,
            steps=mechanism.steps,
            epsilon=composed_epsilon([mechanism], delta),
            delta=delta,
            question=permit,
        )
        return self._ledger.record(release, budget=self._policy.budget, site=self._site)

    def _require_finite(self, broadcast: Broadcast) -> None:
        """Refuse NaN and infinity in what was received: changes are measured against it, and could not be clipped."""
        for part, arrays in {"weights": broadcast.weights, **broadcast.arrays}.items():
            for name, array in arrays.items():
                if not np.isfinite(array).all():
                    raise PolicyError(
                        f"site {self._site}, round {broadcast.round}: the server sent {part}/{name} with numbers that "
                        "are not finite, which no honest server does: ask who runs it"
                    )

    def _check(self, method: str, name: str, spec: ArraySpec) -> None:
        policy, population = self._policy, self._population
        who = f"site {self._site}: method {method} sends {name!r}, of kind {spec.kind},"
        if spec.kind not in policy.allow:
            raise PolicyError(
                f"{who} which the site's policy does not allow (privacy.allow: {', '.join(policy.allow) or 'none'}): "
                "choose another method, or ask the site"
            )
        by_class = spec.kind == "prototypes"
        if (population.fewest_of_a_class if by_class else population.subjects) < policy.min_cases:
            of_a_class = "of a class " if by_class else ""
            raise PolicyError(
                f"{who} and has fewer training cases {of_a_class}than its policy wants for that "
                f"(privacy.min_cases: {policy.min_cases}, a subject's scans as one): choose another method, or leave "
                "the site out"
            )
        group = group_of(spec)
        needs_noise = policy.covers_network or policy.budget is not None
        if needs_noise and (spec.kind != "statistics" or policy.statistics is None):
            rule = (
                f"while it does on the network ({self._noisy_key})"
                if policy.covers_network
                else "and a budget (privacy.budget) allows nothing without"
            )
            raise PolicyError(
                f"{who} on which its policy puts no noise, {rule}: choose another method"
                + ("" if spec.kind != "statistics" else ", or set privacy.statistics at the site")
            )
        if policy.statistics is not None and spec.kind == "statistics":
            if group is None:
                raise PolicyError(
                    f"{who} and privacy.statistics cannot put noise on it, since the method does not say what one case "
                    "can do to it: choose another method or option"
                )
            if group == "features" and policy.statistics.clip is None:
                raise PolicyError(f"{who} which nothing bounds: set privacy.statistics.clip at the site")

    def _noisy_arrays(
        self, arrays: MethodArrays, broadcast: Broadcast, permit: str, budget: Budget, notes: list[str]
    ) -> MethodArrays:
        groups: dict[Group, dict[tuple[str, str], np.ndarray]] = {}
        for method, named in arrays.items():
            for name, array in named.items():
                group = group_of(self._specs[method][name])
                if group is not None:
                    groups.setdefault(group, {})[method, name] = array
        noisy = {method: dict(named) for method, named in arrays.items()}
        for group, members in groups.items():
            add = self._on_images if group == "images" else self._on_features
            for (method, name), array in add(members, broadcast, permit, budget, notes).items():
                spec = self._specs[method][name]
                noisy[method][name] = np.asarray(np.clip(array, spec.low, spec.high), spec.dtype)
        if groups:
            notes.append(self._account("statistics", budget, broadcast.round))
        return noisy

    def _on_images(
        self,
        members: Mapping[tuple[str, str], np.ndarray],
        broadcast: Broadcast,
        permit: str,
        budget: Budget,
        notes: list[str],
    ) -> dict[tuple[str, str], np.ndarray]:
        """Add noise to means over images of numbers that lie in a range."""
        low, high = self._task.intensities
        elements = sum(array.size for array in members.values())
        deviation = budget.multiplier * self._population.share * sqrt(elements)  # in ranges
        result = {}
        for (method, name), array in members.items():
            if self._specs[method][name].mean_of == "intensities":
                scale, least, most = deviation * (high - low), low, high
            else:  # no deviation is above half the range
                scale, least, most = deviation * (high - low) / 2, LEAST_DEVIATION * (high - low), (high - low) / 2
            value = array + scale * self._source.draw(permit, f"{method}/{name}", array.shape)
            result[method, name] = np.clip(value, least, most)
            notes.append(f"{method}/{name} with noise of deviation {scale:.3g}")
        return result

    def _on_features(
        self,
        members: Mapping[tuple[str, str], np.ndarray],
        broadcast: Broadcast,
        permit: str,
        budget: Budget,
        notes: list[str],
    ) -> dict[tuple[str, str], np.ndarray]:
        """Add noise to statistics without a range: to their clipped difference to the received ones."""
        assert self._policy.statistics is not None and self._policy.statistics.clip is not None
        clip = self._policy.statistics.clip
        received = {}
        for (method, name), array in members.items():
            known = broadcast.arrays.get(method, {}).get(name)
            fits = known is not None and known.shape == array.shape
            received[method, name] = known if known is not None and fits else np.zeros_like(array)
        changes = self._clipped({key: array.astype(np.float64) - received[key] for key, array in members.items()}, clip)
        deviation = 2 * clip * budget.multiplier
        notes.append(
            f"{len(members)} statistics of features with their change clipped to {clip:g} and noise of deviation "
            f"{deviation:.3g}"
        )
        return {
            key: received[key] + change + deviation * self._source.draw(permit, "/".join(key), change.shape)
            for key, change in changes.items()
        }

    def _noisy_weights(
        self, weights: Weights, broadcast: Broadcast, permit: str, budget: Budget, notes: list[str]
    ) -> Weights:
        assert self._policy.weights is not None
        clip = self._policy.weights.clip
        received = {key: broadcast.weights[key].astype(np.float64) for key in sorted(self._trainable & set(weights))}
        if not received:
            return weights
        changes = self._clipped({key: weights[key].astype(np.float64) - value for key, value in received.items()}, clip)
        deviation = 2 * clip * budget.multiplier
        noisy = dict(weights)
        for key, change in changes.items():
            value = received[key] + change + deviation * self._source.draw(permit, f"weights of {key}", change.shape)
            noisy[key] = np.asarray(value, weights[key].dtype)
        notes.append(f"network with its change clipped to {clip:g} and noise of deviation {deviation:.3g}")
        notes.append(self._account("network", budget, broadcast.round))
        return noisy

    def _clipped(self, changes: Mapping[Key, np.ndarray], norm: float) -> dict[Key, np.ndarray]:
        """Scale all arrays down by one factor if their joint L2 norm is above ``norm``."""
        length = sqrt(sum(float(np.square(change).sum()) for change in changes.values()))
        # It depends on the data, so it is only for the site itself and not in the ordinary log.
        log.debug("site %s: a change of norm %.3g meets the bound %.3g", self._site, length, norm)
        if not isfinite(length):
            raise PolicyError(
                f"site {self._site}: what noise is to cover has no finite distance to what the server sent, so it "
                "cannot be clipped and does not leave: ask who runs the server"
            )
        factor = 1.0 if length <= norm else norm / length
        return {key: factor * change for key, change in changes.items()}

    def _account(self, what: str, budget: Budget, round_: int) -> str:
        return (
            f"epsilon of the {what} so far {budget.spent(round_):.3g} of {budget.total:.3g} at delta {budget.delta:g}"
        )


def _scores_own_layers(half: Client[Any], net: nn.Module) -> bool:
    """Whether a site scores a model with layers of its own that are not norms, which FedBN keeps."""
    kept = half.keeps(net)
    return half.scores_own_model(net) and (not kept or not kept <= norm_keys(net, "all"))


def group_of(spec: ArraySpec) -> Group | None:
    """The group in which an array gets noise; None if it gets none."""
    if spec.mean_of is None:
        return None
    return "features" if spec.mean_of == "features" else "images"
