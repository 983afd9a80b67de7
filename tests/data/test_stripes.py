"""Masks drawn on every n-th slice, or with a slice forgotten, in any format; and anatomy that has gaps by nature."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk

from fedshift.data.case_check import read_case
from fedshift.data.cases import CaseFiles
from fedshift.data.labels import Labels
from fedshift.data.stripes import gaps_along, in_words, stripes

SHAPE, SPACING = (30, 60, 60), (1.0, 1.0, 3.0)
Z, Y, X = np.indices(SHAPE)


def ball(z: float, y: float, x: float, radius: float) -> np.ndarray:
    return np.asarray(((Z - z) * 3) ** 2 + (Y - y) ** 2 + (X - x) ** 2 < radius**2)


ORGAN = ball(15, 30, 30, 24)
"""On slices 8 to 22."""


def said(mask: np.ndarray, *names: str, along: int = 2) -> list[str]:
    return list(stripes(mask.astype(np.uint8), names or ("prostate",), SPACING, slices_along=along))


def every(n: int, *, axis: int = 0, start: int = 0) -> np.ndarray:
    return np.asarray((np.indices(SHAPE)[axis] - start) % n == 0)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (
            ORGAN & every(2),
            "has no voxel of prostate in slices 10, 12, 14, 16, 18, 20, 22 of 30 (counted from the feet)",
        ),
        (ORGAN & every(3), "slices 11 to 12, 14 to 15, 17 to 18, 20 to 21 of 30"),
        (ORGAN & every(4), "slices 10 to 12, 14 to 16, 18 to 20 of 30"),
        (ORGAN & ~every(99, start=12), "has no voxel of prostate in slice 13 of 30"),
        (ORGAN & ~np.isin(Z, [12, 13, 14]), "slices 13 to 15 of 30"),
        (ORGAN & every(2, axis=1), "of 60 (counted from the back)"),
        (ORGAN & every(3, axis=2), "of 60 (counted from the left)"),
        (ball(15, 30, 15, 13) & every(2) | ball(15, 30, 45, 13), "has parts of prostate on every few of slices"),
    ],
    ids=["second", "third", "fourth", "one lost", "three lost", "along y", "along x", "one of two kidneys"],
)
def test_stripes_are_found_and_their_slices_named(mask: np.ndarray, words: str) -> None:
    (what,) = said(mask)
    assert words in what


@pytest.mark.parametrize(
    "mask",
    [
        ORGAN,
        ball(15, 30, 12, 9) | ball(15, 30, 48, 9),
        ball(6, 30, 30, 9) | ball(24, 30, 30, 9),
        ball(15, 30, 18, 11) | ball(15, 30, 42, 11),
        ORGAN & ~ball(15, 30, 30, 21),
        ball(5, 20, 20, 5) | ball(9, 40, 40, 5) | ball(13, 20, 40, 5),
        ORGAN & (np.random.default_rng(0).random(SHAPE) < 0.8),
        np.zeros(SHAPE, bool),
    ],
    ids=["whole", "pair", "above each other", "touching pair", "hollow", "lesions", "noisy", "empty"],
)
def test_what_has_gaps_by_nature_is_not_called_so(mask: np.ndarray) -> None:
    assert said(mask) == []


def test_each_class_is_looked_at_alone() -> None:
    mask = np.where(ORGAN & every(2), 1, 0) + np.where(ORGAN & ~every(2), 2, 0)
    assert len(said(mask, "a", "b")) == 2
    whole = np.where(ball(15, 20, 20, 12), 1, 0) + np.where(ball(15, 45, 45, 12) & every(2), 2, 0)
    (what,) = said(whole, "a", "b")
    assert " b in slices" in what


def test_gaps_and_slices_in_words() -> None:
    gaps = gaps_along(ORGAN & ~np.isin(Z, [12, 13]), 0)
    assert [(gap.first, gap.last) for gap in gaps] == [(12, 13)] and gaps[0].overlap > 0.9
    assert in_words([0], 9, 2).startswith("slice 1 of 9 (") and "feet" in in_words([0], 9, 2)
    assert "1, 3, 5, 7, 9, 11, 13, 15 and 12 more" in in_words(range(0, 40, 2), 50, 0)


@pytest.mark.reads("mask: slices without a class between slices that have it")
@pytest.mark.parametrize("suffix", [".nii.gz", ".nrrd", ".mha"])
def test_a_mask_of_any_format_is_looked_at(suffix: str, tmp_path: Path) -> None:
    scan = np.random.default_rng(0).integers(0, 200, SHAPE).astype(np.int16)
    files = tmp_path / f"scan{suffix}", tmp_path / f"mask{suffix}"
    for file, voxels in zip(files, (scan, (ORGAN & every(2)).astype(np.uint8)), strict=True):
        image = sitk.GetImageFromArray(voxels)
        image.SetSpacing(SPACING)
        sitk.WriteImage(image, str(file))
    labels = Labels.named({"prostate": [1]})
    _, (finding,) = read_case(CaseFiles("c", (files[0],), files[1], labels=labels))
    assert (finding.level, finding.code) == ("warning", "mask-gaps") and "prostate in slices 10, 12," in finding.message
    _, (unnamed,) = read_case(CaseFiles("c", (files[0],), files[1]))
    assert "value 1 in slices 10, 12," in unnamed.message
