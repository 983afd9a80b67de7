"""The tables of what leaves a site.

That what goes over the wire is what the methods declare is a check of ``tests/methods/test_every_method.py``.
"""

from __future__ import annotations

import pytest

from fedshift.reporting.transmitted_data import ROWS_OF_A_SURVEY, ROWS_OF_A_VALIDATION, transmitted_data_page
from fedshift.schema.fingerprint import Fingerprint
from fedshift.schema.validation import ModelScores, SiteValidation


@pytest.fixture(scope="module")
def page() -> str:
    return transmitted_data_page()


def test_the_table_of_a_survey_has_every_field_of_a_sites_answer() -> None:
    told = [name for names in ROWS_OF_A_SURVEY for name in names.split(", ")]
    assert sorted(told) == sorted(Fingerprint.model_fields)


def test_the_table_of_a_validation_has_every_field_of_a_sites_answer(page: str) -> None:
    told = [name for names in ROWS_OF_A_VALIDATION for name in names.removeprefix("models: ").split(", ")]
    assert sorted(told) == sorted({*SiteValidation.model_fields, *ModelScores.model_fields} - {"models"})
    assert "## A validation" in page


def test_methods_that_share_statistics_say_so(page: str) -> None:
    assert "| `mean.5` | 256 float32 | 1024 | every round |" in page
    assert "| `std` | 3 float64 | 24 | once |" in page
    assert "every site's `mean`, without names" in page
    fedavg = page.partition("\n## fedavg\n")[2].partition("\n## ")[0]
    assert "(unet of task prostate): 118 tensors" in fedavg
