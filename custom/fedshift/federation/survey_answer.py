"""What a site tells of its scans under its policy: in answer to a survey, and for `fedshift drift` beside a model."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedshift.data.fingerprint import case_fingerprints, counts_only, fingerprint, surveyed_cases
from fedshift.data.shift import OF_A_SCAN, from_site
from fedshift.data.splits import most_of_a_subject, subject_of
from fedshift.federation.site.privacy.noise import LENGTH, gaussian
from fedshift.schema.errors import PolicyError
from fedshift.schema.fingerprint import ALL, DOUBT, Fingerprint, Intensities, LogSums, Reference
from fedshift.schema.manifest import Case, read_manifest
from fedshift.schema.policy import Policy, StatisticsNoise

if TYPE_CHECKING:
    from fedshift.federation.site.privacy.accounting import Budget

log = logging.getLogger("fedshift")

SURVEY = "survey"
"""What the ledger has as the job."""
LEAST_DOUBT = 1e-3
"""Smaller doubts count as this."""
LEAST_PART = 0.1
"""Smaller distances than this part of one that is worth a look count as that."""


# --- a survey -------------------------------------------------------------------------------------------


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
        site: its name in the federation, which need not be its folder's.
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
    cases = surveyed_cases(read_manifest(folder))
    why = _why_counts_only(policy, cases)
    if why:
        log.info("site %s: the survey gets counts only: %s", site, why)
        return counts_only(folder, why=why).model_copy(update={"site": site})
    noise = policy.statistics
    if noise is not None and policy.budget is not None and ledger is not None:
        from fedshift.federation.site.privacy.ledger import Ledger  # imports scipy, needed with noise only

        Ledger(ledger).check(policy.budget, [_budget(noise).planned], site=site, job=SURVEY, run=None)
    whole = fingerprint(folder, least=least_cases(policy, cases), scanners=policy.scanners, progress=progress)
    whole = whole.model_copy(update={"site": site})
    if noise is None:
        return whole
    noisy = with_noise(whole, noise, scans=most_of_a_subject(cases))
    if ledger is not None:
        _record(noisy, policy, noise, ledger)
    return noisy


def _why_counts_only(policy: Policy, cases: Sequence[Case]) -> str:
    """Why a survey gets no more than counts; empty if it does."""
    least = policy.least_told
    if "statistics" not in policy.allow:
        return "its policy does not allow statistics (privacy.allow)"
    if len({subject_of(case) for case in cases}) < least:
        return (
            "it has fewer cases than its policy wants for that (privacy.survey_cases, privacy.min_cases: "
            f"{least}, a subject's scans as one)"
        )
    if policy.statistics is None and policy.covers_network:
        return "its policy puts noise on the network and none on statistics (privacy.weights, privacy.dp_sgd)"
    if policy.statistics is None and policy.budget is not None:
        return "its policy has a budget and puts no noise on statistics (privacy.budget)"
    return ""


def least_cases(policy: Policy, cases: Sequence[Case]) -> int:
    """The fewest of these cases that are of as many subjects as a survey needs, whichever of them they are."""
    return policy.least_told * max(most_of_a_subject(cases), 1)


def _budget(noise: StatisticsNoise) -> Budget:
    from fedshift.federation.site.privacy.accounting import Budget  # imports scipy, needed with noise only

    return Budget(noise, once=1, per_round=0, rounds=1)


def _record(noisy: Fingerprint, policy: Policy, noise: StatisticsNoise, folder: Path) -> None:
    """Put into the ledger what is about to leave. Each survey has noise of its own, and is a release of its own."""
    from fedshift.federation.site.privacy.accounting import composed_epsilon
    from fedshift.federation.site.privacy.ledger import Ledger, Release, now

    mechanism, asked = _budget(noise).planned, secrets.token_hex(LENGTH)
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


def with_noise(whole: Fingerprint, noise: StatisticsNoise, *, scans: int = 1) -> Fingerprint:
    """Only the histograms of normalised intensities of whole volumes, with Gaussian noise on every bin.

    A case has a share of 1 in a histogram, so replacing a subject with s cases, at most ``scans``, moves one by at most
    s√2 and n together by s√(2n), in L2 norm. Nothing else of a fingerprint is bounded like this by itself, so it stays
    at the site. The noise comes from random bytes that are thrown away: asked again, the site answers with other noise,
    and spends as much again.
    """
    budget = _budget(noise)
    deviation = budget.multiplier * scans * sqrt(2 * len(whole.intensities))
    log.info(
        "site %s: survey with noise of deviation %.3g a bin: ε = %.3g at δ = %g",
        *(whole.site, deviation, budget.total, noise.delta),
    )
    key = secrets.token_bytes(LENGTH)
    nothing = {"mean": 0.0, "square": 0.0, "squared_mean": 0.0, "values": (), "normalised_mean": 0.0}
    noisy: dict[str, dict[str, Intensities]] = {}
    for sequence, places in whole.intensities.items():
        histogram = np.array(places[ALL].normalised)
        drawn = gaussian(key + sequence.encode(), histogram.shape)
        normalised = tuple(np.maximum(histogram + deviation * drawn, 0.0).tolist())
        parts = {**nothing, "cases": whole.surveyed, "normalised": normalised}
        noisy[sequence] = {ALL: Intensities.model_validate(parts)}
    kept = {"site", "dataset", "kind", "simulated", "cases", "classes", "sequences", "annotated", "surveyed"}
    return Fingerprint.model_validate({**whole.model_dump(include=kept), "noise": deviation, "intensities": noisy})


# --- beside a model -------------------------------------------------------------------------------------


def site_reference(
    folder: Path, site: str, policy: Policy | None, confidences: Sequence[float | None]
) -> Reference | None:
    """The site's part of a model's reference; None, with a line in the site's log, if its policy does not let it leave.

    A site with noise on anything tells nothing: every answer would spend more of its privacy budget.

    Args:
        folder: the site's prepared folder.
        site: its name in the federation.
        policy: its policy; None for the default one.
        confidences: the model's confidence in each validation case, None where it found nothing.

    Raises:
        DataError: the folder cannot be read.
    """
    policy, why, whole = policy or Policy(), "its policy puts noise on what leaves", None
    if policy.statistics is None and not policy.covers_network and policy.budget is None:
        try:
            whole = answer(folder, site, policy)
            why = whole.withheld
        except PolicyError as error:
            why = str(error)
    if whole is None or why:
        log.info("site %s: nothing is told of its scans for 'fedshift drift': %s", site, why)
        return None
    least = least_cases(policy, surveyed_cases(read_manifest(folder)))
    return reference_of(whole, list(case_fingerprints(folder)), confidences, least=least)


def reference_of(
    site: Fingerprint, cases: Sequence[Fingerprint], confidences: Sequence[float | None], *, least: int
) -> Reference:
    """The sums of `Reference`.

    Args:
        site: the site's fingerprint.
        cases: the fingerprint of each of its cases.
        confidences: as for `site_reference`.
        least: sums over fewer cases are left out.
    """
    apart: dict[str, list[float]] = {}
    # The site's fingerprint holds the case itself: what is left of each distance is (n - 1) / n.
    rest = len(cases) / max(len(cases) - 1, 1)
    for case in cases:
        for key, distance in from_site(case, site).items():
            apart.setdefault(key, []).append(distance * rest)
    doubts = [1 - value for value in confidences if value is not None]
    floors = {aspect.key: LEAST_PART * aspect.worth for aspect in OF_A_SCAN} | {DOUBT: LEAST_DOUBT}
    sums = {key: LogSums.from_values(values, floor=floors[key]) for key, values in {**apart, DOUBT: doubts}.items()}
    return Reference(
        fingerprint=site,
        apart={key: summed for key, summed in sums.items() if summed.cases >= least},
        empty=len(confidences) - len(doubts) if len(confidences) >= least else 0,
    )
