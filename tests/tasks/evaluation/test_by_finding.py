"""Scores of classes: those of scikit-learn, with weights too; DeLong's test; kappa; thresholds; what may leave."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from fedshift.tasks.evaluation.by_finding import GRID, Threshold, choose, intervals, records, scores_of, weighted
from fedshift.tasks.evaluation.delong import area, components, difference
from fedshift.tasks.evaluation.kappa import kappa, kappa_interval

RNG = np.random.default_rng


def made(n: int, *, seed: int = 0, shift: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Truth and probabilities with ties, of one class."""
    rng = RNG(seed)
    truth = (rng.random(n) < 0.3).astype(float)
    return truth, (1 / (1 + np.exp(-(shift * truth + rng.normal(size=n))))).round(2)


def test_weighted_scores_are_those_of_scikit_learn() -> None:
    truth, value = made(80)
    decided, specific = value >= 0.6, value >= 0.8
    weights = RNG(1).integers(0, 4, (5, 80)).astype(float)
    got = weighted(truth, value, decided, specific, weights)
    for row, given in enumerate(weights):
        wanted = {
            "auroc": metrics.roc_auc_score(truth, value, sample_weight=given),
            "auprc": metrics.average_precision_score(truth, value, sample_weight=given),
            "f1": metrics.f1_score(truth, decided, sample_weight=given),
            "balanced_accuracy": metrics.balanced_accuracy_score(truth, decided, sample_weight=given),
            "sensitivity": metrics.recall_score(truth, specific, sample_weight=given),
        }
        assert {name: values[row] for name, values in got.items()} == pytest.approx(wanted)
    plain = weighted(truth, value, decided, specific, np.ones((1, 80)))
    assert {name: values[0] for name, values in plain.items()} == pytest.approx(
        scores_of(truth, value, decided, specific)
    )


@pytest.mark.parametrize("positives", [9, 20, 25, 43])
def test_perfectly_ranked_cases_have_the_score_1_and_no_more(positives: int) -> None:
    truth = np.r_[np.ones(positives), np.zeros(3)][:, None]
    probability = np.linspace(1, 0, positives + 3)[:, None]
    assert metrics.average_precision_score(truth, probability) > 1, "by rounding"
    told, means, _ = records(
        ["effusion"],
        truth,
        probability,
        probability > 0.5,
        [Threshold()],
        by_threshold=True,
        subjects=range(len(truth)),
        seed=0,
        share_cases=True,
    )
    assert means["auroc"] == means["auprc"] == told["effusion"].scores["auprc"] == 1


def test_unknown_cases_count_for_nothing() -> None:
    truth, value = made(60)
    more_truth, more = np.append(truth, [np.nan] * 7), np.append(value, RNG(3).random(7))
    one, two = (scores_of(t, v, v >= 0.5, v >= 0.7) for t, v in ((truth, value), (more_truth, more)))
    assert one == two
    assert choose(truth, value, specificity=0.9) == choose(more_truth, more, specificity=0.9)


@pytest.mark.parametrize("only", [0.0, 1.0])
def test_a_class_of_one_kind_of_cases_has_no_scores_and_no_chosen_threshold(only: float) -> None:
    truth, value = np.full(30, only), RNG(0).random(30)
    assert scores_of(truth, value, value > 0.5, None) == {}
    chosen = choose(truth, value, specificity=0.9)
    assert (chosen.decision, chosen.chosen) == (0.5, False)
    assert (chosen.specific is None) == bool(only)
    told, means, ends = records(
        ["x", "y"],
        np.stack([truth, made(30)[0]], 1),
        np.stack([value, value], 1),
        np.stack([value, value], 1) > 0.5,
        [chosen, Threshold()],
        by_threshold=True,
        subjects=range(30),
        seed=0,
        share_cases=True,
    )
    assert told["x"].scores == {} and told["x"].roc is None and told["x"].positives + told["x"].negatives == 30
    assert means == {name: value for name, value in told["y"].scores.items()}, "the average is over the other class"
    assert ends == told["y"].intervals


def test_thresholds_are_the_best_of_the_grid() -> None:
    truth, value = made(300, shift=2)
    chosen = choose(truth, value, specificity=0.9)
    balanced = [metrics.balanced_accuracy_score(truth, value >= threshold) for threshold in GRID]
    assert metrics.balanced_accuracy_score(truth, value >= chosen.decision) == max(balanced) and chosen.chosen
    assert chosen.specific is not None and (value[truth == 0] < chosen.specific).mean() >= 0.9
    lower = GRID[np.flatnonzero(chosen.specific == GRID)[0] - 1]
    assert (value[truth == 0] < lower).mean() < 0.9


def test_intervals_draw_subjects() -> None:
    """Copies of every case, as of the same subject, tell nothing new; as of other subjects they would."""
    truth, value = made(60)
    kind = dict(seed=0)
    columns = [np.stack([each] * 2, 1) for each in (truth, value)]
    alone, average = intervals(*columns, columns[1] > 0.5, [None, None], subjects=range(60), **kind)
    twice = [np.concatenate([each, each]) for each in columns]
    copied, _ = intervals(*twice, twice[1] > 0.5, [None, None], subjects=[*range(60)] * 2, **kind)
    narrow, _ = intervals(*twice, twice[1] > 0.5, [None, None], subjects=range(120), **kind)
    assert copied[0]["auroc"] == pytest.approx(alone[0]["auroc"]) and average == alone[0] == alone[1]
    assert np.ptp(narrow[0]["auroc"]) < 0.85 * np.ptp(alone[0]["auroc"])
    low, high = alone[0]["auroc"]
    assert low < metrics.roc_auc_score(truth, value) < high


def test_few_cases_of_a_kind_tell_less() -> None:
    truth, value = np.array([1.0] * 4 + [0.0] * 40), RNG(0).random(44)
    given = (["x"], truth[:, None], value[:, None], value[:, None] > 0.5, [Threshold()])
    told = {
        share: records(*given, by_threshold=True, subjects=range(44), seed=0, share_cases=share)[0]["x"]
        for share in (True, False)
    }
    assert told[True].roc and told[True].calibration and told[True].intervals
    assert told[False].roc is None and told[False].calibration is None and told[False].intervals == {}
    assert told[False].scores == told[True].scores and told[False].positives == 4


def test_delong_agrees_with_scikit_learn_and_the_bootstrap() -> None:
    truth, a = made(200, shift=1.2)
    b = a + RNG(5).normal(scale=0.15, size=200)
    has = truth == 1
    areas = [metrics.roc_auc_score(has, value) for value in (a, b)]
    drawn = [
        weighted(truth, value, has, None, RNG(11).multinomial(200, np.full(200, 1 / 200), size=4000).astype(float))
        for value in (a, b)
    ]
    for value, expected, draws in zip((a, b), areas, drawn, strict=True):
        v10, v01 = components(has, value)
        assert v10.mean() == pytest.approx(expected) and v01.mean() == pytest.approx(expected)
        estimate = area(has, value)
        assert estimate is not None and estimate.value == pytest.approx(expected)
        assert estimate.error == pytest.approx(draws["auroc"].std(), rel=0.05)
    test = difference(has, a, b)
    assert test is not None and test.value == pytest.approx(areas[0] - areas[1])
    deviation = (drawn[0]["auroc"] - drawn[1]["auroc"]).std()
    from scipy.stats import norm

    assert test.p == pytest.approx(2 * norm.sf(abs(areas[0] - areas[1]) / deviation), abs=0.02)
    swapped, same = difference(has, b, a), difference(has, a, a**3)
    assert swapped is not None and swapped.p == pytest.approx(test.p) and same is not None and same.p == 1.0
    assert difference(has[:1], a[:1], b[:1]) is None and area(has[:1], a[:1]) is None


def test_kappa_of_a_bootstrap_is_scikit_learns() -> None:
    rng = RNG(0)
    truth = rng.integers(0, 4, 90)
    said = np.clip(truth + rng.integers(-1, 2, 90), 0, 3)
    value = kappa(truth, said)
    ends = kappa_interval(truth, said, subjects=range(90), seed=0)
    assert value == pytest.approx(metrics.cohen_kappa_score(truth, said, weights="quadratic"))
    assert ends is not None and value is not None and ends[0] < value < ends[1]
    draws = RNG(0).multinomial(90, np.full(90, 1 / 90), size=2000)
    one = [metrics.cohen_kappa_score(truth, said, weights="quadratic", sample_weight=draw) for draw in draws[:200]]
    assert ends[0] < np.mean(one) < ends[1] and np.quantile(one, 0.025) == pytest.approx(ends[0], abs=0.03)
    assert kappa(np.zeros(5), np.zeros(5)) is None and kappa_interval(truth, said, subjects=[0] * 90, seed=0) is None
