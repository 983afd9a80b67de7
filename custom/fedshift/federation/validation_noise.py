"""Mean scores with Gaussian noise: all that a site with ``privacy.statistics`` tells in a validation.

A score lies between 0 and 1. Another subject in the place of one, with at most k of n cases, moves a mean by at most
k/n, and the means of m models together by √m·k/n in L2 norm. The noise comes from random bytes that are thrown away:
asked again, the site answers with other noise, and its ledger has a further release.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path

import numpy as np

from fedshift.federation.site.privacy.accounting import Budget, composed_epsilon
from fedshift.federation.site.privacy.ledger import Ledger, Release, now
from fedshift.federation.site.privacy.noise import LENGTH, gaussian
from fedshift.schema.errors import PolicyError
from fedshift.schema.evaluation import Distribution
from fedshift.schema.policy import Policy, StatisticsNoise
from fedshift.schema.validation import ModelScores, PairedDifference, SiteValidation

BOUNDED = ("dice", "accuracy")
"""Scores between 0 and 1; of each task the first is told with noise."""
ONLY_MEANS = "all but mean scores"
"""What is withheld."""


class NoisyMeans:
    """The noise of one answer. ``site`` and ``job`` are names, for the ledger and errors."""

    def __init__(self, policy: Policy, noise: StatisticsNoise, *, site: str, job: str) -> None:
        self._policy, self._noise, self._site, self._job = policy, noise, site, job
        self._budget = Budget(noise, once=1, per_round=0, rounds=1)

    def check(self, ledger: Path) -> None:
        """Before anything is computed, whether the policy's budget allows another release; PolicyError if not."""
        if self._policy.budget is not None:
            planned = [self._budget.planned]
            Ledger(ledger).check(self._policy.budget, planned, site=self._site, job=self._job, run=None)

    def answer(
        self,
        plain: SiteValidation,
        values: Mapping[str, Mapping[str, np.ndarray]],
        subjects: Sequence[str],
        ledger: Path | None,
        *,
        first: str,
    ) -> SiteValidation:
        """The answer, recorded in the ledger.

        Args:
            plain: the site's answer, without scores.
            values: model -> score -> value of each case (n,), NaN for one without it.
            subjects: whose each case is.
            ledger: its folder; None if nothing leaves this machine.
            first: the model that the others are compared with.

        Raises:
            PolicyError: too few cases have the score, or the budget is spent.
        """
        name = next(score for score in BOUNDED if all(score in scores for scores in values.values()))
        has_score = ~np.isnan(next(iter(values.values()))[name])
        whose = Counter(subject for subject, is_scored in zip(subjects, has_score, strict=True) if is_scored)
        if len(whose) < self._policy.least_told:
            raise PolicyError(
                "too-few-cases",
                f"site {self._site}: fewer of its cases have {name} than its policy wants (privacy.survey_cases, "
                f"privacy.min_cases: {self._policy.least_told}): leave the site out",
            )
        n = int(has_score.sum())
        sensitivity = sqrt(len(values)) * max(whose.values()) / n
        deviation = self._budget.multiplier * sensitivity
        if ledger is not None:
            self._record(plain.dataset, sensitivity, deviation, ledger)
        drawn = gaussian(secrets.token_bytes(LENGTH), (len(values),))
        means = {
            model: float(np.clip(scores[name][has_score].mean() + deviation * noise, 0, 1))
            for (model, scores), noise in zip(values.items(), drawn, strict=True)
        }
        models = {
            model: ModelScores(
                scores={name: Distribution(n=n, mean=mean)},
                against_first={}
                if model == first or first not in means
                else {name: PairedDifference(difference=Distribution(n=n, mean=mean - means[first]))},
            )
            for model, mean in means.items()
        }
        withheld = {ONLY_MEANS: "its policy puts noise on statistics (privacy.statistics)"}
        return plain.model_copy(update={"models": models, "withheld": withheld, "noise": deviation})

    def _record(self, dataset: str, sensitivity: float, deviation: float, folder: Path) -> None:
        """Put into the ledger what is about to leave."""
        asked = secrets.token_hex(LENGTH)
        release = Release(
            date=now(),
            job=self._job,
            run=asked[:16],
            round=0,
            dataset=dataset,
            what="mean scores",
            mechanism="gaussian",
            sensitivity=sensitivity,
            unit="L2 norm of mean scores",
            deviation=deviation,
            multiplier=self._budget.multiplier,
            epsilon=composed_epsilon([self._budget.planned], self._noise.delta),
            delta=self._noise.delta,
            question=asked,
        )
        Ledger(folder).record(release, budget=self._policy.budget, site=self._site)
