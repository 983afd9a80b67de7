"""What a site tells a survey under its policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from errors import raises
from surveysites import survey_site

from fedshift.data.fingerprint import fingerprint
from fedshift.federation.site.privacy.ledger import Ledger
from fedshift.federation.survey_answer import answer
from fedshift.schema.fingerprint import ALL, Fingerprint
from fedshift.schema.policy import Policy

COUNTS = {"site", "dataset", "kind", "simulated", "cases", "classes", "sequences", "annotated", "withheld"}


def told_beyond_counts(told: Fingerprint) -> set[str]:
    empty = Fingerprint.model_construct(**{key: field.get_default() for key, field in Fingerprint.model_fields.items()})
    return {key for key in Fingerprint.model_fields if getattr(told, key) != getattr(empty, key)} - COUNTS


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (Policy(survey_cases=5), "fewer cases than its policy wants"),
        (Policy(min_cases=5), "fewer cases than its policy wants"),
        (Policy(allow=("loss",)), "does not allow statistics"),
        (Policy.parse({"weights": {"epsilon": 8.0, "clip": 1.0}}, where="test"), "noise on the network"),
    ],
)
def test_a_policy_can_leave_counts_only(policy: Policy, why: str, tmp_path: Path) -> None:
    told = answer(survey_site(tmp_path, "folder", (1, 2, 3, 4)), "A", policy)
    assert (told.site, told.total) == ("A", 4)
    assert why in told.withheld
    assert told_beyond_counts(told) == set()


def test_two_cases_tell_nothing_by_default(tmp_path: Path) -> None:
    assert answer(survey_site(tmp_path, "A", (1, 2)), "A").withheld
    assert not answer(survey_site(tmp_path / "more", "A", (1, 2, 3)), "A").withheld


def test_the_scans_of_a_subject_are_one_case(tmp_path: Path) -> None:
    """Four scans of one person are not the four cases that a policy wants, and noise hides all of them together."""
    ids = [*(f"sub-1_ses-{number}" for number in range(4)), "sub-2", "sub-3", "sub-4"]
    few = survey_site(tmp_path / "few", "A", range(1, 6), ids=ids[:5])
    assert "privacy.survey_cases" in answer(few, "A").withheld
    lacking = {number: ["core"] for number in (5, 6, 7)}  # what remains is of one person
    many = answer(survey_site(tmp_path, "A", range(1, 8), ids=ids, lacking=lacking), "A")
    assert not many.withheld and "core" not in many.intensities["image"] and many.volumes["core"].values == ()
    policy = Policy.parse({"statistics": {"multiplier": 0.5, "clip": 1.0}}, where="test")
    assert answer(tmp_path / "organ" / "A", "A", policy).noise == pytest.approx(4 * 0.5 * np.sqrt(2))


def test_a_site_that_wants_encryption_does_not_answer(tmp_path: Path) -> None:
    with raises("policy-encryption", naming="site A"):
        answer(survey_site(tmp_path, "A", (1, 2, 3)), "A", Policy(encryption="required"))


def test_scanners_are_told_only_if_the_policy_says_so(tmp_path: Path) -> None:
    folder = survey_site(tmp_path, "A", (1, 2, 3), preparation={"scanner": ["Acme 3T", "Acme 3T", "Zeta 1.5T"]})
    assert answer(folder, "A").scanners is None
    assert answer(folder, "A", Policy(scanners=True)).scanners == {"Acme 3T": 2, "Zeta 1.5T": 1}


def test_noise_is_on_all_that_leaves_but_counts(tmp_path: Path) -> None:
    folder = survey_site(tmp_path, "A", range(1, 9))
    policy = Policy.parse({"statistics": {"multiplier": 0.5, "clip": 1.0}}, where="test")
    first, second = answer(folder, "A", policy), answer(folder, "A", policy)
    assert told_beyond_counts(first) == {"surveyed", "noise", "intensities"}
    assert set(first.intensities["image"]) == {ALL}
    noisy = first.intensities["image"][ALL]
    assert noisy.values == () and noisy.mean == noisy.square == noisy.normalised_mean == 0
    assert first.noise == pytest.approx(0.5 * np.sqrt(2))
    exact = np.array(fingerprint(folder).intensities["image"][ALL].normalised)
    moved = np.array(noisy.normalised) - exact
    kept = np.array(noisy.normalised) > 0
    assert 0.3 < moved[kept].std() < 1.2
    assert noisy.normalised != second.intensities["image"][ALL].normalised


def test_each_survey_with_noise_is_in_the_ledger_and_none_goes_past_the_budget(tmp_path: Path) -> None:
    folder = survey_site(tmp_path, "A", range(1, 9))
    rules = {"statistics": {"epsilon": 3.0, "clip": 1.0}, "budget": {"epsilon": 4.5}}
    policy = Policy.parse(rules, where="test")
    told = [answer(folder, "A", policy, ledger=tmp_path / "kit") for _ in range(2)]
    account = Ledger(tmp_path / "kit").trusted()
    assert [one.what for one in account.releases] == ["survey", "survey"]
    assert [one.deviation for one in account.releases] == [one.noise for one in told]
    assert account.releases[0].sensitivity == pytest.approx(np.sqrt(2))
    with raises("budget-spent", naming=("survey", "4.5")):
        answer(folder, "A", policy, ledger=tmp_path / "kit")
    only = Policy.parse({"budget": {"epsilon": 4.5}}, where="test")
    assert "privacy.budget" in answer(folder, "A", only).withheld
