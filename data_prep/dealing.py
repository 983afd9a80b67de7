"""Which content of a site goes into which split: training, validation or test.

Pictures of the same content are one and go into one split together. Contents are put in the order of their hash and
the first ones held out, so the same pictures are dealt in the same way on every machine. By default that is done class
by class: of n contents of a class ``round(n / 5)`` are for testing and as many for validation, at least one each from
three on, and the others for training.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping

import numpy as np

from data_prep.pictures import Dealing, Hashed
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import Split

TEST = "test/"
"""Ids of an official test part begin with this."""
FEWEST = 3
"""A class of fewer contents is all for training."""
TENTH, SMALLEST_DIVIDED = 10, 5
"""Small sites hold out a tenth of their contents, and from five contents on one at least."""


def deal_by_content(site: str, pictures: Hashed, *, one_in: int = 5) -> dict[str, Split]:
    """Split by id: of each class one content in ``one_in`` is for testing and another for validation."""
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
    """Split by id, of a data set with a test part of its own: a content in it is test, wherever else it is.

    Of the others one content in ``one_in`` of each class is for validation.

    Args:
        site: not asked for.
        pictures: the site's.
        is_test: whether an id is in the test part; by default those that begin with ``test/``.
        one_in: the share for validation.
    """
    test, rest = _apart(pictures, is_test)
    shares = [(contents, _share(len(contents), one_in)) for contents in _contents_by_class(rest)]
    return _split_of(pictures, test=test, val={sha for contents, share in shares for sha in contents[:share]})


def deal_small(site: str, pictures: Hashed) -> dict[str, Split]:
    """Split by id, of one of many small sites: a tenth of its contents each is for testing and for validation.

    Not class by class, of which such sites have a picture or two each. A tenth is one at least where there are five.
    """
    contents = sorted({sha for _, sha in pictures})
    tenth = _tenth(len(contents))
    return _split_of(pictures, test=set(contents[:tenth]), val=set(contents[tenth : 2 * tenth]))


def deal_small_official(site: str, pictures: Hashed) -> dict[str, Split]:
    """As `deal_small`, where ids that begin with ``test/`` are the test part, and a tenth of the others validates."""
    test, rest = _apart(pictures, lambda picture: picture.startswith(TEST))
    contents = sorted({sha for _, sha in rest})
    return _split_of(pictures, test=test, val=set(contents[: _tenth(len(contents))]))


def keep_together(split_of: Mapping[str, Split], pictures: Hashed) -> dict[str, Split]:
    """A given split by id, but one for each content: test if any of its pictures is, else validation if any is."""
    parts: dict[str, set[Split]] = {}
    for picture, sha in pictures:
        parts.setdefault(sha, set()).add(split_of[picture.id])
    test, val = ({sha for sha, splits in parts.items() if split in splits} for split in ("test", "val"))
    return _split_of(pictures, test=test, val=val)


def deal_counts(
    pictures: Hashed, counts: Mapping[Split, int], *, seed: int, known: Mapping[str, Split] | None = None
) -> dict[str, Split]:
    """Split by id, at random by seed, of given sizes, where pictures of the same content are in one split together.

    Every picture goes to a split with a chance in proportion to the room left in it: without copies, these are the
    splits of a shuffled list. Copies are dealt first, as they need the most room.

    Args:
        pictures: as many as ``counts`` has together.
        counts: pictures of each split.
        seed: of all draws; pictures are put in the order of their hash before.
        known: split by content, of contents that have theirs already.

    Raises:
        DataError: too few or too many pictures, or copies for which no split has room.
    """
    if len(pictures) != sum(counts.values()):
        raise DataError(f"{len(pictures)} pictures that can be read, where the split needs {sum(counts.values())}")
    rng, known = np.random.default_rng([seed, 7]), known or {}
    copies = Counter(sha for _, sha in pictures)
    mixed = rng.permutation(sorted(copies)).tolist()
    left, dealt = dict(counts), dict[str, Split]()
    for sha in sorted(mixed, key=lambda sha: (sha not in known, -copies[sha])):
        fits = [split for split in left if left[split] >= copies[sha] and known.get(sha, split) == split]
        if not fits:
            raise DataError(f"the {copies[sha]} copies of one picture fit into no split together")
        room = np.cumsum([left[split] for split in fits])
        split = fits[int(np.searchsorted(room, rng.integers(room[-1]), side="right"))]
        left[split] -= copies[sha]
        dealt[sha] = split
    return {picture.id: dealt[sha] for picture, sha in pictures}


BY_CONTENT = Dealing(deal_by_content, "by content 60/20/20 within each class")
OFFICIAL = Dealing(deal_official, "official test part; val is a tenth of the rest, by content")


def _contents_by_class(pictures: Hashed) -> list[list[str]]:
    """Hashes of the contents of each class, ascending; a content under two labels is of its first one's class."""
    labels: dict[str, str] = {}
    for picture, sha in pictures:
        labels.setdefault(sha, picture.label)
    classes: dict[str, list[str]] = defaultdict(list)
    for sha in sorted(labels):
        classes[labels[sha]].append(sha)
    return list(classes.values())


def _apart(pictures: Hashed, is_test: Callable[[str], bool]) -> tuple[set[str], Hashed]:
    """The contents of a test part, and the pictures of all other contents."""
    test = {sha for picture, sha in pictures if is_test(picture.id)}
    return test, [(picture, sha) for picture, sha in pictures if sha not in test]


def _share(count: int, one_in: int) -> int:
    return max(1, round(count / one_in)) if count >= FEWEST else 0


def _tenth(count: int) -> int:
    return max(1, count // TENTH) if count >= SMALLEST_DIVIDED else 0


def _split_of(pictures: Hashed, *, test: Container[str], val: Container[str]) -> dict[str, Split]:
    return {picture.id: "test" if sha in test else "val" if sha in val else "train" for picture, sha in pictures}
