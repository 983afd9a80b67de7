"""Distances between sites: zero for equal ones, in units that mean something for others, and what they suggest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from surveysites import survey_site

from fedshift.data.fingerprint import counts_only, fingerprint
from fedshift.data.shift import ASPECTS, CONTRAST, EXTENT, INTENSITY, SHAPE, SPACING, VOLUME, ShiftMap, shift_map
from fedshift.methods import method_set
from fedshift.schema.fingerprint import Fingerprint
from fedshift_survey.suggestions import APPEARANCE, UNEQUAL, suggestions

SEEDS = (1, 2, 3, 4)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Fingerprint]:
    root = tmp_path_factory.mktemp("sites")
    return {
        "A": fingerprint(survey_site(root, "A", SEEDS)),
        "same": fingerprint(survey_site(root, "same", SEEDS)),
        "bright": fingerprint(survey_site(root, "bright", SEEDS, gain=20.0)),
        "coarse": fingerprint(survey_site(root, "coarse", SEEDS, spacing=(6.0, 1.6, 1.6))),
        "few": counts_only(survey_site(root, "few", (9,)), why="it has fewer cases than its policy wants"),
    }


def between(found: ShiftMap, one: str, other: str) -> dict[str, float | None]:
    return {aspect.key: found.between(aspect, one, other) for aspect in ASPECTS}


def text(found: ShiftMap, told: Sequence[Fingerprint]) -> str:
    return "\n".join(one.text for one in suggestions(found, told))


def test_equal_sites_are_not_apart(sites: dict[str, Fingerprint]) -> None:
    told = [sites["A"], sites["same"]]
    shift = shift_map(told)
    assert all(value == pytest.approx(0) for value in between(shift, "A", "same").values())
    assert shift.overall("A", "same") == pytest.approx(0)
    assert shift.overall("same", "A") == shift.overall("A", "same")
    assert "fedavg is the method to begin with" in text(shift, told)


def test_another_gain_is_gone_once_volumes_are_normalised(sites: dict[str, Fingerprint]) -> None:
    told = [sites["A"], sites["bright"]]
    shift = shift_map(told)
    assert (shift.between(INTENSITY, "A", "bright") or 0) > INTENSITY.large
    for aspect in (SHAPE, CONTRAST, SPACING, VOLUME):
        assert shift.between(aspect, "A", "bright") == pytest.approx(0, abs=1e-3), aspect.key
    assert "normalisation may be all that it takes" in text(shift, told)


def test_voxels_twice_as_long_are_an_octave(sites: dict[str, Fingerprint]) -> None:
    told = [sites["A"], sites["coarse"]]
    shift = shift_map(told)
    assert shift.between(SPACING, "A", "coarse") == pytest.approx(1, abs=0.03)
    assert shift.between(EXTENT, "A", "coarse") == pytest.approx(1, abs=0.03)
    assert shift.between(VOLUME, "A", "coarse") == pytest.approx(3, abs=0.3), "eight times the volume"
    assert shift.between(INTENSITY, "A", "coarse") == pytest.approx(0)
    sentences = text(shift, told)
    assert "no method here was made for what resampling leaves" in sentences
    assert "a shift of what is labelled" in sentences
    assert "Few cases at A (4), coarse (4)" in sentences


def test_a_site_that_tells_counts_only_is_not_on_the_map(sites: dict[str, Fingerprint]) -> None:
    told = list(sites.values())
    shift = shift_map(told, placed=["coarse"])
    assert shift.sites == ("A", "same", "bright", "coarse") and shift.silent == ("few",)
    assert shift.farthest == ("bright", "coarse")
    sentences = text(shift, told)
    assert "few is not on the map: it has fewer cases" in sentences
    assert "not in the plan: coarse" in sentences


def test_one_site_alone_has_no_map(sites: dict[str, Fingerprint]) -> None:
    shift = shift_map([sites["A"], sites["few"]])
    assert shift.farthest is None and shift.largest(SHAPE) is None
    assert "not two sites" in text(shift, [sites["A"]])


def test_what_is_not_known_is_no_distance(tmp_path: Path, sites: dict[str, Fingerprint]) -> None:
    lost = fingerprint(survey_site(tmp_path, "lost", SEEDS, spacing=(1.0, 1.0, 1.0)))
    shift = shift_map([sites["A"], lost])
    assert shift.between(SPACING, "A", "lost") is None and shift.between(VOLUME, "A", "lost") is None
    assert shift.overall("A", "lost") == pytest.approx(0)


def test_a_shift_of_appearance_names_methods_and_where_their_results_are(sites: dict[str, Fingerprint]) -> None:
    told = [sites["A"], sites["same"]]
    shift = shift_map(told)
    apart = replace(shift, distances={**shift.distances, SHAPE.key: {("A", "same"): 1.0}})
    sentences = text(apart, told)
    assert ", ".join(APPEARANCE) in sentences
    assert "in fedshift's documentation, page Results." in sentences, "a reader of the page has no folder docs/"


def test_the_methods_that_are_named_exist() -> None:
    assert {*APPEARANCE, *UNEQUAL, "fedavg"} <= set(method_set.available())
