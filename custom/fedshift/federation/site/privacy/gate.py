"""Enforce a site's policy on what the methods computed from its data, before it is sent.

`Admission` refuses what may not be done, `AddedNoise` puts noise on what leaves, and all that leaves with noise is in
the site's ledger (`fedshift.federation.site.privacy.ledger`) before it leaves.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import astuple, replace
from functools import cached_property, partial
from math import sqrt
from pathlib import Path

from fedshift.federation.site.privacy.accounting import Mechanism, composed_epsilon
from fedshift.federation.site.privacy.added_noise import AddedNoise, Group, budgets, group_of
from fedshift.federation.site.privacy.admission import Admission, Population
from fedshift.federation.site.privacy.dp_sgd import Plan, PrivateTraining, make_plan
from fedshift.federation.site.privacy.ledger import Ledger, Quantity, Release, now
from fedshift.federation.site.privacy.noise import NoiseSource
from fedshift.methods.method_set import MethodSet
from fedshift.schema.errors import PolicyError
from fedshift.schema.messages import Broadcast, Update
from fedshift.schema.policy import Policy
from fedshift.tasks.base import SiteData, Task

log = logging.getLogger("fedshift")


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

        ``folder`` is where the site keeps the job's state, ``ledger`` that of its ledger; ``encrypts``: as `Admission`.
        """
        self._policy, self._site, self._job, self._methods, self._task = policy, site, methods.job, methods, task
        self._population = Population.counted(data, dense=task.dense)
        self._admission = Admission(policy, site, task, methods, self._population, encrypts)
        self._source, self._ledger = NoiseSource(folder, site), Ledger(ledger)
        self._statistics, self._weights = budgets(policy, methods)

    @property
    def trains(self) -> bool:
        """Whether the site's training images may be trained on."""
        return self._policy.train

    @property
    def tells_own_model(self) -> bool:
        """Whether scores of a model fine-tuned at the site may leave. With noise on the network they may not."""
        return not self._policy.covers_network

    @property
    def trains_privately(self) -> bool:
        """Whether training is by DP-SGD: the policy wants it, and the network leaves."""
        return self._policy.dp_sgd is not None and self._methods.sends_parameters

    def training(self, permit: str) -> PrivateTraining | None:
        """DP-SGD for the task of a permit, if that is how the site trains; else None."""
        if self._steps is None:
            return None
        return PrivateTraining(self._steps, partial(self._source.draw, permit), partial(self._source.chances, permit))

    @cached_property
    def _steps(self) -> Plan | None:
        noise = self._policy.dp_sgd
        if noise is None or not self.trains_privately:
            return None
        population = self._population
        return make_plan(noise, self._job.task.schedule, images=population.images, subjects=population.subjects)

    def admit(self, broadcast: Broadcast) -> str:
        """Check a task whose answer depends on the training images, before it is done. Returns a permit for `release`.

        Raises:
            PolicyError: the policy forbids the job, what came is not finite, or noise forbids a second answer.
        """
        self._admission.require(broadcast)
        if not self._admission.adds_noise:
            return ""
        self._source.require_same(broadcast.round, self._settings)
        self._require_budget()
        return self._source.claim(broadcast)

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

    def _require_budget(self) -> None:
        """Refuse a job that would go past what the policy allows all jobs together."""
        allowed = self._policy.budget
        if allowed is None:
            self._ledger.trusted()
            return
        budgets = [budget for budget in (self._statistics, self._weights) if budget is not None]
        planned = [budget.planned for budget in budgets if budget.planned.steps]
        if self._steps is not None:
            planned.append(self._steps.mechanism(self._job.task.schedule.rounds))
        self._ledger.check(allowed, planned, site=self._site, job=self._job.name, run=self._source.run())

    def release(self, update: Update, broadcast: Broadcast, permit: str) -> Update:
        """The answer that may leave: with noise on arrays and weights as the policy demands; ``permit``: `admit`'s."""
        policy, specs, notes = self._policy, self._methods.up, list[str]()
        arrays, weights, metrics = update.arrays, update.weights, update.metrics
        undeclared = [(m, name) for m, named in arrays.items() for name in named if name not in specs.get(m, {})]
        if undeclared:
            method, name = undeclared[0]
            raise PolicyError(
                "undeclared-array", f"site {self._site}: method {method} does not say that it sends {name!r}"
            )
        if permit:
            self._source.settle(update, self._settings)
            last = self._record(update, permit)
            notes += [f"ledger up to {last}"] if last else []
        draw, share = partial(self._source.draw, permit), self._population.share
        noise = AddedNoise(policy, self._site, self._task, self._methods, share, broadcast, draw, notes)
        if self._statistics is not None:
            arrays = noise.on_arrays(arrays, self._statistics)
        if self._weights is not None and weights:
            weights = noise.on_weights(weights, self._weights)
        if self._steps is not None and weights:
            notes.append(f"network trained by DP-SGD, {self._steps.steps} steps with clip {self._steps.clip:g}")
        if policy.covers_network or policy.budget is not None:
            metrics = {name: value for name, value in metrics.items() if name != "train_loss"}
            notes.append("the training loss stays here")
        kinds = sorted({specs[method][name].kind for method, named in arrays.items() for name in named})
        notes.insert(0, f"leaves: {', '.join([*kinds, *(['network'] if weights else [])]) or 'counts'}")
        log.info("site %s, round %d: privacy policy: %s", self._site, update.round, "; ".join(notes))
        return replace(update, arrays=arrays, weights=weights, metrics=metrics)

    def _record(self, update: Update, permit: str) -> str:
        """Put into the ledger what is about to leave with noise. Returns the hash of its last line, if there is any."""
        last = ""
        for what, sensitivity, unit, mechanism, delta in self._leaving(update):
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
            last = self._ledger.record(release, budget=self._policy.budget, site=self._site)
        return last

    def _leaving(self, update: Update) -> Iterator[tuple[Quantity, float, str, Mechanism, float]]:
        """What of an answer gets noise: part, sensitivity, its unit, the noise and its delta."""
        policy, statistics, weights = self._policy, self._statistics, self._weights
        elements: dict[Group, int] = {}
        for method, named in update.arrays.items():
            for name, array in named.items():
                group = group_of(self._methods.up[method][name])
                if group is not None:
                    elements[group] = elements.get(group, 0) + array.size
        if statistics is not None and policy.statistics is not None:
            noise, delta = Mechanism(statistics.multiplier), statistics.delta
            if "features" in elements:
                assert policy.statistics.clip is not None
                yield "feature statistics", 2 * policy.statistics.clip, "L2 norm", noise, delta
            if "images" in elements:
                moved = self._population.share * sqrt(elements["images"])
                yield "image statistics", moved, "intensity ranges", noise, delta
        if weights is not None and policy.weights is not None and self._methods.trainable & set(update.weights):
            yield "network", 2 * policy.weights.clip, "L2 norm", Mechanism(weights.multiplier), weights.delta
        if self._steps is not None and policy.dp_sgd is not None and update.weights:
            steps = self._steps
            yield "network", steps.clip, "gradient's L2 norm", steps.mechanism(), policy.dp_sgd.delta
