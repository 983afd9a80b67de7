"""The papers' split by slice, and pictures by shares."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import make_image_site, make_site, small_image_job, small_job
from volumesites import make_volume_site

from data_prep.dealing import deal_by_content
from data_prep.pictures import Source
from fedshift.data.splits import FOLDS, about_counts, case_splits, legacy_split, split_by_content, subject_of
from fedshift.schema.manifest import Picture, read_manifest
from fedshift.tasks.kinds import build_task

SLICES = np.arange(1000, 1200)


@pytest.mark.parametrize(("n", "fraction", "train"), [(200, 1.0, 120), (200, 0.5, 60), (200, 0.01, 32), (40, 1.0, 24)])
def test_shares(n: int, fraction: float, train: int) -> None:
    split = legacy_split(SLICES[:n], fraction=fraction, site="HK")
    assert [len(split[part]) for part in ("train", "val", "test")] == [train, n // 5, n // 5]
    every = np.concatenate([*split.values()])
    assert len(set(every)) == len(every) and set(every) <= set(SLICES[:n]), "disjoint"


def test_the_order_is_the_sites_own_and_a_share_is_the_first_of_the_whole() -> None:
    one, other = (legacy_split(SLICES, fraction=1.0, site=site) for site in ("HK", "UCL"))
    assert not np.array_equal(one["train"], other["train"])
    half = legacy_split(SLICES, fraction=0.5, site="HK")
    np.testing.assert_array_equal(half["train"], one["train"][:60])
    np.testing.assert_array_equal(half["test"], one["test"])


def pictures(n: int) -> list[Picture]:
    """Every tenth picture is a copy of the one before it; two classes."""
    return [
        Picture(id=f"{k:03d}", sha256=f"{(k - (k % 10 == 9)) * 7919 % 1009:04d}", label="ab"[k // 200], split="train")
        for k in range(n)
    ]


def test_shares_of_pictures_keep_copies_together_and_are_those_of_preparation() -> None:
    entries = pictures(400)
    split = split_by_content(entries, (0.6, 0.2, 0.2))
    hashed = [(Source(p.id, p.label, read=lambda: pytest.fail("not read")), p.sha256) for p in entries]
    assert dict(zip((p.id for p in entries), split, strict=True)) == deal_by_content("A", hashed)
    most = split_by_content(entries, (0.9, 0.05, 0.05))
    counts = {part: int((most == part).sum()) for part in ("train", "val", "test")}
    assert 350 <= counts["train"] <= 370 and 15 <= counts["val"] <= 25 and 15 <= counts["test"] <= 25
    by_content: dict[str, set[str]] = {}
    for picture, part in zip(entries, most, strict=True):
        by_content.setdefault(picture.sha256, set()).add(str(part))
    assert all(len(parts) == 1 for parts in by_content.values())
    assert set(split_by_content(entries, (0.9, 0.1, 0.0))) == {"train", "val"}
    assert set(split_by_content(entries[:2], (0.5, 0.25, 0.25))) == {"train"}


@pytest.mark.parametrize("n", [2, 5, 6, 13])
def test_every_case_is_tested_in_one_fold_and_selects_in_another(n: int) -> None:
    cases = [SimpleNamespace(id=f"Case{k:02d}", split="train", subject="") for k in range(n)]
    folds = [case_splits(cases, site="HK", fold=fold) for fold in range(1, FOLDS + 1)]
    for case in range(n):
        parts = [splits[case] for splits in folds]
        assert parts.count("test") == parts.count("val") == 1 and parts.count("train") == FOLDS - 2
    sizes = [splits.count("test") for splits in folds]
    assert max(sizes) - min(sizes) <= 1, "folds of equal size"
    if n == 13:
        assert folds[0] != case_splits(cases, site="UCL", fold=1), "the order is the site's own"
    assert case_splits(cases, site="HK", fold=None) == ["train"] * n, "as prepared"
    if n == 6:
        assert folds[0] == ["train", "val", "test", "test", "train", "train"], "as always, without sessions"


@pytest.mark.parametrize(
    ("case", "subject"),
    [
        ("sub-01_ses-1", "sub-01"),
        ("sub-01_ses-pre_run-2", "sub-01"),
        ("sub-01", "sub-01"),
        ("Case00", "Case00"),
        ("P1_2", "P1_2"),
        ("ses-1", "ses-1"),
    ],
)
def test_only_a_session_says_whose_scan_a_case_is(case: str, subject: str) -> None:
    assert subject_of(case) == subject


def test_sessions_of_a_subject_are_in_one_fold() -> None:
    cases = [
        SimpleNamespace(id=f"sub-{k:02d}_ses-{session}", split="train", subject="")
        for session in (1, 2, 3)
        for k in range(11)
    ]
    folds = [case_splits(cases, site="HK", fold=fold) for fold in range(1, FOLDS + 1)]
    for splits in folds:
        assert splits[:11] == splits[11:22] == splits[22:]
    for parts in zip(*folds, strict=True):
        assert parts.count("test") == parts.count("val") == 1
    single = [SimpleNamespace(id=f"Case{k:02d}", split="train", subject="") for k in range(11)]
    assert folds[1][:11] == case_splits(single, site="HK", fold=2), "a subject is dealt as a case is"


WHOLE_VOLUMES = ("data.train_slices=all", "data.fraction=1.0", "data.split=case")


def test_pictures_are_counted_exactly(tmp_path: Path) -> None:
    folder = make_image_site(tmp_path, "A")
    site = "data.fraction_of=site"
    for options in (
        (),
        ("data.fraction=0.25",),
        ("data.images=5",),
        ("data.fraction=0.5", site),
        ("data.fraction=0.9", site, "data.shares=[0.8, 0.1, 0.1]"),
    ):
        job = small_image_job("fedavg", *options, sites=("A",))
        data = build_task(job).open(folder, "A")
        estimate = about_counts(read_manifest(folder), job.task.data)
        assert estimate == {split: data.count(split) for split in ("train", "val", "test")}


def test_every_slice_of_a_case_is_a_sample(tmp_path: Path) -> None:
    folder = make_site(tmp_path, "HK", cases=5, depth=8)
    job = small_job("fedavg", *WHOLE_VOLUMES, sites=("HK",))
    assert about_counts(read_manifest(folder), job.task.data) == {"train": 24, "val": 8, "test": 8}


@pytest.mark.parametrize(("fraction", "train"), [(0.5, 48), (0.01, 32)])
def test_a_share_of_the_slices_is_not_less_than_the_papers_least(fraction: float, train: int, tmp_path: Path) -> None:
    folder = make_site(tmp_path, "HK", cases=14, depth=8)
    counts = about_counts(read_manifest(folder), {"fraction": fraction})
    assert counts["train"] == train


def test_the_split_by_slice_has_its_own_shares(tmp_path: Path) -> None:
    folder = make_site(tmp_path, "HK", cases=20, depth=10)
    counts = about_counts(read_manifest(folder), {"split": "slice-legacy"})
    assert counts == {"train": 72, "val": 24, "test": 24}, "of 200 slices about 120 show the organ"


def test_patches_of_an_epoch_and_windows_of_an_evaluation_are_counted(tmp_path: Path) -> None:
    folder = make_volume_site(tmp_path, "A", cases=5, shape=(12, 20, 24), spacing=(2.0, 1.0, 1.0))
    data = {"patch": [8, 16, 16], "spacing": [1.0, None, 0.5], "samples_per_case": 3}
    counts = about_counts(read_manifest(folder), data)
    assert counts == {"train": 9, "val": 4 * 2 * 4, "test": 4 * 2 * 4}


def test_shares_keep_subjects_together_and_divide_each_finding() -> None:
    pictures = [
        Picture(
            id=f"{k}",
            sha256=f"{(37 * k) % 101:03d}",
            split="train",
            findings={"rare": k % 25 < 2, "common": k % 2 == 0},
            subject=f"S{k // 2}",
        )
        for k in range(100)
    ]
    splits = split_by_content(pictures, (0.6, 0.2, 0.2))
    assert [int((splits == part).sum()) for part in ("train", "val", "test")] == [60, 20, 20]
    assert all(splits[k] == splits[k + 1] for k in range(0, 100, 2))
    rare = [splits[k] for k in range(100) if pictures[k].findings["rare"]]
    assert {"train", "val", "test"} == set(rare)
    alone = [picture.model_copy(update={"subject": "", "findings": {}, "label": "one"}) for picture in pictures]
    same = [picture.model_copy(update={"subject": picture.id}) for picture in alone]
    assert (split_by_content(alone, (0.6, 0.2, 0.2)) == split_by_content(same, (0.6, 0.2, 0.2))).all()
