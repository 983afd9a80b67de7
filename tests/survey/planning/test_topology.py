"""nnU-Net's rule for depth and strides, against plans that its authors have published."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift_survey.planning.network import LEAST_EDGE, topology_for

PUBLISHED = {
    "Task004 Hippocampus": ((40, 56, 40), (1.0, 1.0, 1.0), (3, 3, 3)),
    "Task005 Prostate": ((20, 320, 256), (3.6, 0.62, 0.62), (2, 6, 6)),
    "Task002 Heart": ((80, 192, 160), (1.37, 1.25, 1.25), (4, 5, 5)),
    "Task009 Spleen": ((64, 192, 160), (1.6, 0.79, 0.79), (4, 5, 5)),
}
"""Patch, spacing in mm, and halvings of each axis, of the 3d_fullres plans (Nature Methods 2021, supplement)."""


@pytest.mark.parametrize("task", PUBLISHED)
def test_published_plans_are_found_again(task: str) -> None:
    patch, spacing, halvings = PUBLISHED[task]
    topology = topology_for(patch, spacing)
    assert topology.divisor == tuple(2**count for count in halvings)
    assert topology.padded(patch) == patch, "the published patch is a multiple already"
    assert topology.depth == max(halvings) + 1


def test_thick_slices_have_flat_kernels_first() -> None:
    topology = topology_for((20, 320, 256), (3.6, 0.62, 0.62))
    assert topology.kernels[:3] == ((1, 3, 3), (1, 3, 3), (3, 3, 3))
    assert topology.strides[:4] == ((1, 1, 1), (1, 2, 2), (1, 2, 2), (2, 2, 2))


@given(
    st.lists(st.tuples(st.integers(1, 400), st.floats(0.2, 10)), min_size=2, max_size=3),
)
def test_every_patch_gets_a_network_that_fits(axes: list[tuple[int, float]]) -> None:
    patch, spacing = zip(*axes, strict=True)
    topology = topology_for(patch, spacing)
    padded = topology.padded(patch)
    assert len(topology.kernels) == topology.depth
    for edge, wanted, step in zip(padded, patch, topology.divisor, strict=True):
        assert edge % step == 0 and 0 <= edge - wanted < step
        assert step == 1 or edge // step >= LEAST_EDGE / 2
    assert prod(padded) >= prod(patch)
