"""Keys, types, defaults and meanings of settings models."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import Field

from fedshift.schema.job import JobSpec
from fedshift.schema.settings import meanings, settings
from fedshift.schema.strict import Strict


class Inner(Strict):
    """An inner model."""

    size: int = Field(default=8, ge=1)


class Outer(Strict):
    """Settings of a test.

    ``lr``: the step's length (`fedshift.schema.job`). It falls. ``name: b`` is the second; ``pair`` and ``deep`` come
    after it.

    Of ``lr`` more is said where it isn't the subject.
    """

    lr: float = Field(gt=0, le=1)
    name: Literal["a", "b"] = "a"
    pair: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]] | None = None
    many: tuple[int, ...] = (1, 2)
    deep: Inner | None = None
    inner: Inner = Inner()


def test_a_meaning_is_what_begins_with_the_key_or_else_what_mentions_it() -> None:
    after = "`pair` and `deep` come after it."
    assert meanings(Outer) == {
        "lr": "The step's length. It falls.",
        "name": "`name: b` is the second.",
        "pair": after,
        "deep": after,
    }


@pytest.mark.parametrize(
    ("key", "type_", "default"),
    [
        ("lr", "number, above 0, up to 1", None),
        ("name", "`a` or `b`", "a"),
        ("pair", "list of 2 numbers (from 0) or null", "null"),
        ("many", "list of whole numbers", "[1, 2]"),
        ("deep", "mapping or null", "null"),
        ("deep.size", "whole number, from 1", "8"),
        ("inner.size", "whole number, from 1", "8"),
    ],
)
def test_types_and_defaults_are_in_words(key: str, type_: str, default: str | None) -> None:
    (found,) = (setting for setting in settings(Outer) if setting.key == key)
    assert (found.type, found.default) == (type_, default)


def test_a_model_that_only_groups_keys_has_no_line_of_its_own() -> None:
    assert "inner" not in [setting.key for setting in settings(Outer)]
    assert next(settings(Inner, "task.inner.")).key == "task.inner.size"


def test_every_key_of_a_job_has_a_meaning() -> None:
    assert [setting.key for setting in settings(JobSpec) if not setting.meaning] == []
