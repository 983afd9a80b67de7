"""Which sites a model's weights come from, through any number of models."""

from __future__ import annotations

from typing import Any

import pytest
from errors import raises

from fedshift.schema.results import MODEL_FORMAT, joined, lineage_of


def header(**changes: Any) -> dict[str, Any]:
    content = {
        "format": MODEL_FORMAT,
        "job": {"task": {"dataset": "prostate"}},
        "sites": ["HK", "UCL"],
        "lineage": {"prostate": ["BMC", "HK"], "pacs": ["sketch"]},
    }
    return {key: value for key, value in (content | changes).items() if value is not None}


def test_a_model_comes_from_its_own_sites_and_from_those_before() -> None:
    assert lineage_of(header(), where="m.pt") == {"prostate": ("BMC", "HK", "UCL"), "pacs": ("sketch",)}
    assert lineage_of(header(lineage={}), where="m.pt") == {"prostate": ("HK", "UCL")}
    assert lineage_of(header(lineage={}, sites=[]), where="m.pt") == {}


@pytest.mark.parametrize("content", [{"conv1.weight": 1}, {"format": "another"}, [1], None])
def test_other_files_come_from_no_site(content: object) -> None:
    assert lineage_of(content, where="resnet18.pth") == {}


@pytest.mark.parametrize(
    "changes",
    [{"sites": 3}, {"sites": None}, {"lineage": None}, {"lineage": {"prostate": "HK"}}, {"sites": [1]}, {"job": {}}],
)
def test_a_model_that_does_not_say_is_refused(changes: dict[str, Any]) -> None:
    with raises("other-version", naming="m.pt"):
        lineage_of(header(**changes), where="m.pt")


def test_sites_of_other_data_sets_are_others() -> None:
    assert joined({"cifar10": ("site_000",)}, "emnist", ["site_000"]) == {
        "cifar10": ("site_000",),
        "emnist": ("site_000",),
    }
    assert joined({}, "emnist", []) == {}
