"""nnU-Net's convention: the box of what is not 0, splines, logits back on the scan, windows evenly apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from skimage.transform import resize

from fedshift.runtime.nnunet import (
    certain_labels,
    logits_of,
    network_labels,
    network_volume,
    placed,
    resampled,
    starts,
    step_of,
    window_weights,
)
from fedshift.runtime.segmentation import PatchSpec, segment

SHAPE, BOX = (10, 24, 20), ((2, 9), (3, 22), (1, 18))
SPACING, WANTED = (3.0, 1.0, 0.9), (2.0, 1.2, 1.2)


@pytest.fixture
def scan() -> np.ndarray:
    """One sequence, 0 outside of `BOX` and in a hole."""
    voxels = np.zeros((1, *SHAPE), np.float32)
    inside = tuple(slice(*edge) for edge in BOX)
    voxels[(0, *inside)] = np.random.default_rng(0).normal(100, 30, [end - first for first, end in BOX])
    voxels[0, 5, 8:11, 8:11] = 0
    return voxels


def test_volumes_are_measured_in_the_box_and_lie_on_the_wanted_voxels(scan: np.ndarray) -> None:
    placement = placed(scan, SPACING, WANTED)
    assert placement.box == BOX
    assert placement.shape == (round(3 / 2 * 7), round(1 / 1.2 * 19), round(0.9 / 1.2 * 17))
    same = network_volume(scan, placed(scan, SPACING, SPACING), normalise="volume", nonzero=False, fixed=None)
    assert same.shape[1:] == placement.cropped
    assert abs(same.mean()) < 1e-5 and same.std() == pytest.approx(1)


def test_a_hole_counts_and_the_outside_does_not(scan: np.ndarray) -> None:
    scan[0, :, 3:8, 1:6] = 0  # a corner of the box
    placement = placed(scan, SPACING, SPACING)
    volume = network_volume(scan, placement, normalise="volume", nonzero=True, fixed=None)[0]
    outside = volume[:, :5, :5]
    assert not outside.any()
    hole = volume[3, 5:8, 7:10]
    assert hole.max() == hole.min() < -1


def test_a_dark_volume_is_kept_whole() -> None:
    placement = placed(np.zeros((1, *SHAPE), np.float32), None, None)
    assert placement.cropped == placement.shape == SHAPE


@pytest.mark.parametrize("order", [1, 3])
def test_voxels_are_interpolated_as_scikit_image_does(scan: np.ndarray, order: int) -> None:
    wanted = (13, 15, 31)
    resampled_volume = resampled(scan, wanted, (2.0, 1.0, 1.0), (1.0, 1.0, 1.0), order=order)[0]
    theirs = resize(scan[0].astype(np.float64), wanted, order, mode="edge", anti_aliasing=False)
    assert np.abs(resampled_volume - theirs).max() < 1e-4


def test_nothing_is_interpolated_along_an_axis_that_is_much_coarser(scan: np.ndarray) -> None:
    wanted = (17, 24, 20)
    resampled_volume = resampled(scan, wanted, (3.5, 1.0, 1.0), (2.0, 1.0, 1.0), order=3)[0]
    assert {row.tobytes() for row in resampled_volume} == {row.tobytes() for row in scan[0]}


def test_logits_come_back_linearly_and_outside_is_background(scan: np.ndarray) -> None:
    placement = placed(scan, (2.0, 1.0, 1.0), (1.5, 1.2, 0.8))
    logits = np.random.default_rng(1).normal(0, 5, (3, *placement.shape)).astype(np.float32)
    back = resampled(logits, placement.cropped, placement.network, placement.spacing, order=1)
    on_scan = np.stack(list(placement.on_scan(logits, regions=False)))
    assert np.array_equal(on_scan[(slice(None), *placement.inside)].argmax(0), back.argmax(0))
    assert on_scan.sum(0) == pytest.approx(np.ones(SHAPE))
    assert (on_scan[0, :2] == 1).all() and not on_scan[1:, :2].any()
    regions = np.stack(list(placement.on_scan(logits, regions=True)))
    assert np.array_equal((regions > 0.5)[(slice(None), *placement.inside)], back > 0)
    assert not regions[:, :2].any()


@pytest.mark.parametrize("regions", [False, True])
def test_a_certain_network_has_its_edges_where_its_logits_change_sign(scan: np.ndarray, *, regions: bool) -> None:
    """Beyond 17, single precision has no probability of a region, and beyond 85 none of a class."""

    def certain(x: torch.Tensor) -> torch.Tensor:
        logits = torch.where(x > 0, 20 * x + 18, 60 * x)
        return logits if regions else torch.cat([torch.zeros_like(x), 9 * logits], 1)

    spec = PatchSpec(
        dims=3,
        patch=(14, 24, 20),
        spacing=WANTED,
        matrix=None,
        context=1,
        normalise="volume",
        nonzero=False,
        fixed=None,
        overlap=0.5,
        written=(0, 1) if regions else (),
        convention="nnunet",
    )
    placement = placed(scan, SPACING, WANTED)
    volume = network_volume(scan, placement, normalise="volume", nonzero=False, fixed=None)
    logits = np.where(volume > 0, 20 * volume + 18, 60 * volume)
    back = resampled(logits, placement.cropped, WANTED, SPACING, order=1)[0]
    mask = segment(scan, SPACING, certain, spec)[placement.inside]
    clear = np.abs(back) > 0.01
    assert np.array_equal(mask[clear], back[clear] > 0)


def test_logits_of_probabilities_are_as_far_from_0_on_either_side() -> None:
    logits = np.array([-40.0, -12.0, 0.0, 12.0, 40.0], np.float32).reshape(1, 1, 1, 5)
    again = logits_of(torch.from_numpy(logits).sigmoid().numpy(), regions=True).ravel()
    assert again == pytest.approx(-again[::-1], abs=0.01) and again[1:4] == pytest.approx([-12, 0, 12], abs=0.01)
    classes = np.concatenate([logits, -logits])
    again = logits_of(torch.from_numpy(classes).softmax(0).numpy(), regions=False)
    assert (again[0] - again[1]).ravel() == pytest.approx(2 * logits.ravel(), abs=1e-4)


def test_labels_keep_to_the_images(scan: np.ndarray) -> None:
    labels = (scan[0] > 100).astype(np.uint8)
    assert np.array_equal(network_labels(labels, placed(scan, SPACING, SPACING)), labels[2:9, 3:22, 1:18])
    finer = network_labels(labels, placed(scan, SPACING, WANTED))
    assert finer.shape == placed(scan, SPACING, WANTED).shape and 0.3 < finer.mean() < 0.7


def test_labels_are_certain_where_all_voxels_around_have_one_class() -> None:
    """So nnU-Net, which takes a class from half of a voxel on, and `network_labels` agree there."""
    rng = np.random.default_rng(0)
    for wanted in ((2.0, 1.2, 1.2), (3.0, 0.7, 2.1), (0.8, 1.0, 0.9), SPACING):
        labels = np.kron(rng.integers(0, 4, (5, 6, 5)), np.ones((2, 4, 4))).astype(np.uint8)
        placement = placed(np.ones((1, *labels.shape)), SPACING, wanted)
        certain = certain_labels(labels, placement)
        theirs = np.zeros(placement.shape, np.uint8)
        for value in range(1, 4):
            part = (labels == value).astype(np.float32)[None]
            theirs[resampled(part, placement.shape, SPACING, wanted, order=1)[0] >= 0.5] = value
        known = certain >= 0
        assert known.mean() > 0.2 and known.all() == (wanted == SPACING)
        assert (theirs == certain)[known].all() and (network_labels(labels, placement) == certain)[known].all()


@pytest.mark.parametrize(
    ("length", "window", "expected"),
    [(110, 64, [0, 23, 46]), (64, 64, [0]), (65, 64, [0, 1]), (33, 15, [0, 6, 12, 18])],
)
def test_windows_are_evenly_apart(length: int, window: int, expected: list[int]) -> None:
    assert starts(length, window, 0.5) == expected


def test_the_step_of_windows_is_what_nnunet_is_told() -> None:
    """1 - 0.8 is less than 0.2, of which windows of 20 voxels would be one more along 40."""
    assert len(starts(40, 20, float("0.2"))) == len(starts(40, 20, step_of(0.8))) < len(starts(40, 20, 1 - 0.8))


def test_weights_are_largest_in_the_middle_and_nowhere_zero() -> None:
    weights = window_weights((9, 16))
    assert weights.shape == (9, 16) and weights.min() > 0
    assert np.unravel_index(weights.argmax(), weights.shape) == (4, 8)


@pytest.mark.parametrize("dims", [2, 3])
def test_a_network_that_sees_brightness_segments_it(scan: np.ndarray, dims: int) -> None:
    def bright(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([-x, x], 1)

    spec = PatchSpec(
        dims=dims,
        patch=(6, 8, 8)[3 - dims :],
        spacing=SPACING if dims == 3 else (None, *SPACING[1:]),
        matrix=None,
        context=1,
        normalise="volume",
        nonzero=False,
        fixed=None,
        overlap=0.5,
        mirror=tuple(range(dims)),
        convention="nnunet",
    )
    shown: list[np.ndarray] = []
    certainty = np.empty(SHAPE, np.float32)
    mask = segment(scan, SPACING, bright, spec, certainty=certainty, see=shown.append)
    inside = scan[(0, *(slice(*edge) for edge in BOX))]
    assert mask.sum() == (inside > inside.mean()).sum()
    assert (shown[0].shape[1:] == inside.shape) and (certainty > 0).all()
