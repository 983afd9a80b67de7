"""Levels that keep an expected share below a limit: exact identities, and what is promised to whom."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedshift.schema.guarantee import LEVELS, Curve, RiskCurves
from fedshift.tasks.evaluation import guarantee
from fedshift.tasks.evaluation.guarantee import OtherSites, Sample, at_most, controlled, fewest, prior, shrunk

N = len(LEVELS)
RAMP = np.linspace(0, 1, N)


def curve(n: int, risk: np.ndarray, variance: float | None = None) -> Curve:
    spread = None if variance is None else (variance,) * N
    told = {"missed_variance": spread, "false_variance": spread}
    return Curve(n=n, missed=tuple(risk.tolist()), false=tuple(risk[::-1].tolist()), **told)


def test_risks_of_an_outline_are_the_shares_that_are_counted_by_hand() -> None:
    rng = np.random.default_rng(0)
    probability, truth = rng.random((4, 9, 9)).astype(np.float32), rng.random((4, 9, 9)) < 0.3
    probability[0, 0, 0] = LEVELS[30]  # a level itself is in the outline
    risks = guarantee.outline_risks(probability, truth)
    assert risks is not None
    shares = []
    for number, level in enumerate(LEVELS):
        outline = probability >= np.float64(level)
        assert risks[0][number] == pytest.approx(1 - (outline & truth).sum() / truth.sum())
        shares.append((outline & ~truth).sum() / outline.sum() if outline.any() else 0.0)
    assert risks[1] == pytest.approx([max(shares[number:]) for number in range(N)]), "the largest from there up"
    assert guarantee.outline_risks(probability, np.zeros_like(truth)) is None, "a case without the structure"


def test_an_inner_outlines_share_is_never_above_its_risk_although_it_is_not_monotone() -> None:
    probability = np.array([0.99, 0.9, 0.9, 0.9], np.float32)
    truth = np.array([False, True, True, True])
    risks = guarantee.outline_risks(probability, truth)
    assert risks is not None
    low, high = (int(np.searchsorted(LEVELS, level)) for level in (0.5, 0.95))
    assert risks[1][high] == 1 and risks[1][low] == 1, "the surest voxel is wrong, and no lower level forgets that"


def test_risk_control_is_the_papers_inequality() -> None:
    rng = np.random.default_rng(1)
    for n in (9, 10, 37, 200):
        sample = Sample(n, np.sort(rng.random(N) ** 3))
        kept = [k for k in range(N) if n / (n + 1) * sample.risk[k] + 1 / (n + 1) <= 0.1]
        assert controlled(sample, 0.1) == (max(kept) if kept else None)


def test_no_case_is_enough_below_the_least_number() -> None:
    nothing_missed = np.zeros(N)
    assert controlled(Sample(8, nothing_missed), 0.1) is None and controlled(Sample(9, nothing_missed), 0.1) == N - 1
    assert [fewest(alpha) for alpha in (0.05, 0.1, 0.2, 0.5)] == [19, 9, 4, 1]
    assert fewest(0.1, 0.05) == 18 and fewest(0.1, 0.1) is None
    assert (
        controlled(Sample(18, np.full(N, 0.05)), 0.1) == N - 1 and controlled(Sample(17, np.full(N, 0.05)), 0.1) is None
    )


def test_others_count_as_cases_and_never_as_more_than_the_sites_own_and_one() -> None:
    own, others = Sample(20, RAMP), OtherSites(RAMP**2, 10.0)
    level = controlled(own, 0.1, others)
    mixed = (20 * own.risk + 10 * others.risk + 1) / 31
    assert level is not None and mixed[level] <= 0.1 < mixed[level + 1]
    assert controlled(own, 0.1, OtherSites(RAMP, 0.0)) == controlled(own, 0.1, None) == controlled(own, 0.1)
    assert shrunk(own, OtherSites(RAMP, 1000.0)) == OtherSites(RAMP, 21.0)
    limit = at_most(own, 0.1, others, level)
    assert limit == pytest.approx(0.1 + 10 / 21 * (0.1 - others.risk[level])) and limit <= 0.2
    assert at_most(own, 0.1, OtherSites(np.ones(N), 21.0), 0) == 0.1, "others that miss more make it safer"


def test_sites_that_are_alike_lend_all_their_cases_and_sites_that_differ_lend_few() -> None:
    def cases_lent(shift: float) -> float:
        sites = [Sample(40, np.clip(RAMP + move, 0, 1), np.full(N, 0.01)) for move in (-shift, 0.0, shift)]
        told = prior(sites, 0.1)
        assert told is not None
        return told.cases

    assert cases_lent(0.0) == pytest.approx(120), "no variation: as one pool"
    assert cases_lent(0.02) > cases_lent(0.05) > cases_lent(0.2)
    assert prior([Sample(40, RAMP)], 0.1) is None, "one other site says nothing of how sites vary"


def test_the_limit_of_the_variation_between_sites_is_the_q_profile_one() -> None:
    means, errors = np.array([0.05, 0.1, 0.2, 0.12]), np.array([0.001, 0.002, 0.0005, 0.001])
    between = guarantee._between(means, errors)
    weights = 1 / (between + errors)
    q = (weights * (means - (weights * means).sum() / weights.sum()) ** 2).sum()
    assert stats.chi2.cdf(q, 3) == pytest.approx(guarantee.CAUTION, abs=0.01)
    assert guarantee._between(means, np.full(4, 10.0)) == 0


def test_quantiles_are_those_of_their_distributions() -> None:
    for free in (9, 19, 100):
        assert guarantee._student_975(free) == pytest.approx(stats.t.ppf(0.975, free), abs=0.01)
    low, high = stats.binomtest(3, 20).proportion_ci(method="wilson")
    assert guarantee._wilson(3 / 20, 20) == pytest.approx((low, high))


def test_a_subject_counts_once_whatever_the_number_of_its_scans() -> None:
    ones, zeros = np.ones(N), np.zeros(N)
    told = guarantee.mean_curve([ones, ones, ones, zeros], [zeros] * 4, ["a", "a", "a", "b"])
    assert told is not None and told.n == 2 and set(told.missed) == {0.5} and told.missed_variance is None
    many = guarantee.mean_curve([ones] * 5 + [zeros] * 5, None, range(10))
    assert many is not None and many.false is None and many.missed_variance is not None
    assert many.missed_variance[0] == pytest.approx(np.var([1] * 5 + [0] * 5, ddof=1))
    assert guarantee.mean_curve([], None, []) is None


def test_every_site_gets_its_own_level_and_a_small_one_more_than_alone() -> None:
    curves = {name: curve(n, RAMP**power, 0.01) for name, n, power in (("A", 100, 2), ("B", 60, 1.9), ("C", 6, 2))}
    promised = guarantee.federated({s: RiskCurves(calibration={"organ": c}) for s, c in curves.items()}, alpha=0.1)
    levels = {site: promised.sites[site]["organ"].outer.level for site in curves}
    assert None not in levels.values()
    assert guarantee.own_promise(curves["C"], 0.1).outer.level is None, "six cases are too few alone"
    small, large = (promised.sites[site]["organ"].outer for site in "CA")
    assert 3 < small.others <= 7 and small.at_most is not None and 0.1 <= small.at_most <= 0.2
    assert small.others / 7 > large.others / 101, "the larger site is more of its own"
    promise = promised.sites["A"]["organ"]
    assert promise.inner is not None and promise.inner.level is not None and promise.outer.level is not None
    assert promise.inner.level == pytest.approx(1 - promise.outer.level, abs=1e-5), "the mirror image of these curves"


def test_a_newcomer_is_covered_by_as_many_sites_as_a_site_needs_cases() -> None:
    nothing = curve(50, np.where(RAMP > 0.5, RAMP, 0.0))

    def newcomer(sites: int) -> guarantee.Promise:
        told = {f"S{k}": RiskCurves(calibration={"organ": nothing}) for k in range(sites)}
        return guarantee.federated(told, alpha=0.1).newcomer["organ"]

    few, enough = newcomer(8), newcomer(9)
    assert few.outer.level is None and few.outer.needed == 9 and few.n == 8
    assert enough.outer.level is not None and enough.outer.needed is None and enough.outer.at_most is None
    assert not guarantee.federated(
        {"A": RiskCurves(calibration={"organ": nothing})}, alpha=0.1, newcomers=False
    ).newcomer


def test_what_came_of_a_promise_is_the_share_at_its_level_with_its_interval() -> None:
    told = {s: RiskCurves(calibration={"organ": curve(50, RAMP, 0.01)}) for s in ("A", "B")}
    tested = curve(25, RAMP / 2, 0.04)
    told["A"] = RiskCurves(calibration=told["A"].calibration, tested={"organ": tested})
    promised = guarantee.federated(told, alpha=0.1).sites
    assert promised["B"]["organ"].outer.tested is None
    outer = promised["A"]["organ"].outer
    assert outer.tested is not None and outer.level is not None
    assert outer.tested.mean == tested.missed[LEVELS.index(outer.level)] and outer.tested.n == 25
    low, high = stats.t.interval(0.95, 24, outer.tested.mean, 0.2 / 5)
    assert outer.tested.interval == pytest.approx((max(0, low), high), abs=1e-3)


def test_sites_that_are_held_out_set_no_level_and_test_the_newcomers() -> None:
    told = {f"S{k}": RiskCurves(calibration={"organ": curve(50, RAMP**4)}) for k in range(12)}
    without = guarantee.federated(told, alpha=0.1)
    told["out"] = RiskCurves(calibration={"organ": curve(50, np.ones(N))}, tested={"organ": curve(20, RAMP)})
    promised = guarantee.federated(told, alpha=0.1, held_out=["out"])
    assert promised.sites == without.sites and promised.newcomer == without.newcomer
    outer = promised.left_out["out"]["organ"].outer
    assert outer.tested is not None and outer.level == promised.newcomer["organ"].outer.level and outer.tested.n == 20


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_expected_risks_of_simulated_sites_stay_below_what_is_promised(shift: float) -> None:
    """The mean over draws of each site; pooled levels miss the same target at some sites once they differ."""
    rng, logits, alpha = np.random.default_rng(3), np.log(np.array(LEVELS) / (1 - np.array(LEVELS))), 0.1
    sizes, means = (5, 8, 20, 60, 200, 12), rng.normal(2.5, 1, 6) * (shift > 0) + 2.5 * (shift == 0)
    truth = np.stack([stats.norm.cdf((logits - mean) / math.hypot(1.5, 1)) for mean in means])
    risks: dict[str, list[list[float]]] = {"shrunk": [[] for _ in sizes], "pooled": [[] for _ in sizes]}
    limits: list[list[float]] = [[] for _ in sizes]
    for _ in range(120):
        sites = []
        for n, mean in zip(sizes, means, strict=True):
            cases = stats.norm.cdf((logits - rng.normal(mean, 1, n)[:, None]) / 1.5)
            sites.append(Sample(n, cases.mean(0), cases.var(0, ddof=1) if n >= 10 else None))
        pooled = Sample(sum(sizes), np.average([site.risk for site in sites], axis=0, weights=sizes))
        for k, site in enumerate(sites):
            others = shrunk(site, prior([*sites[:k], *sites[k + 1 :]], alpha))
            for way, level in (("shrunk", controlled(site, alpha, others)), ("pooled", controlled(pooled, alpha))):
                if level is not None:
                    risks[way][k].append(truth[k][level])
                    if way == "shrunk":
                        limits[k].append(at_most(site, alpha, others, level))
    covered = [len(values) >= 100 for values in risks["shrunk"]]
    assert all(covered[1:]) and covered[0] == (shift == 0), "others' cases say less of it the more sites differ"
    by_site = [float(np.mean(values)) for values in risks["shrunk"] if values]
    assert max(by_site) <= alpha + 0.005
    assert all(
        risk <= np.mean(limit) for risk, limit in zip(by_site, [limit for limit in limits if limit], strict=True)
    ), "proved, whatever the shift"
    assert shift == 0 or max(np.mean(values) for values in risks["pooled"]) > alpha + 0.03
