"""A data set without domains as many sites: the test part follows the partition, copies are left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from errors import raises
from picturefiles import TREE

from data_prep.manysites import plan_sites, site_names
from data_prep.pictures import Plan, write_pictures
from fedshift.schema.manifest import read_manifest


def test_names_are_those_of_a_task_with_numbered_sites() -> None:
    assert site_names(100)[::99] == ["site_000", "site_099"] and site_names(1000)[-1] == "site_0999"
    with raises("invalid-value", naming="count"):
        site_names(0)


def planned(train: np.ndarray, test: np.ndarray) -> Plan:
    """Two classes in turn; the first site has all of the first class, the second site all of the second."""
    labels = [np.arange(len(images)) % 2 for images in (train, test)]
    return plan_sites(
        TREE,
        (train, labels[0]),
        (test, labels[1]),
        partition=lambda y: [np.flatnonzero(y == label) for label in (0, 1)],
        seed=0,
        size=8,
        rule="by class",
        described="a class a site",
    )


def images(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 8, 8, 3), dtype=np.uint8)


def test_the_test_part_is_shared_out_as_the_training_part_is(tmp_path: Path) -> None:
    folders = write_pictures(planned(images(40, 0), images(10, 1)), tmp_path)
    assert [folder.name for folder in folders] == ["site_000", "site_001"]
    for label, folder in zip(TREE.classes, folders, strict=True):
        manifest = read_manifest(folder)
        assert {picture.label for picture in manifest.pictures} == {label}
        assert [len(manifest.by_split(part)) for part in ("train", "val", "test")] == [18, 2, 5]
        assert {picture.split for picture in manifest.pictures if picture.id.startswith("test/")} == {"test"}


def test_copies_are_left_out_first_in_the_training_part() -> None:
    train, test = images(40, 0), images(10, 1)
    train[2], train[4] = test[0], train[6]
    plan = planned(train, test)
    assert plan.dealing.notes["copies_left_out"] == 2
    ids = {source.id for sources in plan.by_site.values() for source in sources}
    assert len(ids) == 48 and "test/000000" in ids and "train/000002" not in ids
