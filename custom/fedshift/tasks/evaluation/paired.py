"""Compare two models on the same cases: difference, bootstrap interval, paired test, and how many cases would tell.

**Tests.** Wilcoxon's signed-rank test of the differences, of a subject with several scans of their mean; for pictures,
which are right or wrong, McNemar's exact test: the pairs of which one model alone is right, under the binomial
distribution. Both are two-sided.

**Verdict.** The federated model is better (worse) if p is below 0.05 and the 95 % bootstrap interval of the mean
difference lies above (below) 0. Both are asked for, because ranks and the mean may disagree if one case fails.

**Cases needed** for a two-sided test at 0.05 with a power of 80 %, if the true difference is the observed one
(z = 1.960 and 0.842):

- n = ((z₀.₉₇₅ + z₀.₈₀) · s / d)² for a mean difference d of standard deviation s: the normal approximation for paired
  samples (Rosner, "Fundamentals of Biostatistics", 8th edition, section 8.9);
- n = (z₀.₉₇₅ · √ψ + z₀.₈₀ · √(ψ - d²))² / d² for pictures, ψ being the fraction of pairs of which one model alone is
  right: Connor, "Sample size for testing differences in proportions for the paired-sample design", Biometrics 43
  (1987).

An estimate from few cases is rough: it is rounded up to 1, 1.5, 2, 3, 5 or 7 times a power of ten, and is more than the
cases that there are, since these could not tell.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedshift.schema.evaluation import MOST_CASES, QUANTILES
from fedshift.schema.paired import FEWEST_FOR_NEEDED, FEWEST_FOR_TEST, POWER, SIGNIFICANT, LocalComparison, Verdict
from fedshift.schema.validation import PairedDifference
from fedshift.tasks.evaluation.spread import FEWEST, bootstrap_interval, distribution, several_cases

STEPS = (1, 1.5, 2, 3, 5, 7, 10)
"""What a number of needed cases is rounded up to, times a power of ten."""
MOST_NEEDED = 10**6
"""No number of needed cases above this is given: such a difference is none."""


def compare(
    federated: np.ndarray,
    local: np.ndarray,
    *,
    score: str,
    is_binary: bool,
    round_: int,
    seed: int,
    share_cases: bool,
    subjects: Sequence[str] | None = None,
) -> LocalComparison:
    """Compare two models, with no more detail than may leave the site.

    Args:
        federated: the federated model's score of each case (n,), higher is better; NaN for cases that have none, which
            are left out. At least one has.
        local: the local model's, of the same cases in the same order, NaN for the same.
        score: the score's name.
        is_binary: whether the score says that a case is right (1) or wrong (0).
        round_: the local model's.
        seed: of the bootstrap.
        share_cases: whether scores of single cases may leave. If not, interval, deviation and quantiles of fewer than
            `FEWEST` cases do not either.
        subjects: whose each case is; None if every case is of another subject.
    """
    known = ~np.isnan(federated)
    federated, local = federated[known], local[known]
    subjects = (
        None if subjects is None else [whose for whose, is_known in zip(subjects, known, strict=True) if is_known]
    )
    pairs = np.stack([federated, local], axis=1).astype(np.float64)
    differences = pairs[:, 0] - pairs[:, 1]
    n = len(pairs)
    independent = _of_subjects(differences, subjects)
    interval = bootstrap_interval(differences, seed=seed, subjects=subjects)
    p = paired_p(independent, is_binary=is_binary)
    means = float(federated.astype(np.float64).mean()), float(local.astype(np.float64).mean())
    verdict = _verdict(means[0] - means[1], p, interval)
    test: Literal["wilcoxon", "mcnemar"] = "mcnemar" if is_binary else "wilcoxon"
    record = LocalComparison(
        score=score,
        n=n,
        subjects=several_cases(subjects),
        federated=means[0],
        local=means[1],
        round=round_,
        verdict=verdict,
        test=None if p is None else test,
        p=p,
        needed=needed_cases(independent, is_binary=is_binary) if verdict == "open" else None,
    )
    if not share_cases and n < FEWEST:
        return record
    ordered = np.sort(differences)
    if not share_cases:  # otherwise a quantile could equal a single case's difference
        ordered = (ordered[:-1] + ordered[1:]) / 2
    return record.model_copy(
        update={
            "interval": interval,
            "std": float(differences.std(ddof=1)) if n > 1 else None,
            "quantiles": tuple(np.quantile(ordered, QUANTILES).tolist()),
            "cases": [(a, b) for a, b in pairs.tolist()] if share_cases and n <= MOST_CASES else None,
        }
    )


def paired_difference(
    scores: np.ndarray, first: np.ndarray, *, is_binary: bool, seed: int, subjects: Sequence[str]
) -> PairedDifference:
    """One model's scores less another's of the same cases (n,), without any of a single case."""
    differences = np.asarray(scores, np.float64) - np.asarray(first, np.float64)
    spread = distribution(differences, seed=seed, share_cases=False, subjects=subjects)
    return PairedDifference(difference=spread, p=paired_p(_of_subjects(differences, subjects), is_binary=is_binary))


def _of_subjects(differences: np.ndarray, subjects: Sequence[str] | None) -> np.ndarray:
    """The mean difference of each subject, (subjects,), from those of cases (n,)."""
    if subjects is None or several_cases(subjects) is None:
        return differences
    _, whose = np.unique(np.array(subjects), return_inverse=True)
    return np.bincount(whose, differences) / np.bincount(whose)


def paired_p(differences: np.ndarray, *, is_binary: bool) -> float | None:
    """Two-sided p of differences (n,); None for fewer than `FEWEST_FOR_TEST`, 1 if the models are equal everywhere."""
    if len(differences) < FEWEST_FOR_TEST:
        return None
    if not differences.any():
        return 1.0
    from scipy import stats  # takes about a second

    if is_binary:
        ahead, behind = int((differences > 0).sum()), int((differences < 0).sum())
        return min(1.0, float(stats.binomtest(ahead, ahead + behind).pvalue))
    with warnings.catch_warnings():
        # Of ties and zeros, for which SciPy takes the normal approximation or all permutations.
        warnings.simplefilter("ignore")
        return min(1.0, float(stats.wilcoxon(differences).pvalue))


def needed_cases(differences: np.ndarray, *, is_binary: bool) -> int | None:
    """About how many cases would show the mean of differences (n,); None if it is 0, or from too few cases."""
    mean = abs(float(differences.mean()))
    if len(differences) < FEWEST_FOR_NEEDED or mean == 0:
        return None
    from scipy.stats import norm

    level, power = float(norm.ppf(1 - SIGNIFICANT / 2)), float(norm.ppf(POWER))
    if is_binary:
        apart = float((differences != 0).mean())
        n = ((level * math.sqrt(apart) + power * math.sqrt(max(apart - mean**2, 0.0))) / mean) ** 2
    else:
        n = ((level + power) * float(differences.std(ddof=1)) / mean) ** 2
    return rounded_up(max(n, FEWEST_FOR_TEST, len(differences) + 1)) if n <= MOST_NEEDED else None


def rounded_up(value: float) -> int:
    """The next of `STEPS` times a power of ten, for values from 1."""
    unit = 10.0 ** math.floor(math.log10(value))
    return math.ceil(next(step * unit for step in STEPS if step * unit >= value))


def _verdict(difference: float, p: float | None, interval: tuple[float, float] | None) -> Verdict:
    if p is None or p >= SIGNIFICANT or interval is None:
        return "open"
    if difference > 0 and interval[0] > 0:
        return "better"
    return "worse" if difference < 0 and interval[1] < 0 else "open"
