"""Which tasks take cases without their structure: by ``data.empty``, or if all classes are lesions by their codes."""

from __future__ import annotations

from typing import Any

import pytest

from fedshift.schema.codes import parse_codes, takes_empty

LESION = [49755003, "SCT", "Morphologically Abnormal Structure"]
FORMERLY = ["M-01000", "SRT", "Morphologically Altered Structure"]
ORGAN = [123037004, "SCT", "Anatomical Structure"]


@pytest.mark.parametrize(
    ("categories", "empty", "taken"),
    [
        ([LESION], None, True),
        ([FORMERLY], None, True),
        ([LESION, LESION], None, True),
        ([ORGAN], None, False),
        ([ORGAN, LESION], None, False),
        ([], None, False),
        ([LESION], False, False),
        ([ORGAN], True, True),
        ([], True, True),
    ],
    ids=str,
)
def test_lesions_may_be_missing_and_organs_only_if_it_is_said(
    categories: list[list[Any]], empty: bool | None, taken: bool
) -> None:
    classes = ["background", *(f"class {number}" for number in range(max(len(categories), 1)))]
    raw = {
        name: {"category": category, "type": [number, "SCT", name]}
        for number, (name, category) in enumerate(zip(classes[1:], categories, strict=False), start=1)
    }
    codes = parse_codes({"codes": raw}, where="test")
    assert takes_empty({} if empty is None else {"empty": empty}, classes, codes) is taken
