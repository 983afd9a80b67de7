"""Refused settings: the sentence names the key, the value and the nearest that would do."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import Field, ValidationError, field_validator

from fedshift.schema.errors import ConfigError
from fedshift.schema.strict import Strict, closest, first_fault


class Inner(Strict):
    number: int = Field(default=1, ge=1)


class Example(Strict):
    mode: Literal["mean", "median"] = "mean"
    inner: Inner = Inner()
    path: dict[str, str] = {}
    sites: tuple[str, ...] = ()

    @field_validator("sites")
    @classmethod
    def _once(cls, sites: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(sites)) < len(sites):
            raise ValueError("HK is named twice")
        return sites


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"mode": "medain"}, "'mode' input should be 'mean' or 'median', not 'medain'; did you mean 'median'?"),
        ({"inner": {"number": -1}}, "'inner.number' input should be greater than or equal to 1, not -1"),
        ({"inner": {"number": "two"}}, "unable to parse string as an integer, not 'two'"),
        ({"inner": {"numbr": 2}}, "unknown key 'inner.numbr'; did you mean 'number'? Known: number"),
        ({"sites": ["HK", "HK"]}, "file: 'sites': HK is named twice"),
    ],
)
def test_a_refused_value_is_repeated_with_the_nearest_one(raw: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Example.parse(raw, where="file")
    assert str(error.value).startswith("file: ") and message in str(error.value)


def test_a_text_that_may_be_a_path_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as error:
        Example.parse({"path": "/data/patients"}, where="file")
    assert "/data" not in str(error.value)


def test_the_nearest_name_is_found_in_any_case() -> None:
    assert closest("FEDFAA", ["fedrdn", "fedfa"]) == "fedfa"
    assert closest("zzz", ["fedrdn", "fedfa"]) is None


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"sites": ["HK", "HK"]}, "sites: HK is named twice"),
        ({"inner": {"number": "two"}}, "inner.number: Input should be a valid integer, unable to parse string"),
        ([], "Input should be a valid dictionary"),
    ],
)
def test_a_file_that_is_refused_says_where_and_why(raw: Any, said: str) -> None:
    with pytest.raises(ValidationError) as error:
        Example.model_validate(raw)
    assert first_fault(error.value).startswith(said)
