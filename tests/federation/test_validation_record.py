"""The server's record of a validation: what is refused, and what is pooled."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from fedshift.federation.validation_record import ValidationAnswers, checked_answer, pooled
from fedshift.schema.evaluation import Distribution
from fedshift.schema.validation import ModelRef, ModelScores, PairedDifference, SiteValidation, ValidationSpec
from fedshift.tasks.evaluation.random_effects import random_effects

SPEC = ValidationSpec(
    validation="v",
    task="organ",
    dataset="organ",
    sites=("A", "B", "C"),
    models=tuple(ModelRef(name=name, sha256="0" * 64) for name in ("old", "new")),
)


def model(mean: float, *, n: int = 10, difference: float | None = None, std: float | None = 0.1) -> ModelScores:
    spread = Distribution(n=n, mean=mean)
    against = {}
    if difference is not None:
        against["dice"] = PairedDifference(difference=Distribution(n=n, mean=difference, std=std))
    return ModelScores(scores={"dice": spread}, strata={"sex": {"F": {"dice": spread}}}, against_first=against)


def told(site: str, old: float, new: float, *, n: int = 10, std: float | None = 0.1, **changes: Any) -> SiteValidation:
    fields: dict[str, Any] = {
        "site": site,
        "dataset": "organ",
        "kind": "patients",
        "manifest_sha256": "a" * 64,
        "models": {"old": model(old, n=n), "new": model(new, n=n, difference=new - old, std=std)},
    }
    return SiteValidation(**(fields | changes))


def answers() -> ValidationAnswers:
    return ValidationAnswers(SPEC, classes=["organ"], metric="dice", models={})


def test_sites_are_pooled_by_cases_and_by_random_effects() -> None:
    sites = {"A": told("A", 0.7, 0.8, n=30), "B": told("B", 0.6, 0.64, n=10)}
    whole = pooled(sites, "new")
    assert whole.scores["dice"].mean == pytest.approx((30 * 0.8 + 10 * 0.64) / 40)
    assert (whole.scores["dice"].of_sites, whole.scores["dice"].n) == (pytest.approx(0.72), 40)
    assert whole.strata["sex"]["F"]["dice"] == whole.scores["dice"]
    against, effect = whole.against_first["dice"], random_effects([0.1, 0.04], [0.1 / 30**0.5, 0.1 / 10**0.5])
    assert (against.effect, against.interval, against.sites) == (
        pytest.approx(effect.mean),
        pytest.approx(effect.interval),
        2,
    )
    assert against.mean == pytest.approx((30 * 0.1 + 10 * 0.04) / 40)


def test_a_site_that_tells_no_deviation_counts_in_the_mean_alone() -> None:
    sites = {"A": told("A", 0.7, 0.8), "B": told("B", 0.7, 0.9, n=4, std=None)}
    against = pooled(sites, "new").against_first["dice"]
    assert (against.sites, against.n, against.effect, against.interval) == (1, 14, None, None)


def test_the_silent_and_the_refused_are_named() -> None:
    collected = answers()
    assert collected.add("A", told("A", 0.7, 0.8))
    assert not collected.refuse("B", "it has\nno data")
    record = collected.record()
    assert set(record.sites) == {"A"}
    assert record.refused == {"B": "it has no data", "C": "it did not answer in time"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"site": "B"}, "in the name of B"),
        ({"dataset": "other"}, "data set other"),
        ({"models": {"old": model(0.5)}}, "each model"),
        ({"models": {"old": model(1.5), "new": model(0.5)}}, "lies between 0 and 1"),
        (
            {"models": {"old": ModelScores(scores={"made_up": Distribution(n=5, mean=0)})}, "refused": {"new": "no"}},
            "made_up",
        ),
    ],
)
def test_an_answer_that_is_none_is_refused(changes: dict[str, Any], reason: str) -> None:
    collected = answers()
    assert not collected.add("A", told(**{"site": "A", "old": 0.7, "new": 0.8, **changes}))
    assert reason in collected.refused["A"]


def test_a_site_answers_once() -> None:
    collected = answers()
    assert collected.add("A", told("A", 0.7, 0.8)) and not collected.add("A", told("A", 0.1, 0.1))
    assert collected.record().sites["A"].models["old"].scores["dice"].mean == 0.7


def test_simulated_data_are_not_mixed_with_others() -> None:
    collected = answers()
    collected.add("A", told("A", 0.7, 0.8))
    collected.add("B", told("B", 0.7, 0.8, kind="phantom"))
    record = collected.record()
    assert set(record.sites) == {"A"} and "simulated" in record.refused["B"]
    assert record.pooled["new"].scores["dice"].sites == 1


def test_two_models_are_over_the_same_cases() -> None:
    """Or the one's number of cases less the other's would tell of a single case."""
    with pytest.raises(ValidationError, match="other cases for one model"):
        told("A", 0.7, 0.8, models={"old": model(0.7, n=10), "new": model(0.8, n=9, difference=0.1)})


def test_what_is_no_answer_is_a_sentence() -> None:
    assert "no validation" in str(checked_answer({"site": "A"}))
