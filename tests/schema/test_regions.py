"""Regions of classes: what is refused, the table, and the way back to one class for each voxel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from errors import raises

from fedshift.federation.resolve import resolve
from fedshift.schema.job import JobSpec
from fedshift.schema.regions import make_regions, overlapping
from fedshift.schema.task import TaskSpec

CLASSES = ("background", "edema", "core", "enhancing")
TUMOUR = {"whole": CLASSES[1:], "inner": ("core", "enhancing"), "enhancing": ("enhancing",)}


def task(**changes: Any) -> TaskSpec:
    raw = resolve("hippocampus", "fedavg", checked=False).task.model_dump(mode="json")
    return TaskSpec.parse({**raw, "classes": [*CLASSES], "codes": {}, **changes}, where="task.yaml")


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"regions": {**TUMOUR, "empty": []}}, "empty"),
        ({"regions": {"whole": ["edma", "core"]}}, "did you mean 'edema'"),
        ({"regions": {"whole": ["background", "core"]}}, "background"),
        ({"regions": {**TUMOUR, "twin": ["enhancing", "core"]}}, "twin"),
        ({"regions": TUMOUR, "regions_class_order": ["edema", "core"]}, "2 classes"),
        ({"regions": TUMOUR, "regions_class_order": ["edema", "edema", "enhancing"]}, "inner"),
        (
            {"regions": dict(reversed(TUMOUR.items())), "regions_class_order": ["enhancing", "core", "edema"]},
            "hides",
        ),
        ({"regions_class_order": ["edema"]}, "regions_class_order"),
        ({"overlapping": ["a", "b"]}, "'classes'"),
        ({"classes": [], "overlapping": [*"abcdefghi"]}, "at most 8"),
    ],
)
def test_what_is_no_region_is_refused(changes: dict[str, Any], names: str) -> None:
    with raises("invalid-value", naming=names):
        task(**changes)


def test_each_class_is_read_back_from_its_regions() -> None:
    for order in ((), CLASSES[1:]):
        regions = make_regions(TUMOUR, CLASSES, order)
        assert regions is not None
        assert [regions.written[regions.sets[number]] for number in range(4)] == [0, 1, 2, 3]
        assert regions.written[0b100] == 3 and regions.written[0b010] == 2, "a later region covers what is outside"
    assert regions.sets[255] == 0 and regions.sets[4] == 0


def test_regions_of_any_order_are_read_back_where_no_order_is_asked_for() -> None:
    regions = make_regions(dict(reversed(TUMOUR.items())), CLASSES)
    assert regions is not None
    assert [regions.written[regions.sets[number]] for number in range(4)] == [0, 1, 2, 3]


def test_structures_that_overlap_in_any_way_have_a_class_for_each_combination() -> None:
    spec = task(classes=[], overlapping=["liver", "lesion", "vessel"])
    assert len(spec.classes) == 8 and spec.structures == ("liver", "lesion", "vessel") and spec.outputs == 3
    regions = spec.made_regions
    assert regions is not None
    np.testing.assert_array_equal(regions.sets[:8], np.arange(8))
    assert regions.written == tuple(range(8))
    assert spec.classes[3] == "liver+lesion"
    assert len(overlapping([*"abcdefgh"])[0]) == 256


def test_regions_that_masks_outline_are_those_of_outlined_classes_alone() -> None:
    regions = make_regions(TUMOUR, CLASSES)
    assert regions is not None
    assert regions.known(None) == (0, 1, 2) and regions.known([2, 3]) == (1, 2) and regions.known([1, 2]) == ()


def test_a_job_keeps_its_regions_and_their_order() -> None:
    job = resolve("hippocampus", "fedavg", checked=False)
    with_regions = job.model_copy(
        update={"task": task(regions={"z": ["edema", "core"], "a": ["core"]}, regions_class_order=["edema", "core"])}
    )
    again = JobSpec.parse(with_regions.dump(), where="job")
    assert again.task.structures == ("z", "a") and again.task == with_regions.task
    assert "regions" not in job.dump()["task"] and "ignore" not in job.dump()["task"]


@pytest.mark.parametrize("changes", ["regions={prostate: [prostate]}", "ignore=true"])
def test_regions_and_ignored_voxels_are_for_patches(changes: str) -> None:
    with raises("options-clash", naming=changes.partition("=")[0]):
        resolve("prostate", "fedavg", protocol="fedfa", options=[changes])
