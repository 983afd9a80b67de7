"""Codes of classes, as a task gives them."""

from __future__ import annotations

from typing import Any

import pytest
from errors import raises

from fedshift.federation.resolve import resolve
from fedshift.schema.codes import ClassCodes, parse_codes, plain_name, takes_empty
from fedshift.schema.job import JobSpec

LESION = [49755003, "SCT", "Morphologically Abnormal Structure"]
FORMERLY = ["M-01000", "SRT", "Morphologically Altered Structure"]
ORGAN = [123037004, "SCT", "Anatomical Structure"]
PROSTATE = {"category": [91723000, "SCT", "Anatomical Structure"], "type": [41216001, "SCT", "Prostate"]}


def test_codes_are_part_of_the_job_and_come_back_as_they_were_written() -> None:
    job = resolve("prostate", "fedavg")
    assert job.dump()["task"]["codes"] == {
        "prostate": {
            "category": ["91723000", "SCT", "Anatomical Structure"],
            "type": ["41216001", "SCT", "Prostate"],
        }
    }
    assert JobSpec.parse(job.dump(), where="job") == job
    assert ClassCodes.parse(PROSTATE, where="x").same_as == (("41216001", "SCT"), None)
    assert plain_name("Whole_Gland ") == plain_name("whole gland") != plain_name("gland")


@pytest.mark.parametrize(
    ("change", "code", "naming"),
    [
        ({"type": [1, "SCT"]}, "invalid-value", "type"),
        ({"type": [1, "SCT", "a\\b"]}, "invalid-value", "type.meaning"),
        ({"type": [12345678901234567, "SCT", "a"]}, "invalid-value", "type.value"),
        ({"modifiers": [1, "SCT", "a"]}, "unknown-key", "'modifier'"),
    ],
)
def test_what_is_no_code_is_refused(change: dict[str, Any], code: str, naming: str) -> None:
    with raises(code, naming=("task.yaml", "prostate", naming)):
        parse_codes({"codes": {"prostate": PROSTATE | change}}, where="task.yaml")


def test_codes_are_of_all_classes_and_differ() -> None:
    raw = resolve("hippocampus", "fedavg").dump()
    both = raw["task"]["codes"]
    for codes, naming in (
        ({"Anterior": both["Anterior"]}, "'Posterior'"),
        (both | {"Anteroir": both["Anterior"]}, ("'Anteroir'", "'Anterior'")),
        ({"Anterior": both["Anterior"], "Posterior": both["Anterior"]}, ("'Anterior'", "'Posterior'")),
    ):
        with raises("invalid-value", naming=naming):
            JobSpec.parse(raw | {"task": raw["task"] | {"codes": codes}}, where="job")


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
