"""A site's answer to a survey, under its policy."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedshift.data.fingerprint import counts_only, fingerprint, surveyed_cases
from fedshift.data.splits import most_of_a_subject, subject_of
from fedshift.federation.site.privacy.noise import LENGTH, gaussian
from fedshift.schema.errors import PolicyError
from fedshift.schema.fingerprint import Fingerprint
from fedshift.schema.manifest import Case, read_manifest
from fedshift.schema.policy import Policy, StatisticsNoise

if TYPE_CHECKING:
    from fedshift.federation.site.privacy.accounting import Mechanism

log = logging.getLogger("fedshift")

SURVEY = "survey"
"""What the ledger has as the job."""


def answer(
    folder: Path,
    site: str,
    policy: Policy | None = None,
    *,
    ledger: Path | None = None,
    progress: Callable[[str], None] = lambda case: None,
) -> Fingerprint:
    """What the site tells; counts alone, with the reason, if its policy wants more cases or other kinds.

    Args:
        folder: the site's prepared folder.
        site: its name in the federation.
        policy: its policy; None for the default one.
        ledger: folder of its account of what left with noise; None if nothing leaves this machine.
        progress: called before each case is read.

    Raises:
        PolicyError: the policy forbids that the server reads anything of the site's alone, or its budget is spent.
        DataError: the folder cannot be surveyed, or the account is broken.
    """
    policy = policy or Policy()
    if policy.encryption == "required":
        raise PolicyError(
            "policy-encryption",
            f"site {site}: its policy wants answers that the server cannot read (privacy.encryption: required), and "
            "those of a survey are not encrypted: plan without this site, or ask it",
        )
    least = max(policy.min_cases, policy.survey_cases)
    cases = surveyed_cases(read_manifest(folder))
    why = ""
    if "statistics" not in policy.allow:
        why = "its policy does not allow statistics (privacy.allow)"
    elif len({subject_of(case) for case in cases}) < least:
        why = (
            "it has fewer cases than its policy wants for that (privacy.survey_cases, privacy.min_cases: "
            f"{least}, a subject's scans as one)"
        )
    elif policy.covers_network and policy.statistics is None:
        why = "its policy puts noise on the network and none on statistics (privacy.weights, privacy.dp_sgd)"
    elif policy.budget is not None and policy.statistics is None:
        why = "its policy has a budget and puts no noise on statistics (privacy.budget)"
    if why:
        log.info("site %s: the survey gets counts only: %s", site, why)
        return _named(counts_only(folder, why=why), site)
    if policy.budget is not None and policy.statistics is not None and ledger is not None:
        from fedshift.federation.site.privacy.ledger import Ledger  # imports scipy, needed with noise only

        Ledger(ledger).check(policy.budget, [_mechanism(policy.statistics)], site=site, job=SURVEY, run=None)
    found = _named(
        fingerprint(folder, least=least_cases(policy, cases), scanners=policy.scanners, progress=progress), site
    )
    if policy.statistics is None:
        return found
    noisy = with_noise(found, policy.statistics, scans=most_of_a_subject(cases))
    if ledger is not None:
        _record(noisy, policy, policy.statistics, ledger)
    return noisy


def least_cases(policy: Policy, cases: Sequence[Case]) -> int:
    """The fewest of these cases that are of as many subjects as a survey needs, whichever of them they are."""
    return max(policy.min_cases, policy.survey_cases) * max(most_of_a_subject(cases), 1)


def _mechanism(noise: StatisticsNoise) -> Mechanism:
    from fedshift.federation.site.privacy.gate import Budget  # imports torch and scipy, needed with noise only

    return Budget(noise, once=1, per_round=0, rounds=1).planned


def _record(noisy: Fingerprint, policy: Policy, noise: StatisticsNoise, folder: Path) -> None:
    """Put into the ledger what is about to leave. Each survey has noise of its own, and is a release of its own."""
    from fedshift.federation.site.privacy.accounting import composed_epsilon
    from fedshift.federation.site.privacy.ledger import Ledger, Release, now

    mechanism, asked = _mechanism(noise), secrets.token_hex(LENGTH)
    deviation = noisy.noise or 0.0
    Ledger(folder).record(
        Release(
            date=now(),
            job=SURVEY,
            run=asked[:16],
            round=0,
            dataset=noisy.dataset,
            what="survey",
            mechanism="gaussian",
            sensitivity=deviation / mechanism.multiplier,
            unit="L2 norm of histograms",
            deviation=deviation,
            multiplier=mechanism.multiplier,
            epsilon=composed_epsilon([mechanism], noise.delta),
            delta=noise.delta,
            question=asked,
        ),
        budget=policy.budget,
        site=noisy.site,
    )


def with_noise(found: Fingerprint, noise: StatisticsNoise, *, scans: int = 1) -> Fingerprint:
    """Only the histograms of normalised intensities of whole volumes, with Gaussian noise on every bin.

    A case has a share of 1 in a histogram, so replacing a subject with s cases, at most ``scans``, moves one by at most
    s√2 and n together by s√(2n), in L2 norm. Nothing else of a fingerprint is bounded like this by itself, so it stays
    at the site. The noise comes from random bytes that are thrown away: asked again, the site answers with other noise,
    and spends as much again.
    """
    from fedshift.federation.site.privacy.gate import Budget  # imports torch and scipy, needed with noise only
    from fedshift.schema.fingerprint import ALL, Intensities

    budget = Budget(noise, once=1, per_round=0, rounds=1)
    deviation = budget.multiplier * scans * sqrt(2 * len(found.intensities))
    log.info(
        "site %s: survey with noise of deviation %.3g a bin: ε = %.3g at δ = %g",
        *(found.site, deviation, budget.total, noise.delta),
    )
    key = secrets.token_bytes(LENGTH)
    noisy: dict[str, dict[str, Intensities]] = {}
    for sequence, places in found.intensities.items():
        histogram = np.array(places[ALL].normalised)
        drawn = gaussian(key + sequence.encode(), histogram.shape)
        noisy[sequence] = {
            ALL: Intensities(
                cases=found.surveyed,
                mean=0.0,
                square=0.0,
                squared_mean=0.0,
                values=(),
                normalised_mean=0.0,
                normalised=tuple(np.maximum(histogram + deviation * drawn, 0.0).tolist()),
            )
        }
    kept = {"site", "dataset", "kind", "simulated", "cases", "classes", "sequences", "annotated", "surveyed"}
    return Fingerprint.model_validate({**found.model_dump(include=kept), "noise": deviation, "intensities": noisy})


def _named(found: Fingerprint, site: str) -> Fingerprint:
    """Under the name that the federation has for the site, which need not be its folder's."""
    return found.model_copy(update={"site": site})
