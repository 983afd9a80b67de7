"""Data sets without domains as many sites, ``site_000``, ``site_001``, …, with shares of the official test part."""

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
    """Names as an app file has them that says ``{prefix: site_, count: …}``.

    Raises:
        ConfigError: no site, or far too many.
    """
    return Numbered.parse({"prefix": PREFIX, "count": count}, where="the number of sites").names


def plan_sites(
    of: PictureSet,
    train: Part,
    test: Part,
    *,
    partition: Callable[[np.ndarray], Sequence[np.ndarray]],
    seed: int,
    size: int,
    rule: str,
    described: str,
) -> Plan:
    """Sites of a partition of the training images; each class of the test images is shared out in its proportions.

    Copies of an image are left out, those in the training part first.

    Args:
        of: the data set, still without sites.
        train: images and labels.
        test: the official test part.
        partition: from labels (N,) to each site's items.
        seed: of the test images' dealing.
        size: the side in pixels to cache.
        rule: the partition in a few words, for the manifest's rule of the split.
        described: the partition, for the manifest's notes.

    Raises:
        DataError: images or labels of another form, or a partition that cannot be.
    """
    (x_train, y_train), (x_test, y_test) = train, test
    training = array_sources(x_train, y_train, of.classes, prefix="train")
    testing = array_sources(x_test, y_test, of.classes, prefix="test")
    tested = distinct(x_test)
    trained = distinct(x_train, besides=x_test)
    parts = partition(y_train[trained])
    test_parts = like(parts, y_train[trained], y_test[tested], seed=seed)
    members = [
        [training[number] for number in trained[part]] + [testing[number] for number in tested[test_part]]
        for part, test_part in zip(parts, test_parts, strict=True)
    ]
    found = dict(zip(site_names(len(members)), members, strict=True))
    notes = {
        "partition": described,
        "copies_left_out": len(training) + len(testing) - len(trained) - len(tested),
    }
    rule = f"{rule}; official test shared out; val 1/{TENTH}"
    return Plan(
        replace(of, sites=tuple(found)), found, (size,), Dealing(deal_small_official, rule, notes=notes, whole=True)
    )
