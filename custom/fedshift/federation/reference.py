"""What a site tells, under its policy, of the scans that a model was trained on: `fedshift drift` compares with it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from fedshift.data.fingerprint import case_fingerprints, surveyed_cases
from fedshift.data.shift import OF_A_SCAN, from_site
from fedshift.federation.survey_answer import answer, least_cases
from fedshift.schema.errors import PolicyError
from fedshift.schema.fingerprint import DOUBT, Fingerprint, LogSums, Reference
from fedshift.schema.manifest import read_manifest
from fedshift.schema.policy import Policy

log = logging.getLogger("fedshift")

LEAST_DOUBT = 1e-3
"""Smaller doubts count as this."""
LEAST_PART = 0.1
"""Smaller distances than this part of one that is worth a look count as that."""


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
    rules = policy or Policy()
    if rules.statistics is not None or rules.covers_network or rules.budget is not None:
        _log_withheld(site, "its policy puts noise on what leaves")
        return None
    try:
        fingerprint = answer(folder, site, rules)
    except PolicyError as error:
        _log_withheld(site, str(error))
        return None
    if fingerprint.withheld:
        _log_withheld(site, fingerprint.withheld)
        return None
    return reference_of(
        fingerprint,
        list(case_fingerprints(folder)),
        confidences,
        least=least_cases(rules, surveyed_cases(read_manifest(folder))),
    )


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
    whole = len(cases) / max(len(cases) - 1, 1)
    for case in cases:
        for key, distance in from_site(case, site).items():
            apart.setdefault(key, []).append(distance * whole)
    doubts = [1 - value for value in confidences if value is not None]
    floors = {aspect.key: LEAST_PART * aspect.worth for aspect in OF_A_SCAN} | {DOUBT: LEAST_DOUBT}
    sums = {key: LogSums.from_values(values, floor=floors[key]) for key, values in {**apart, DOUBT: doubts}.items()}
    enough = len(confidences) >= least
    return Reference(
        fingerprint=site,
        apart={key: one for key, one in sums.items() if one.cases >= least},
        empty=len(confidences) - len(doubts) if enough else 0,
    )


def _log_withheld(site: str, why: str) -> None:
    log.info("site %s: nothing is told of its scans for 'fedshift drift': %s", site, why)
