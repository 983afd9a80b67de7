"""How a score spreads over cases, and an interval for its mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedshift.schema.evaluation import CONFIDENCE, MOST_CASES, QUANTILES, Distribution

RESAMPLES = 2000
FEWEST = 10
"""Cases without which quantiles, deviation and interval would tell single scores."""
ENOUGH = 5
"""Cases without which the bootstrap's interval is far too narrow."""


def distribution(values: Sequence[float] | np.ndarray, *, seed: int, share_cases: bool) -> Distribution:
    """What may be told of a score over cases.

    Args:
        values: one score a case, in the order of the manifest.
        seed: of the bootstrap.
        share_cases: whether single scores may leave. If not, and there are fewer than `FEWEST`, only their number
            and mean do.
    """
    scores = np.asarray(values, np.float64)
    if not share_cases and len(scores) < FEWEST:
        return Distribution(n=len(scores), mean=float(scores.mean()))
    ordered = np.sort(scores)
    if not share_cases:  # a quantile would be a single case's score wherever it falls on one
        ordered = (ordered[:-1] + ordered[1:]) / 2
    a, b, c, d, e = np.quantile(ordered, QUANTILES).tolist()
    return Distribution(
        n=len(scores),
        mean=float(scores.mean()),
        std=float(scores.std(ddof=1)) if len(scores) > 1 else None,
        quantiles=(a, b, c, d, e),
        interval=bootstrap_interval(scores, seed=seed),
        cases=scores.tolist() if share_cases and len(scores) <= MOST_CASES else None,
    )


def bootstrap_interval(scores: np.ndarray, *, seed: int) -> tuple[float, float] | None:
    """The percentile bootstrap's 95 % interval of the mean over cases, (n,); None for fewer than `ENOUGH`."""
    if len(scores) < ENOUGH:
        return None
    rng = np.random.default_rng(seed)
    chunk = max(1, 2_000_000 // len(scores))  # resamples at a time: 16 MB of numbers
    means: list[np.ndarray] = []
    for start in range(0, RESAMPLES, chunk):
        draws = rng.integers(len(scores), size=(min(chunk, RESAMPLES - start), len(scores)))
        means.append(scores[draws].mean(1))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(means), (tail, 1 - tail))
    return float(low), float(high)
