"""Conformal risk control for several hospitals: levels of probability that keep an expected share below a limit.

A case has a risk curve L(λ) in [0, 1], which rises with the level λ: of the outer outline {p ≥ λ} the share of the
structure that is outside it; of a set of classes {p_c ≥ λ} whether the right class is not in it. Conformal risk control
(Angelopoulos, Bates, Fisch, Lei & Schuster, ICLR 2024, Theorem 1) takes, from n exchangeable cases with mean R, ::

    λ̂ = max { λ : (n R(λ) + 1) / (n + 1) ≤ α }                 then E L_new(λ̂) ≤ α

which needs n ≥ (1 − α)/α cases. Of an *inner* outline the share that is not the structure need not be monotone; its
running maximum from the highest level down is, and is never smaller, so what holds for it holds for the share.

**A site of a federation** has few cases of its own, and others' curves. With a fixed curve P and weight m (in cases) ::

    λ̂ = max { λ : (n R(λ) + m P(λ) + 1) / (n + m + 1) ≤ α }
    E L_new(λ̂) ≤ α + m/(n + 1) · E max(0, α − P(λ̂))            `at_most`, whatever the shift between the sites

*Proof.* P and m depend on other sites alone, so let them be fixed. With the new case among n + 1 let λ* be the largest
level with Σ L_i(λ) + m P(λ) ≤ α (n + m + 1). As L_new ≤ 1, λ̂ ≤ λ*, and so L_new(λ̂) ≤ L_new(λ*). λ* doesn't depend on
the order of the n + 1 cases, so E L_new(λ*) = E Σ L_i(λ*)/(n + 1) ≤ α + m/(n + 1) · (α − E P(λ*)), and P(λ*) ≥ P(λ̂).
Where no level is found there is no outline, and nothing counts as missed. ∎

(Farinhas et al., ICLR 2024, bound the same by total variation.) m is chosen by empirical Bayes, σ² being the variance
of cases within sites, τ² that of sites' means, v that of P as their mean::

    m = σ² / (τ² + v),   at most n + 1

so a site's curve is shrunk towards the others' by its size: with few cases it counts as much as they, with many it is
its own. τ² is no estimate but an upper limit (Q-profile of Viechtbauer, Stat. Med. 2007, at `CAUTION`), for few sites
say little about it. The cap makes `at_most` never more than 2α. That sites like these keep α itself on average is not
proved but simulated (``benchmarks/guarantee.py``).

**A hospital that took no part** is a new draw among K exchangeable sites (hierarchical conformal prediction: Lee,
Barber & Willett, 2023), the case among its own. Then ``λ̂ = max {λ : (Σ_k R_k(λ) + 1)/(K + 1) ≤ α}`` keeps E L_new ≤ α
on average over *hospitals and* cases, and needs K ≥ (1 − α)/α sites. Nothing is promised to it alone before it has as
many cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil, sqrt

import numpy as np

from fedshift.schema.guarantee import LEVELS, Curve, Guarantee, Level, Outcome, Promise, RiskCurves
from fedshift.tasks.evaluation.spread import FEWEST

CAUTION = 0.2
"""The chance of as little variation between sites as was seen, if it were the τ² that is taken."""
FEWEST_OTHERS = 2
"""Other sites without which nothing is known of how much sites vary, so that a site counts its own cases alone."""
LEAST_VARIANCE = 1e-6
SLACK = 1e-9
"""Of comparisons with a limit, for sums of rounded numbers."""
_LEVELS = np.array(LEVELS)
_NORMAL_975 = 1.959964


# --- curves of cases ------------------------------------------------------------------------------------------------


class Counts:
    """How many voxels are at or above each level, of a structure and of all; a scan may come in parts."""

    def __init__(self) -> None:
        self.covered, self.outlined = (np.zeros(len(_LEVELS), np.int64) for _ in range(2))
        self.total = 0
        """Voxels of the structure."""

    def add(self, probability: np.ndarray, truth: np.ndarray) -> None:
        """Count a part: probabilities, and where the structure is (bool), of one shape on the scan's own grid."""
        inside = probability[truth]
        self.covered += _from_level_on(inside)
        self.outlined += _from_level_on(probability[probability >= _LEVELS[0]])
        self.total += inside.size

    def risks(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Risk curves of the case, two (levels,), see `Curve`; None of a case that has none of the structure."""
        if not self.total:
            return None
        outside = np.divide(
            self.outlined - self.covered, self.outlined, out=np.zeros(len(_LEVELS)), where=self.outlined > 0
        )
        return 1 - self.covered / self.total, np.maximum.accumulate(outside[::-1])[::-1]


def outline_risks(probability: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """`Counts.risks` of a whole scan."""
    counts = Counts()
    counts.add(probability, truth)
    return counts.risks()


def _from_level_on(probability: np.ndarray) -> np.ndarray:
    """How many of these (n,) are at or above each level."""
    reached = np.searchsorted(_LEVELS, probability, side="right")  # as many levels as it is not below
    return np.bincount(reached, minlength=len(_LEVELS) + 1)[::-1].cumsum()[::-1][1:]


def above(probability: np.ndarray, level: float) -> np.ndarray:
    """Where a probability is at or above a level, as risks count it (bool)."""
    return np.asarray(probability >= np.float64(level))


def class_risks(probability: np.ndarray) -> np.ndarray:
    """Curves (n, levels) of cases that have a class, from its probability in each (n,): 1 where a level is above it."""
    return np.asarray(probability[:, None] < _LEVELS, np.float64)


@dataclass
class CaseRisks:
    """Risk curves of single cases, by structure or class, which stay where they are made."""

    missed: dict[str, list[np.ndarray]] = field(default_factory=dict)
    false: dict[str, list[np.ndarray]] = field(default_factory=dict)
    subjects: dict[str, list[object]] = field(default_factory=dict)

    def add_outline(self, name: str, risks: tuple[np.ndarray, np.ndarray] | None, *, subject: object) -> None:
        """Add a case by its `outline_risks`; one that has none of the structure says nothing."""
        if risks is not None:
            for kept, risk in zip((self.missed, self.false), risks, strict=True):
                kept.setdefault(name, []).append(risk)
            self.subjects.setdefault(name, []).append(subject)

    def add_classes(self, name: str, probability: np.ndarray, *, subjects: Sequence[object]) -> None:
        """Add the cases (n,) that have a class, with their probability of it."""
        self.missed.setdefault(name, []).extend(class_risks(probability))
        self.subjects.setdefault(name, []).extend(subjects)

    def curves(self, *, least: int = 1) -> dict[str, Curve]:
        """The mean curves of structures that so many subjects have."""
        means = {
            name: mean_curve(risks, self.false.get(name), self.subjects[name]) for name, risks in self.missed.items()
        }
        return {name: curve for name, curve in means.items() if curve is not None and curve.n >= least}


def mean_curve(
    missed: Sequence[np.ndarray], false: Sequence[np.ndarray] | None, subjects: Sequence[object]
) -> Curve | None:
    """The `Curve` over subjects, of whom each has the mean of its cases; None without any.

    ``missed``, ``false``: of each case, (levels,); ``subjects``: whose each case is.
    """
    if not missed:
        return None
    place = {name: number for number, name in enumerate(dict.fromkeys(subjects))}
    whose = np.array([place[name] for name in subjects])
    n = len(place)

    def by_subject(curves: Sequence[np.ndarray]) -> np.ndarray:
        sums = np.zeros((n, len(_LEVELS)))
        np.add.at(sums, whose, np.stack(curves))
        return sums / np.bincount(whose, minlength=n)[:, None]

    risks = {"missed": by_subject(missed)} | ({} if false is None else {"false": by_subject(false)})
    means = {name: _monotone(values.mean(0), rises=name == "missed") for name, values in risks.items()}
    spreads = {f"{name}_variance": values.var(0, ddof=1) for name, values in risks.items() if n >= FEWEST}
    return Curve(n=n, **{name: tuple(np.clip(values, 0, 1).tolist()) for name, values in (means | spreads).items()})


def _monotone(values: np.ndarray, *, rises: bool) -> np.ndarray:
    """A mean of monotone curves, of which rounding may have taken the last bit."""
    return np.maximum.accumulate(values) if rises else np.maximum.accumulate(values[::-1])[::-1]


# --- levels -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """A site's mean risk at each level, rising (levels,), over ``n`` cases, and their variance if it is known."""

    n: int
    risk: np.ndarray
    variance: np.ndarray | None = None


@dataclass(frozen=True)
class OtherSites:
    """Other sites' mean curve P, rising (levels,), and as how many cases it counts."""

    risk: np.ndarray
    cases: float


def fewest(alpha: float, risk: float = 0.0) -> int | None:
    """Cases with which a level of this mean risk keeps the promise; None if no number does."""
    return ceil((1 - alpha) / (alpha - risk) - SLACK) if risk < alpha else None


def controlled(sample: Sample, alpha: float, others: OtherSites | None = None) -> int | None:
    """The number of the highest level whose risk is controlled (λ̂); None if there is none."""
    total, n = sample.n * sample.risk + 1, sample.n + 1.0
    if others is not None and others.cases:
        total, n = total + others.cases * others.risk, n + others.cases
    kept = int(np.count_nonzero(total <= alpha * n + SLACK))  # it rises
    return kept - 1 if kept else None


def at_most(sample: Sample, alpha: float, others: OtherSites | None, level: int) -> float:
    """The limit of the expected risk at the site alone, whatever the shift (the second formula above)."""
    if others is None:
        return alpha
    return min(1.0, alpha + others.cases / (sample.n + 1) * max(0.0, alpha - float(others.risk[level])))


def prior(sites: Sequence[Sample], alpha: float) -> OtherSites | None:
    """What these sites tell of another one: P and σ²/(τ² + v); None if they are too few."""
    if len(sites) < FEWEST_OTHERS:
        return None
    n, risks = np.array([site.n for site in sites], np.float64), np.stack([site.risk for site in sites])
    near = max(int(np.count_nonzero(risks.mean(0) <= alpha)) - 1, 0)  # the level at which it is decided
    within = max(_within(sites, near), LEAST_VARIANCE)
    between = _between(risks[:, near], within / n)
    weights = 1 / (between + within / n)
    mean = _monotone((weights[:, None] * risks).sum(0) / weights.sum(), rises=True)
    return OtherSites(mean, within / (between + 1 / weights.sum()))


def _within(sites: Sequence[Sample], level: int) -> float:
    """σ² at a level, over the sites that tell it; of the means alone the most that it can be."""
    variances = [
        (site.n - 1, float(site.variance[level])) for site in sites if site.variance is not None and site.n > 1
    ]
    if variances:
        return sum(free * value for free, value in variances) / sum(free for free, _ in variances)
    total = sum(site.n for site in sites)
    return sum(site.n * float(site.risk[level] * (1 - site.risk[level])) for site in sites) / total


def _between(means: np.ndarray, errors: np.ndarray) -> float:
    """Upper limit of τ²: where Q(τ²) = Σ w_k (R_k − R̄)², with w_k = 1/(τ² + σ²/n_k), is the chi-squared's `CAUTION`."""

    def spread(between: float) -> float:
        weights = 1 / (between + errors)
        mean = (weights * means).sum() / weights.sum()
        return float((weights * (means - mean) ** 2).sum())

    limit = _chi_squared(CAUTION, len(means) - 1)
    low, high = 0.0, 1.0  # risks are in [0, 1], and so is their variance
    if spread(low) <= limit:
        return 0.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if spread(middle) > limit else (low, middle)
    return high


def _chi_squared(share: float, free: int) -> float:
    """The quantile of chi-squared below which ``share`` lies (Wilson & Hilferty, 1931)."""
    from statistics import NormalDist

    part = 2 / (9 * free)
    return float(free * max(0.0, 1 - part + NormalDist().inv_cdf(share) * sqrt(part)) ** 3)


def shrunk(sample: Sample, others: OtherSites | None) -> OtherSites | None:
    """What others tell, for no more than the site's own cases and one."""
    return None if others is None else OtherSites(others.risk, min(others.cases, sample.n + 1.0))


# --- promises ---------------------------------------------------------------------------------------------------------

_Side = Callable[[Curve], Sample | None]


def _missed(curve: Curve) -> Sample:
    return Sample(curve.n, np.array(curve.missed), _array(curve.missed_variance))


def _false(curve: Curve) -> Sample | None:
    """Of inner outlines, from the highest level down, so that the risk rises too."""
    if curve.false is None:
        return None
    variance = _array(curve.false_variance)
    return Sample(curve.n, np.array(curve.false)[::-1], None if variance is None else variance[::-1])


def _array(values: tuple[float, ...] | None) -> np.ndarray | None:
    return None if values is None else np.array(values)


def own_promise(curve: Curve, alpha: float) -> Promise:
    """What the cases of one hospital promise to its new patients, without any other's."""
    return _promise(curve.n, lambda side: _level(side, side(curve), alpha))


def federated(
    curves: Mapping[str, RiskCurves], *, alpha: float, held_out: Sequence[str] = (), newcomers: bool = True
) -> Guarantee:
    """What the curves of a final model promise, at each site and, with ``newcomers``, at hospitals that took no part.

    ``curves``: by site, in the order in which they are summed. Sites that are held out set no levels; theirs are those
    of newcomers.
    """
    calibration = {site: risk_curves.calibration for site, risk_curves in curves.items() if site not in held_out}
    sites: dict[str, dict[str, Promise]] = {}
    for site, by_structure in calibration.items():
        for name, curve in by_structure.items():
            others = [
                other_curves[name]
                for other, other_curves in calibration.items()
                if other != site and name in other_curves
            ]
            promise = _promise(curve.n, partial(_shrunk_level, curve=curve, others=others, alpha=alpha))
            sites.setdefault(site, {})[name] = _looked_at(promise, curves[site].tested.get(name))
    by_name: dict[str, list[Curve]] = {}
    for by_structure in calibration.values():
        for name, curve in by_structure.items():
            by_name.setdefault(name, []).append(curve)
    newcomer = {
        name: _promise(len(every), partial(_newcomers_level, curves=every, alpha=alpha))
        for name, every in (by_name.items() if newcomers else ())
    }
    left_out = {
        site: {
            name: _looked_at(newcomer[name], curve) for name, curve in risk_curves.tested.items() if name in newcomer
        }
        for site, risk_curves in curves.items()
        if site in held_out
    }
    return Guarantee(
        alpha=alpha,
        sites=sites,
        newcomer=newcomer,
        left_out={site: promise for site, promise in left_out.items() if promise},
    )


def _promise(n: int, level: Callable[[_Side], Level | None]) -> Promise:
    outer = level(_missed)
    assert outer is not None
    return Promise(n=n, outer=outer, inner=level(_false))


def _shrunk_level(side: _Side, *, curve: Curve, others: Sequence[Curve], alpha: float) -> Level | None:
    sample = side(curve)
    known = [each for each in map(side, others) if each is not None]
    return None if sample is None else _level(side, sample, alpha, shrunk(sample, prior(known, alpha)))


def _newcomers_level(side: _Side, *, curves: Sequence[Curve], alpha: float) -> Level | None:
    """Of a new draw among the sites; ``needed`` are its own cases, which then count alone."""
    sites = [sample for sample in map(side, curves) if sample is not None]
    if not sites:
        return None
    mean = Sample(len(sites), np.mean([site.risk for site in sites], axis=0))
    level = _level(side, mean, alpha)
    assert level is not None
    return level.model_copy(update={"needed": None if level.level is not None else fewest(alpha), "at_most": None})


def _level(side: _Side, sample: Sample | None, alpha: float, others: OtherSites | None = None) -> Level | None:
    if sample is None:
        return None
    number = controlled(sample, alpha, others)
    weight = 0.0 if others is None else others.cases
    if number is None:
        enough = fewest(alpha, float(sample.risk[0]))
        return Level(level=None, others=weight, needed=None if enough is None else max(enough - sample.n, 1))
    level = LEVELS[number] if side is _missed else LEVELS[::-1][number]
    return Level(level=level, others=weight, at_most=at_most(sample, alpha, others, number))


def _looked_at(promise: Promise, curve: Curve | None) -> Promise:
    """The promise with what came of it on other cases."""
    if curve is None:
        return promise
    sides = {"outer": (promise.outer, _missed), "inner": (promise.inner, _false)}
    tested = {
        name: level.model_copy(update={"tested": _tested(side(curve), level.level, side, classes=curve.false is None)})
        for name, (level, side) in sides.items()
        if level is not None and level.level is not None
    }
    return promise.model_copy(update=tested)


def _tested(sample: Sample | None, level: float, side: _Side, *, classes: bool) -> Outcome | None:
    if sample is None:
        return None
    number = (LEVELS if side is _missed else LEVELS[::-1]).index(level)
    mean = float(sample.risk[number])
    interval = None
    if classes:
        interval = _wilson(mean, sample.n)
    elif sample.variance is not None:
        half = _student_975(sample.n - 1) * sqrt(float(sample.variance[number]) / sample.n)
        interval = (max(0.0, mean - half), min(1.0, mean + half))
    return Outcome(n=sample.n, mean=mean, interval=interval)


def _wilson(share: float, n: int) -> tuple[float, float]:
    """Interval of a share of ``n`` cases."""
    z = _NORMAL_975**2 / n
    middle, half = share + z / 2, sqrt(z * share * (1 - share) + z**2 / 4)
    return max(0.0, (middle - half) / (1 + z)), min(1.0, (middle + half) / (1 + z))


def _student_975(free: int) -> float:
    """The 97.5 % quantile of Student's t, by its expansion around the normal one (Cornish & Fisher)."""
    z = _NORMAL_975
    return z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
