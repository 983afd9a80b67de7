"""Sums of sites' fingerprints are those of one folder with all their cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from surveysites import survey_site

from fedshift.data.fingerprint import fingerprint
from fedshift.data.tallies import merge, plain, spread
from fedshift.schema.errors import ConfigError
from fedshift.schema.fingerprint import ALL


def flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for key, inner in value.items() for k, v in flat(inner, f"{path}/{key}").items()}
    if isinstance(value, list | tuple):
        return {k: v for key, inner in enumerate(value) for k, v in flat(inner, f"{path}/{key}").items()}
    return {path: value}


def test_the_sum_is_that_of_the_pooled_cases(tmp_path: Path) -> None:
    sequences = ("T2", "ADC")
    one = fingerprint(survey_site(tmp_path, "A", (1, 2, 3), sequences=sequences))
    other = fingerprint(survey_site(tmp_path, "B", (4, 5, 6, 7), sequences=sequences))
    pooled = fingerprint(survey_site(tmp_path, "all_sites", (1, 2, 3, 4, 5, 6, 7), sequences=sequences))
    merged = flat(merge([one, other]).model_dump())
    expected = flat(pooled.model_dump())
    assert merged.keys() == expected.keys()
    for key, value in expected.items():
        assert merged[key] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), key


def test_the_variance_between_sites_is_not_lost(tmp_path: Path) -> None:
    dark = fingerprint(survey_site(tmp_path, "A", (1, 2, 3), gain=1.0))
    bright = fingerprint(survey_site(tmp_path, "B", (4, 5, 6), gain=10.0))
    both = spread(merge([dark, bright]).intensities["image"][ALL])
    alone = [spread(one.intensities["image"][ALL]).deviation for one in (dark, bright)]
    mean_of_deviations = sum(alone) / 2
    assert both.deviation > 2.5 * mean_of_deviations, "what an average of the sites' deviations would have said"
    assert both.between > 400


def test_sites_that_cannot_be_compared_are_named(tmp_path: Path) -> None:
    one = fingerprint(survey_site(tmp_path, "A", (1, 2, 3)))
    other = fingerprint(survey_site(tmp_path, "B", (1, 2, 3), sequences=("T2", "ADC")))
    renamed = one.model_copy(update={"site": "C", "classes": ("background", "core", "edge")})
    real = one.model_copy(update={"site": "C", "kind": "patients"})
    for answers, reason in (
        ([one, other], "site A has the sequences image, site B has T2, ADC: prepare"),
        ([one, renamed], "site C has background, core, edge"),
        ([one, real], "simulated and real"),
        ([], "no site answered"),
    ):
        with pytest.raises(ConfigError, match=reason):
            merge(answers)


def test_a_class_that_one_site_does_not_outline_is_counted_over_the_others(tmp_path: Path) -> None:
    full = fingerprint(survey_site(tmp_path, "A", (1, 2, 3)))
    half = fingerprint(survey_site(tmp_path, "B", (4, 5, 6), annotated=("core",)))
    both = merge([full, half])
    assert (both.volumes["core"].surveyed, both.volumes["rim"].surveyed) == (6, 3)
    assert both.annotated is None, "all classes are outlined somewhere"
    assert merge([half]).annotated == ("core",)


@pytest.mark.parametrize(
    ("value", "text"),
    [(24870.3, "24,870"), (999.96, "1,000"), (-3.14159, "-3.142"), (0.012344, "0.01234"), (0.5, "0.5"), (0.0, "0")],
)
def test_intensities_are_written_without_an_exponent(value: float, text: str) -> None:
    assert plain(value) == text
