"""Assign the pictures of a site to splits: training, validation or test.

Pictures with the same content (SHA-256 of size and pixels) always go into the same split. Contents are sorted by hash
and the first ones held out, so the same pictures are split in the same way on every machine. By default this is done
per class: of n contents of a class, ``round(n / 5)`` are for testing and as many for validation (at least one each if
n is three or more), and the others are for training.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping
from pathlib import Path

import numpy as np

from data_prep.pictures import Dealing, Hashed, Source
from fedshift.data.splits import subject_groups
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import Split

log = logging.getLogger(__name__)

TEST = "test/"
"""Prefix of the ids of an official test part."""
FEWEST = 3
"""A class with fewer contents is used for training only."""
TENTH, SMALLEST_DIVIDED = 10, 5
"""Small sites hold out a tenth of their contents, and at least one if they have five or more."""


def deal_by_content(site: str, pictures: Hashed, *, one_in: int = 5) -> dict[str, Split]:
    """Split by id: in each class, one content in ``one_in`` is for testing and another for validation."""
    shares = [(contents, _share(len(contents), one_in)) for contents in _contents_by_class(pictures)]
    test = {sha for contents, share in shares for sha in contents[:share]}
    val = {sha for contents, share in shares for sha in contents[share : 2 * share]}
    return _split_of(pictures, test=test, val=val)


def deal_official(
    site: str,
    pictures: Hashed,
    *,
    is_test: Callable[[str], bool] = lambda picture: picture.startswith(TEST),
    one_in: int = 10,
) -> dict[str, Split]:
    """Split by id, for a data set with an official test set.

    An image that occurs in the official test set is always assigned to the test split, also where a copy of it has
    another id. Of the other contents, one in ``one_in`` of each class is for validation.

    Args:
        site: not used.
        pictures: the site's pictures.
        is_test: whether an id is in the official test set; by default, whether it begins with ``test/``.
        one_in: the share for validation.
    """
    test, rest = _apart(pictures, is_test)
    shares = [(contents, _share(len(contents), one_in)) for contents in _contents_by_class(rest)]
    return _split_of(pictures, test=test, val={sha for contents, share in shares for sha in contents[:share]})


def deal_small(site: str, pictures: Hashed) -> dict[str, Split]:
    """Split by id, for one of many small sites: a tenth of its contents for testing and a tenth for validation.

    The split ignores classes, because such a site has only one or two pictures of each. A site with five or more
    contents holds out at least one for each.
    """
    contents = sorted({sha for _, sha in pictures})
    tenth = _tenth(len(contents))
    return _split_of(pictures, test=set(contents[:tenth]), val=set(contents[tenth : 2 * tenth]))


def deal_small_official(site: str, pictures: Hashed) -> dict[str, Split]:
    """Split by id, like `deal_small`, where ids that begin with ``test/`` are the test split.

    A tenth of the other contents is for validation.
    """
    test, rest = _apart(pictures, lambda picture: picture.startswith(TEST))
    contents = sorted({sha for _, sha in rest})
    return _split_of(pictures, test=test, val=set(contents[: _tenth(len(contents))]))


def keep_together(split_of: Mapping[str, Split], pictures: Hashed) -> dict[str, Split]:
    """Change a given split by id so that pictures of the same content are in one split.

    A content is in the test split if any of its pictures is, else in validation if any is, else in training.
    """
    parts: dict[str, set[Split]] = {}
    for picture, sha in pictures:
        parts.setdefault(sha, set()).add(split_of[picture.id])
    test, val = ({sha for sha, splits in parts.items() if split in splits} for split in ("test", "val"))
    return _split_of(pictures, test=test, val=val)


def deal_counts(
    pictures: Hashed, counts: Mapping[Split, int], *, seed: int, known: Mapping[str, Split] | None = None
) -> dict[str, Split]:
    """Split by id at random into splits of given sizes, with all pictures of the same content in one split.

    Each content goes to a split with probability proportional to the room left in it; without duplicates this is the
    same as cutting a shuffled list. Contents with most copies are assigned first, because they need the most room.

    Args:
        pictures: the pictures, as many as the sum of ``counts``.
        counts: number of pictures in each split.
        seed: seed of all draws; the pictures are sorted by hash before the first draw.
        known: split by content hash, for contents that are already assigned (at other sites).

    Raises:
        DataError: too few or too many pictures, or copies for which no split has room.
    """
    if len(pictures) != sum(counts.values()):
        raise DataError(
            "split-counts", f"{len(pictures)} pictures that can be read, where the split needs {sum(counts.values())}"
        )
    rng, known = np.random.default_rng([seed, 7]), known or {}
    copies = Counter(sha for _, sha in pictures)
    mixed = rng.permutation(sorted(copies)).tolist()
    room_in, dealt = dict(counts), dict[str, Split]()
    for sha in sorted(mixed, key=lambda sha: (sha not in known, -copies[sha])):
        fits = [split for split in room_in if room_in[split] >= copies[sha] and known.get(sha, split) == split]
        if not fits:
            raise DataError("split-counts", f"the {copies[sha]} copies of one picture fit into no split together")
        room = np.cumsum([room_in[split] for split in fits])
        split = fits[int(np.searchsorted(room, rng.integers(room[-1]), side="right"))]
        room_in[split] -= copies[sha]
        dealt[sha] = split
    return {picture.id: dealt[sha] for picture, sha in pictures}


def deal_by_subject(site: str, pictures: Hashed, *, fixed: Mapping[str, Split] | None = None) -> dict[str, Split]:
    """Split by id: 60/20/20 of the subjects of each class, so that all pictures of a subject are in one split.

    Pictures of one subject, or of the same content, are together. A subject counts for the class of its pictures that
    the fewest subjects have, and with findings for the rarest of those that it has; subjects are sorted by a hash of
    their contents.

    Args:
        site: not used.
        pictures: the site's pictures.
        fixed: split by id of pictures that have one; the others of the same subject join it, testing first.
    """
    fixed = fixed or {}
    groups = _subjects(pictures)
    has = [{name for picture, _ in group for name in _classes(picture)} for group in groups]
    times = Counter(name for classes in has for name in classes)
    by_class: dict[str, list[Hashed]] = defaultdict(list)
    for group, classes in zip(groups, has, strict=True):
        by_class[min(classes, key=lambda name: (times[name], name), default="")].append(group)
    split_of: dict[str, Split] = {}
    for members in by_class.values():
        share, counts = _share(len(members), 5), Counter[Split]()
        ordered = sorted(members, key=lambda group: min(sha for _, sha in group))
        known = [_split_given(group, fixed) for group in ordered]
        counts.update(split for split in known if split is not None)
        for group, fixed_split in zip(ordered, known, strict=True):
            split = fixed_split or ("test" if counts["test"] < share else "val" if counts["val"] < share else "train")
            counts[split] += fixed_split is None
            split_of |= {picture.id: split for picture, _ in group}
    return split_of


def warn_of_moved(site: Path, former: Mapping[str, Split], dealt: Mapping[str, Split]) -> None:
    """Warn of cases that are in another split than before, as where a table now says whose they are."""
    moved = [f"{case} ({split}, now {dealt[case]})" for case, split in former.items() if dealt[case] != split]
    if moved:
        log.warning(
            "%s has %d image(s) in other splits than before, such as %s: do not test models that were trained before "
            "on it; to divide all its images anew by 60/20/20, delete the folder and prepare it again",
            *(site, len(moved), moved[0]),
        )


def deal_official_by_subject(
    site: str, pictures: Hashed, *, is_test: Callable[[str], bool], one_in: int = 10
) -> dict[str, Split]:
    """Split by id, like `deal_official`, with all pictures of a subject in one split; in the test part if one is."""
    tested: list[Hashed] = []
    rest: list[Hashed] = []
    for group in _subjects(pictures):
        (tested if any(is_test(picture.id) for picture, _ in group) else rest).append(group)
    rest.sort(key=lambda group: min(sha for _, sha in group))
    parts: dict[Split, list[Hashed]] = {"test": tested, "val": rest[: _share(len(rest), one_in)]}
    parts["train"] = rest[len(parts["val"]) :]
    return {picture.id: split for split, groups in parts.items() for group in groups for picture, _ in group}


def _subjects(pictures: Hashed) -> list[Hashed]:
    """The pictures of each subject; two that share a content are one."""
    groups = subject_groups([sha for _, sha in pictures], [picture.subject for picture, _ in pictures])
    return [[pictures[number] for number in group] for group in groups]


def _classes(picture: Source) -> list[str]:
    return [picture.label] if picture.label else [name for name, has in picture.findings.items() if has]


def _split_given(group: Hashed, fixed: Mapping[str, Split]) -> Split | None:
    fixed_splits = {fixed[picture.id] for picture, _ in group if picture.id in fixed}
    order: tuple[Split, ...] = ("test", "val", "train")
    return next((split for split in order if split in fixed_splits), None)


BY_SUBJECT = Dealing(deal_by_subject, "by subject 60/20/20 within each class")
BY_CONTENT = Dealing(deal_by_content, "by content 60/20/20 within each class")
OFFICIAL = Dealing(deal_official, "official test part; val is a tenth of the rest, by content")


def _contents_by_class(pictures: Hashed) -> list[list[str]]:
    """Content hashes of each class in ascending order; a content with two labels counts for the first one."""
    labels: dict[str, str] = {}
    for picture, sha in pictures:
        labels.setdefault(sha, picture.label)
    classes: dict[str, list[str]] = defaultdict(list)
    for sha in sorted(labels):
        classes[labels[sha]].append(sha)
    return list(classes.values())


def _apart(pictures: Hashed, is_test: Callable[[str], bool]) -> tuple[set[str], Hashed]:
    """The content hashes of the official test set, and the pictures whose content is not in it."""
    test = {sha for picture, sha in pictures if is_test(picture.id)}
    return test, [(picture, sha) for picture, sha in pictures if sha not in test]


def _share(count: int, one_in: int) -> int:
    return max(1, round(count / one_in)) if count >= FEWEST else 0


def _tenth(count: int) -> int:
    return max(1, count // TENTH) if count >= SMALLEST_DIVIDED else 0


def _split_of(pictures: Hashed, *, test: Container[str], val: Container[str]) -> dict[str, Split]:
    return {picture.id: "test" if sha in test else "val" if sha in val else "train" for picture, sha in pictures}
