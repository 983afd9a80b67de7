"""From voxels to classes, slice by slice, as from the probabilities of the whole volume."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedshift.runtime.grids import network_volume, shape_at
from fedshift.runtime.segmentation import (
    PatchSpec,
    SliceSpec,
    as_images,
    as_volume,
    classes_of,
    network_images,
    segment,
    softmax_in_place,
)
from fedshift.runtime.windows import sliding

SCAN = (45, 20, 26)
SPACING = (2.0, 1.0, 1.0)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("wanted", [None, (3.1, 1.5, 1.0), (0.7, 0.8, 1.1), (0.2, 1.0, 1.0), (90.0, 1.0, 1.0)], ids=str)
def test_a_scan_is_segmented_slice_by_slice_as_from_all_its_probabilities(
    wanted: tuple[float, ...] | None, dims: int
) -> None:
    voxels = np.random.default_rng(0).normal(size=(2, *SCAN)).astype(np.float32)
    patch, context = ((8, 12, 12), 1) if dims == 3 else ((12, 16), 3)
    intensities: dict[str, Any] = {"normalise": "volume", "nonzero": False, "fixed": None}
    where: dict[str, Any] = {"patch": patch, "overlap": 0.5, "mirror": (0,)}
    generator = torch.Generator().manual_seed(0)
    kernel = torch.randn(4, 2 * context, *[3] * dims, generator=generator)
    bent = torch.randn(patch, generator=generator)

    def network(x: torch.Tensor) -> torch.Tensor:
        convolve = torch.nn.functional.conv3d if dims == 3 else torch.nn.functional.conv2d
        return convolve(x, kernel, padding=1) + bent

    shape = shape_at(SCAN, SPACING, wanted)
    images = as_images(network_volume(voxels, shape, **intensities), dims=dims, context=context)
    whole = as_volume(softmax_in_place(sliding(network, images, **where)), dims)
    sure = np.zeros(SCAN, np.float32)
    expected = classes_of(whole, SCAN, largest_component=(1, 2, 3), certainty=sure)
    assert set(np.unique(expected)) == {0, 1, 2, 3}

    seen: list[np.ndarray] = []
    certainty = np.zeros(SCAN, np.float32)
    options = {"spacing": wanted, "matrix": None, "dims": dims, "context": context, "largest_component": (1, 2, 3)}
    spec = PatchSpec(**intensities, **where, **options)
    mask = segment(voxels, SPACING, network, spec, certainty=certainty, see=seen.append)
    assert np.array_equal(mask, expected) and np.array_equal(certainty, sure)
    assert np.array_equal(np.concatenate(seen, 1), whole)
    assert len(seen) > 1 or shape[0] <= 8
    assert np.array_equal(segment(voxels, SPACING, network, spec), expected)


@pytest.mark.parametrize("shape", [(1, 3, 5, 6, 7), (4, 3, 6, 7), (1, 3, 6, 7)])
def test_probabilities_take_the_memory_of_the_logits(shape: tuple[int, ...]) -> None:
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    wanted = logits.softmax(1)
    probabilities = softmax_in_place(logits)
    assert probabilities.data_ptr() == logits.data_ptr()
    torch.testing.assert_close(probabilities, wanted)


def test_only_the_largest_part_of_each_class_is_kept_if_asked() -> None:
    probability = np.zeros((3, 12, 20, 24), np.float32)
    probability[0] = 0.5
    probability[1, 2:6, 2:6, 2:6] = probability[1, 10, 15, 15] = probability[2, 8, 8, 8] = 1
    probability[2, 10, 17:, 17:] = 1
    ways: tuple[tuple[int, ...], ...] = ((), (1,), (2,), (1, 2))
    counted = []
    for asked in ways:
        classes = classes_of(probability, (12, 20, 24), largest_component=asked)
        counted.append([(classes == 1).sum(), (classes == 2).sum()])
    assert counted == [[65, 22], [64, 22], [65, 21], [64, 21]]


def test_only_the_largest_part_of_the_regions_that_are_named_is_kept() -> None:
    probability = np.zeros((2, 4, 8, 8), np.float32)
    probability[:, 1, 1:4, 1:4] = probability[0, 3, 6, 6] = probability[1, 3, 7, 7] = 1
    sets = classes_of(probability, (4, 8, 8), regions=True, largest_component=(2,))
    assert sets[1, 2, 2] == 3 and sets[3, 6, 6] == 1 and sets[3, 7, 7] == 0


def test_the_outermost_slices_are_their_own_neighbours() -> None:
    stack = np.arange(40, dtype=np.uint8)[:, None, None].repeat(8, 1).repeat(8, 2)
    spec = SliceSpec(matrix=8, context=3, scale=255, clip_above_quantile=1)
    x = torch.cat(network_images(stack[None] * (255 / 39), None, spec)).div(255 / 39).round()
    assert x[0, :, 0, 0].tolist() == [0, 0, 1] and x[33, :, 0, 0].tolist() == [32, 33, 34]
    assert x[39, :, 0, 0].tolist() == [38, 39, 39]
