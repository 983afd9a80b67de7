"""Two models on the same cases, against numbers from textbooks and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedshift.schema.paired import LocalComparison
from fedshift.tasks.evaluation.paired import compare, needed_cases, paired_p, rounded_up


def told(federated: list[float], local: list[float], *, share: bool = True, is_binary: bool = False) -> LocalComparison:
    pair = np.array(federated), np.array(local)
    return compare(*pair, score="dice", is_binary=is_binary, round_=3, seed=1, share_cases=share)


def test_six_cases_of_one_sign_are_the_fewest_that_can_tell() -> None:
    local = [0.70, 0.72, 0.65, 0.80, 0.75, 0.60]
    higher = [value + 0.01 * (number + 1) for number, value in enumerate(local)]
    six, five = told(higher, local), told(higher[:5], local[:5])
    assert six.verdict == "better" and six.p == pytest.approx(2 / 2**6) and six.test == "wilcoxon"
    assert told(local, higher).verdict == "worse" and six.needed is None
    assert five.verdict == "open" and five.p is None and five.interval is not None and five.needed is not None
    assert six.difference == pytest.approx(0.035) and six.cases is not None and six.cases[0] == (higher[0], 0.70)


def test_a_failed_case_that_turns_the_mean_leaves_it_open() -> None:
    # Ranks say better, the mean says worse: one case of twelve failed.
    local = [0.7 + 0.01 * number for number in range(12)]
    federated = [value + 0.002 + 0.0001 * number for number, value in enumerate(local)]
    federated[5] = 0.0
    comparison = told(federated, local)
    assert (
        comparison.p is not None and comparison.p < 0.05 and comparison.difference < 0 and comparison.verdict == "open"
    )


def test_scans_of_one_subject_count_as_one() -> None:
    # Twelve cases of one sign would tell (p = 2 / 2^12); three scans each of four subjects cannot.
    local, federated = np.full(12, 0.5), 0.6 + 0.01 * np.arange(12)
    options = {"score": "dice", "is_binary": False, "round_": 3, "seed": 1, "share_cases": True}
    apart = compare(federated, local, subjects=[f"s{number}" for number in range(12)], **options)
    assert apart == compare(federated, local, **options) and apart.verdict == "better" and apart.subjects is None
    four = compare(federated, local, subjects=[f"s{number // 3}" for number in range(12)], **options)
    assert (four.n, four.subjects, four.p, four.interval, four.verdict) == (12, 4, None, None, "open")
    # Of six subjects the test is of each one's mean difference, in whatever order the cases are.
    subjects = ["b", "a", "c", "a", "e", "b", "d", "c", "e", "d", "f", "f"]
    six = compare(federated, local, subjects=subjects, **options)
    means = [np.mean([f - 0.5 for f, whose in zip(federated, subjects, strict=True) if whose == s]) for s in "abcdef"]
    assert six.subjects == 6 and six.p == paired_p(np.array(means), is_binary=False) == pytest.approx(2 / 2**6)
    assert six.difference == pytest.approx(np.mean(federated - 0.5))


def test_equal_models_and_few_cases() -> None:
    same = told([0.5] * 7, [0.5] * 7)
    assert (same.p, same.verdict, same.needed, same.difference) == (1.0, "open", None, 0.0)
    two = told([0.9, 0.8], [0.5, 0.7])
    assert (two.p, two.interval, two.needed) == (None, None, None)
    one = told([0.9], [0.5])
    assert one.std is None and one.n == 1


def test_mcnemar_is_exact() -> None:
    # 8 pairs of which the first model alone is right, 1 of which the second is: p = 2 (1 + 9) / 2^9.
    federated = [1.0] * 8 + [0.0] + [1.0] * 11
    local = [0.0] * 8 + [1.0] + [1.0] * 11
    comparison = told(federated, local, is_binary=True)
    assert comparison.test == "mcnemar" and comparison.p == pytest.approx(20 / 512) and comparison.verdict == "better"
    assert paired_p(np.array([1.0, -1.0, 0, 0, 0, 0]), is_binary=True) == 1.0


def test_needed_cases_are_those_of_the_formulas() -> None:
    # d = 1, s = 2: (1.95996 + 0.84162)^2 * 4 = 31.4; Connor's: psi = 0.4, d = 0.2: 77 pairs.
    differences = np.array([-1.0, 3.0, -1.0, 3.0]) * np.sqrt(3) / 2
    differences = differences - differences.mean() + 1
    assert differences.std(ddof=1) == pytest.approx(2)
    assert needed_cases(differences, is_binary=False) == 50
    pictures = np.array([1.0] * 3 + [-1.0] + [0.0] * 6)
    assert needed_cases(pictures, is_binary=True) == 100
    assert needed_cases(differences[:2], is_binary=False) is None
    assert [rounded_up(value) for value in (6, 7, 7.1, 10, 11, 31.4, 77, 150, 701)] == [
        *(7, 7, 10, 10, 15, 50, 100, 150, 1000)
    ]
    tiny = np.array([1e-9, -1.0, 1.0, 1e-9])
    assert needed_cases(tiny, is_binary=False) is None


def test_without_shared_cases_few_pairs_tell_their_means_and_the_test_only() -> None:
    rng = np.random.default_rng(0)
    local = rng.uniform(0.5, 0.8, 12).tolist()
    federated = [value + rng.normal(0.01, 0.05) for value in local]
    many, few = (told(federated[:n], local[:n], share=False) for n in (12, 9))
    assert many.cases is None and many.std is not None and many.interval is not None
    differences = {round(a - b, 12) for a, b in zip(federated, local, strict=True)}
    assert many.quantiles is not None and not differences & {round(value, 12) for value in many.quantiles}
    assert few.interval is few.std is few.quantiles is few.cases is None and few.p is not None
    assert told(federated, local) == told(federated, local)


def test_as_many_cases_as_could_not_tell_are_never_enough() -> None:
    clear = np.array([1.0, 1.1] * 6)
    assert needed_cases(clear, is_binary=False) == 15 and needed_cases(clear[:3], is_binary=False) == 7


def test_dice_of_0_and_1_is_not_taken_for_right_and_wrong() -> None:
    assert told([1.0] * 6 + [0.0], [0.0] * 7).test == "wilcoxon"
