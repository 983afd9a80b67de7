"""Distribution of a score over cases, with a bootstrap interval of its mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedshift.schema.evaluation import CONFIDENCE, MOST_CASES, QUANTILES, Distribution

RESAMPLES = 2000
FEWEST = 10
"""Minimum cases for sending quantiles, deviation and interval: with fewer they would reveal single scores."""
ENOUGH = 5
"""Minimum subjects for a bootstrap interval: with fewer it is far too narrow."""


def distribution(
    values: Sequence[float] | np.ndarray, *, seed: int, share_cases: bool, subjects: Sequence[str] | None = None
) -> Distribution:
    """Summarise a score over cases, with no more detail than may leave the site.

    Args:
        values: one score per case, in the order of the manifest; NaN for cases that have none, which are left out. At
            least one has.
        seed: seed of the bootstrap.
        share_cases: whether scores of single cases may leave. If not, only number and mean are returned for fewer than
            `FEWEST` cases.
        subjects: whose each case is, for the interval; None if every case is of another subject.
    """
    scores = np.asarray(values, np.float64)
    known = ~np.isnan(scores)
    subjects = (
        None if subjects is None else [whose for whose, is_known in zip(subjects, known, strict=True) if is_known]
    )
    scores, several = scores[known], several_cases(subjects)
    if not share_cases and len(scores) < FEWEST:
        return Distribution(n=len(scores), mean=float(scores.mean()), subjects=several)
    ordered = np.sort(scores)
    if not share_cases:  # otherwise a quantile could equal a single case's score
        ordered = (ordered[:-1] + ordered[1:]) / 2
    a, b, c, d, e = np.quantile(ordered, QUANTILES).tolist()
    return Distribution(
        n=len(scores),
        mean=float(scores.mean()),
        std=float(scores.std(ddof=1)) if len(scores) > 1 else None,
        quantiles=(a, b, c, d, e),
        interval=bootstrap_interval(scores, seed=seed, subjects=subjects),
        subjects=several,
        cases=scores.tolist() if share_cases and len(scores) <= MOST_CASES else None,
    )


def several_cases(subjects: Sequence[str] | None) -> int | None:
    """How many subjects there are, if some have several cases; else None. ``subjects``: whose each case is."""
    different = len(set(subjects or ()))
    return different if different < len(subjects or ()) else None


def bootstrap_interval(
    scores: np.ndarray, *, seed: int, subjects: Sequence[str] | None = None
) -> tuple[float, float] | None:
    """95 % percentile-bootstrap interval of the mean of scores (n,); None for fewer than `ENOUGH` subjects.

    Subjects are drawn, each with all its cases, because scans of one patient are alike. ``subjects`` says whose each
    case is; without it every case is of another one.
    """
    names = list(range(len(scores))) if subjects is None else list(subjects)
    place = {name: number for number, name in enumerate(dict.fromkeys(names))}
    n = len(place)
    if n < ENOUGH:
        return None
    whose = [place[name] for name in names]
    sums, counts = np.bincount(whose, scores, n), np.bincount(whose, minlength=n)
    rng = np.random.default_rng(seed)
    chunk = max(1, 2_000_000 // n)  # resamples per block of 16 MB
    means: list[np.ndarray] = []
    for start in range(0, RESAMPLES, chunk):
        draws = rng.integers(n, size=(min(chunk, RESAMPLES - start), n))
        means.append(sums[draws].sum(1) / counts[draws].sum(1))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(means), (tail, 1 - tail))
    return float(low), float(high)
