"""Distribute a data set without domains, and its official test part, to many sites ``site_000``, ``site_001``, …."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from data_prep.arrayfiles import Part, array_sources
from data_prep.dealing import TENTH, deal_small_official
from data_prep.partition import distinct, like
from data_prep.pictures import Dealing, PictureSet, Plan
from fedshift.schema.task_files import Numbered

PREFIX = "site_"


def site_names(count: int) -> list[str]:
    """Site names in the form that an app file declares with ``{prefix: site_, count: …}``.

    Raises:
        ConfigError: the count is 0 or too large.
    """
    return Numbered.parse({"prefix": PREFIX, "count": count}, where="the number of sites").names


def plan_sites(
    picture_set: PictureSet,
    train: Part,
    test: Part,
    *,
    partition: Callable[[np.ndarray], Sequence[np.ndarray]],
    seed: int,
    size: int,
    rule: str,
    described: str,
) -> Plan:
    """Sites from a partition of the training images, with the test images distributed in the same class proportions.

    Duplicate images are left out; if an image occurs in both parts, the copy in the training part is left out.

    Args:
        picture_set: the data set, without sites.
        train: images and labels.
        test: images and labels of the official test part.
        partition: maps labels (N,) to the item numbers of each site.
        seed: seed for distributing the test images.
        size: side in pixels of the cached images.
        rule: short description of the partition, for the manifest's split rule.
        described: description of the partition, for the manifest's notes.

    Raises:
        DataError: unexpected images or labels, or a partition that is not possible.
    """
    (x_train, y_train), (x_test, y_test) = train, test
    training = array_sources(x_train, y_train, picture_set.classes, prefix="train")
    testing = array_sources(x_test, y_test, picture_set.classes, prefix="test")
    tested = distinct(x_test)
    trained = distinct(x_train, besides=x_test)
    parts = partition(y_train[trained])
    test_parts = like(parts, y_train[trained], y_test[tested], seed=seed)
    members = [
        [training[number] for number in trained[part]] + [testing[number] for number in tested[test_part]]
        for part, test_part in zip(parts, test_parts, strict=True)
    ]
    by_site = dict(zip(site_names(len(members)), members, strict=True))
    notes = {
        "partition": described,
        "copies_left_out": len(training) + len(testing) - len(trained) - len(tested),
    }
    rule = f"{rule}; official test shared out; val 1/{TENTH}"
    return Plan(
        replace(picture_set, sites=tuple(by_site)),
        by_site,
        (size,),
        Dealing(deal_small_official, rule, notes=notes, whole=True),
    )
