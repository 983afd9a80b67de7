"""Contents go into splits in the order of their hash; what is the same stays together."""

from __future__ import annotations

from collections import Counter

import pytest
from errors import raises

from data_prep.dealing import (
    deal_by_content,
    deal_counts,
    deal_official,
    deal_small,
    deal_small_official,
    keep_together,
)
from data_prep.pictures import Hashed, Source


def hashed(*ids: str) -> Hashed:
    """``a/1=x`` is picture ``a/1`` of class ``a`` and content ``x``; without ``=x`` its content is its id."""
    pairs = [(text.split("=")[0], text.split("=")[-1]) for text in ids]
    return [(Source(id, id.split("/")[-2], lambda: None), sha) for id, sha in pairs]  # type: ignore[arg-type,return-value]


def counts(splits: dict[str, str]) -> list[int]:
    found = Counter(splits.values())
    return [found[split] for split in ("train", "val", "test")]


@pytest.mark.parametrize(
    ("n", "one_in", "expected"),
    [
        (1, 5, [1, 0, 0]),
        (2, 5, [2, 0, 0]),
        (3, 5, [1, 1, 1]),
        (4, 5, [2, 1, 1]),
        (8, 5, [4, 2, 2]),
        (100, 5, [60, 20, 20]),
        (3, 10, [1, 1, 1]),
        (14, 10, [12, 1, 1]),
        (100, 10, [80, 10, 10]),
    ],
)
def test_one_in_so_many_of_a_class_is_held_out_and_of_few_none(n: int, one_in: int, expected: list[int]) -> None:
    assert counts(deal_by_content("here", hashed(*(f"cup/{k:03d}" for k in range(n))), one_in=one_in)) == expected


def test_each_class_is_dealt_by_itself_in_the_order_of_the_hashes() -> None:
    pictures = hashed(*(f"{label}/{k}={(7 * k + 3) % 10}{label}" for label in ("cup", "pen") for k in range(10)))
    splits = deal_by_content("here", pictures)
    for label in ("cup", "pen"):
        by_hash = sorted((sha, splits[picture.id]) for picture, sha in pictures if picture.label == label)
        assert [split for _, split in by_hash] == ["test"] * 2 + ["val"] * 2 + ["train"] * 6
    assert deal_by_content("elsewhere", pictures[::-1]) == splits


def test_copies_are_one_content_of_the_class_that_is_named_first() -> None:
    splits = deal_by_content("here", hashed("cup/0=a", "cup/1=b", "cup/2=b", "pen/0=a", "pen/1=c", "pen/2=d"))
    assert set(splits.values()) == {"train"}, "cups have two contents and so have pens"
    splits = deal_by_content("here", hashed("cup/0=a", "cup/1=b", "cup/2=c", "pen/0=a"))
    assert splits["cup/0"] == splits["pen/0"] == "test"


def test_the_official_test_part_stays_and_a_tenth_of_the_rest_of_each_class_validates() -> None:
    pictures = hashed(*(f"train/{'ab'[k % 2]}/{k:02d}={k:02d}" for k in range(40)))
    pictures = [*pictures, *hashed(*(f"test/a/{k}={k}" for k in range(50, 55)))]
    splits = deal_official("here", pictures)
    validation = [id for id, split in splits.items() if split == "val"]
    assert validation == ["train/a/00", "train/b/01", "train/a/02", "train/b/03"], "the first two hashes of each class"
    assert [id for id, split in splits.items() if split == "test"] == [f"test/a/{k}" for k in range(50, 55)]
    assert deal_official("here", pictures[::-1]) == splits


def test_the_test_part_may_be_a_list_and_another_share_validate() -> None:
    pictures = hashed(*(f"cup/{k}" for k in range(10)))
    splits = deal_official("here", pictures, is_test=lambda id: id in ("cup/0", "cup/5"), one_in=4)
    assert [id for id, split in splits.items() if split == "test"] == ["cup/0", "cup/5"]
    assert [id for id, split in splits.items() if split == "val"] == ["cup/1", "cup/2"]


@pytest.mark.parametrize("deal", [deal_official, deal_small_official])
def test_a_content_in_both_parts_is_test_and_copies_stay_together(deal: object) -> None:
    pictures = hashed(*(f"train/a/{k}={sha}" for k, sha in enumerate("abbcdef")), "test/a/0=d")
    splits = deal("here", pictures)  # type: ignore[operator]
    assert splits["train/a/4"] == splits["test/a/0"] == "test"
    assert splits["train/a/1"] == splits["train/a/2"] == "train" and splits["train/a/0"] == "val"
    few = deal("here", pictures[:2])  # type: ignore[operator]
    assert set(few.values()) == {"train"}, "two are too few to validate on one"


def test_small_sites_hold_out_a_tenth_whatever_its_classes() -> None:
    for n, expected in ((1, [1, 0, 0]), (4, [4, 0, 0]), (5, [3, 1, 1]), (19, [17, 1, 1]), (40, [32, 4, 4])):
        assert counts(deal_small("here", hashed(*(f"c{k % 9}/{k:03d}" for k in range(n))))) == expected
    copies = deal_small("here", hashed(*(f"w/{k:03d}={k // 2}" for k in range(40))))
    assert all(copies[f"w/{k:03d}"] == copies[f"w/{k + 1:03d}"] for k in range(0, 40, 2))


def test_small_sites_keep_the_official_test_part() -> None:
    pictures = hashed(*(f"train/{k:02d}" for k in range(20)), "test/1", "test/2", "test/3=train/07")
    splits = deal_small_official("here", pictures)
    assert [splits[f"test/{k}"] for k in (1, 2, 3)] == ["test"] * 3
    assert splits["train/07"] == "test", "its content is in the test part"
    assert counts(splits) == [18, 1, 4]


def test_a_given_split_keeps_copies_together() -> None:
    fixed = {"a/0": "train", "a/1": "val", "a/2": "val", "a/3": "test", "a/4": "train", "a/5": "test"}
    pictures = hashed("a/0=x", "a/1=x", "a/2=y", "a/3=y", "a/4=z", "a/5=w")
    expected = {"a/0": "val", "a/1": "val", "a/2": "test", "a/3": "test", "a/4": "train", "a/5": "test"}
    assert keep_together(fixed, pictures) == expected  # type: ignore[arg-type]


def test_given_counts_are_met_exactly_with_copies_together() -> None:
    pictures = hashed(*(f"cup/{k:02d}" for k in range(20)), *(f"pen/{k}=many" for k in range(6)), "pen/6=cup/00")
    dealt = [deal_counts(pictures, {"train": 15, "val": 6, "test": 6}, seed=seed) for seed in range(40)]
    for split_of in dealt:
        assert counts(split_of) == [15, 6, 6]
        of_content: dict[str, set[str]] = {}
        for picture, sha in pictures:
            of_content.setdefault(sha, set()).add(split_of[picture.id])
        assert {len(splits) for splits in of_content.values()} == {1}
    many = {split_of[pictures[20][0].id] for split_of in dealt}
    assert many == {"train", "val", "test"}, "by chance, not always where most room is"
    again = deal_counts(pictures[::-1], {"train": 15, "val": 6, "test": 6}, seed=3)
    assert again == dealt[3], "whatever their order"


def test_a_content_s_known_split_is_kept() -> None:
    pictures = hashed("cup/a=a", "cup/b=b", "pen/c=c", "pen/d=d")
    for seed in range(20):
        split_of = deal_counts(pictures, {"train": 2, "val": 1, "test": 1}, seed=seed, known={"c": "test", "x": "val"})
        assert split_of[pictures[2][0].id] == "test"


@pytest.mark.parametrize(
    ("pictures", "words"),
    [
        (("cup/a", "cup/b", "pen/c"), ("split-counts", "3 pictures")),
        (("cup/a=a", "cup/b=a", "pen/c=a", "pen/d"), ("split-counts", "3 copies")),
    ],
    ids=["too few", "copies"],
)
def test_counts_that_cannot_be(pictures: tuple[str, ...], words: tuple[str, str]) -> None:
    with raises(words[0], naming=words[1]):
        deal_counts(hashed(*pictures), {"train": 2, "test": 2}, seed=0)
