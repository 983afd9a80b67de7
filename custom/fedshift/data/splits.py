"""Splits that a job makes in place of the prepared ones, and about how many samples a site has in each.

`legacy_split` is the papers' split by slice, for reproduction only: slices of one patient are in training and test.
`split_by_content` divides pictures by shares. `case_splits` deals cases to the folds of a cross-validation.
`subject_of` says whose scan a case is: all of a subject's cases are in one split.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import ceil, prod
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import Field

from fedshift.runtime.grids import shape_at
from fedshift.schema.manifest import Case, Manifest, Picture, Split, classes_of
from fedshift.schema.seeding import derive_seed

TRAIN_SHARE, HELD_OUT_SHARE, TRAIN_FLOOR = 0.6, 0.2, 32
FOLDS = 5  # of a cross-validation: a fold has about the 60/20/20 percent of the prepared split
FEWEST_CONTENTS = 3  # a class with fewer contents is for training only
FOREGROUND = 0.6  # assumed fraction of a volume's slices that contain foreground (on which the papers' protocols train)
SAMPLES_PER_CASE = 2  # default of ``data.samples_per_case``
STEP = 0.75  # from one window to the next, as a part of a window, when rounds are scored
FEWEST = 32  # minimum number of training slices when ``data.fraction`` is set
Fold = Annotated[int, Field(ge=1, le=FOLDS)] | Literal["all"]
"""``data.fold``: see `case_splits`."""


def legacy_split(slices: np.ndarray, *, fraction: float, site: str) -> dict[Split, np.ndarray]:
    """Shuffle n slices, then: first max(0.6·fraction·n, 32) train, next 0.2·n val, last 0.2·n test.

    The counts are those of FedFA's Table 13 (``fraction`` 1) and Table 2 (``fraction`` 1/6; the minimum of 32 is the
    released code's). The permutation depends only on the site, so the split is the same for every seed. It is not the
    authors' permutation, whose index files are not published with the data.

    Returns:
        Disjoint numbers of ``slices`` (n,) for each split. If the minimum of 32 would reach into the validation part of
        a very small site, training gets fewer.
    """
    n = len(slices)
    order = np.random.default_rng(derive_seed(0, site, 0, "slice-legacy")).permutation(slices)
    held_out = int(HELD_OUT_SHARE * n)
    start = int(max(TRAIN_SHARE * n, TRAIN_FLOOR))
    train = int(max(TRAIN_SHARE * fraction * n, TRAIN_FLOOR))
    start = min(start, n - 2 * held_out)
    return {"train": order[: min(train, start)], "val": order[start : start + held_out], "test": order[n - held_out :]}


def split_rule(fold: Fold | None) -> str:
    """How results and reports name a split by case."""
    if fold == "all":
        return "case, none for testing"
    return "case" if fold is None else f"case, fold {fold} of {FOLDS}"


def subject_of(case: str | Case | Picture) -> str:
    """Whose scan a case is, as its manifest says, or by its id: ``sub-01_ses-2`` is of ``sub-01``.

    A case without a session is its own subject, and so is a picture of which the manifest says nothing. Only BIDS
    names say it. Other ids are not compared, however alike: ``P1a`` and ``P1b`` may be two people.
    """
    if isinstance(case, str):
        return case.partition("_ses-")[0]
    return case.subject or (case.id if isinstance(case, Picture) else subject_of(case.id))


def most_of_a_subject(cases: Sequence[Case]) -> int:
    """The largest number of cases that are of one subject; 0 without cases."""
    return max(Counter(subject_of(case) for case in cases).values(), default=0)


def case_splits(cases: Sequence[Case], *, site: str, fold: Fold | None) -> list[Split]:
    """The split of each case: as prepared, or of a fold, from 1 to `FOLDS`, of a cross-validation over all cases.

    With the fold ``all`` the cases that were prepared for testing are trained on: for a model whose test is elsewhere,
    such as at a hospital that took no part.

    Each subject (`subject_of`) is in the test part of exactly one fold, with all its cases, and in the validation part
    of the fold before it. The order in which subjects are dealt depends only on the site's name and on how many it has.
    A site with fewer than `FOLDS` subjects has folds without test or validation cases.
    """
    if fold is None:
        return [case.split for case in cases]
    if fold == "all":
        return ["val" if case.split == "val" else "train" for case in cases]
    subjects = list(dict.fromkeys(subject_of(case) for case in cases))
    order = np.random.default_rng(derive_seed(0, site, 0, "folds")).permutation(len(subjects))
    after: dict[int, Split] = {0: "test", 1: "val"}
    split_of = {
        subjects[number]: after.get((place - (fold - 1)) % FOLDS, "train") for place, number in enumerate(order)
    }
    return [split_of[subject_of(case)] for case in cases]


def split_by_content(pictures: Sequence[Picture], shares: Sequence[float]) -> np.ndarray:
    """Divide pictures by shares for training, validation and testing within each class, by content.

    All pictures of a subject are together (`subject_groups`), and count for their first label, or with findings for the
    rarest that they have. The contents of a class are sorted by hash; the first are for testing, the next
    for validation, the others for training: ``round(share · n)`` of n contents, and at least one where the share is not
    0. A class with fewer than three contents is for training only. With shares of 0.6, 0.2 and 0.2 this is the split by
    content that preparation makes.

    Returns:
        The split of each picture, (n,) str.
    """
    groups = subject_groups([picture.sha256 for picture in pictures], [picture.subject for picture in pictures])
    times = Counter(name for picture in pictures for name in set(classes_of(picture)))
    classes: dict[str, list[tuple[str, list[int]]]] = defaultdict(list)
    for group in groups:
        has = [name for number in group for name in classes_of(pictures[number])]
        label = pictures[group[0]].label or min(has, key=lambda name: (times[name], name), default="")
        classes[label].append((min(pictures[number].sha256 for number in group), group))
    split_of: list[Split] = ["train"] * len(pictures)
    for contents in classes.values():
        if len(contents) < FEWEST_CONTENTS:
            continue
        val, test = (max(1, round(share * len(contents))) if share else 0 for share in shares[1:])
        for place, (_, group) in enumerate(sorted(contents)):
            for number in group:
                split_of[number] = "test" if place < test else "val" if place < test + val else "train"
    return np.array(split_of)


def subject_groups(contents: Sequence[str], subjects: Sequence[str]) -> list[list[int]]:
    """The numbers of pictures that belong together, by their content hashes and by whose they are ("": unknown).

    Those of one subject do, and those of the same content, and so two subjects that share a content.
    """
    leader: dict[str, str] = {}

    def lead(key: str) -> str:
        while leader.setdefault(key, key) != key:
            leader[key] = leader[leader[key]]
            key = leader[key]
        return key

    for content, subject in zip(contents, subjects, strict=True):
        leader[lead(f"content {content}")] = lead(f"subject {subject}" if subject else f"content {content}")
    groups: dict[str, list[int]] = defaultdict(list)
    for number, content in enumerate(contents):
        groups[lead(f"content {content}")].append(number)
    return list(groups.values())


# --- about how many samples -------------------------------------------------------------------------------------------


def used_pictures(
    sizes: Mapping[Split, int], *, fraction: float, of_site: bool, images: int | None
) -> dict[Split, int]:
    """Number of pictures that a job uses of each split, whose ``sizes`` are given.

    ``fraction`` is of the training pictures; or of all pictures, with ``of_site``, which cuts validation as well.
    ``images``: at most that many training pictures.
    """
    kept = dict(sizes)
    whole = sum(sizes.values()) if of_site else sizes["train"]
    kept["train"] = min(sizes["train"], max(1, round(fraction * whole)), images or sizes["train"])
    if of_site and sizes["val"]:
        kept["val"] = max(1, round(fraction * sizes["val"]))
    return kept


def about_counts(manifest: Manifest, data: Mapping[str, Any]) -> dict[str, int]:
    """Estimated number of samples in each split; ``data`` is the ``data`` section of the task. Exact for pictures.

    Of patches: those of an epoch, and the windows that evaluation slides over.
    """
    if manifest.pictures:
        dealt = [picture.split for picture in manifest.pictures]
        if data.get("shares"):
            dealt = split_by_content(manifest.pictures, data["shares"]).tolist()
        used = used_pictures(
            {split: dealt.count(split) for split in get_args(Split)},
            fraction=float(data.get("fraction") or 1.0),
            of_site=data.get("fraction_of") == "site",
            images=data.get("images"),
        )
        return {split: max(n, split == "train") for split, n in used.items()}
    if not manifest.has_masks:
        dealt = case_splits(manifest.cases, site=manifest.site, fold=data.get("fold"))
        return {split: max(dealt.count(split), split == "train") for split in get_args(Split)}
    if data.get("patch"):
        return _patches(manifest, data)
    sizes = {"train": 0.0, "val": 0.0, "test": 0.0}
    splits = case_splits(manifest.cases, site=manifest.site, fold=data.get("fold"))
    for case, split in zip(manifest.cases, splits, strict=True):
        sizes[split] += case.shape[0]
    if data.get("split") == "slice-legacy":
        total = FOREGROUND * sum(sizes.values())
        sizes = {"train": 0.6 * total, "val": 0.2 * total, "test": 0.2 * total}
    elif data.get("train_slices") == "foreground":
        sizes["train"] *= FOREGROUND
    few = min(sizes["train"], FEWEST)
    sizes["train"] = max(few, sizes["train"] * float(data.get("fraction") or 1.0))
    return {"train": max(round(sizes["train"]), 1), "val": round(sizes["val"]), "test": round(sizes["test"])}


def _patches(manifest: Manifest, data: Mapping[str, Any]) -> dict[str, int]:
    patch = list(data["patch"])
    window = [1] * (3 - len(patch)) + patch
    counts = {"train": 0, "val": 0, "test": 0}
    splits = case_splits(manifest.cases, site=manifest.site, fold=data.get("fold"))
    for case, split in zip(manifest.cases, splits, strict=True):
        if split == "train":
            counts["train"] += int(data.get("samples_per_case") or SAMPLES_PER_CASE)
            continue
        shape = shape_at(case.shape, manifest.known_spacing(case), data.get("spacing"), data.get("matrix"))
        steps = [ceil(max(size - side, 0) / (STEP * side)) for size, side in zip(shape, window, strict=True)]
        counts[split] += prod(step + 1 for step in steps)
    return {**counts, "train": max(counts["train"], 1)}
