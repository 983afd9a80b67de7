"""Depth, strides and kernels of a U-Net for a patch of a spacing: nnU-Net v2's rule.

Isensee et al., "nnU-Net: a self-configuring method for deep learning-based biomedical image segmentation", Nature
Methods 2021, and the released planner (``get_pool_and_conv_props``): an axis is halved as long as it has at least
twice `LEAST_EDGE` voxels, but only with those whose voxels are less than twice as long as the smallest; kernels are 1
along an axis whose voxels are longer, and 3 elsewhere and in the bottleneck. The patch is then padded to what the
halvings divide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_EDGE = 4
"""Voxels of the smallest feature map's edge."""


@dataclass(frozen=True)
class Topology:
    """A stage a row: its kernel, and the stride at its entry."""

    kernels: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def depth(self) -> int:
        """Number of stages."""
        return len(self.strides)

    @property
    def divisor(self) -> tuple[int, ...]:
        """What the edges of a patch must be multiples of."""
        product = [1] * len(self.strides[0])
        for stride in self.strides:
            product = [total * step for total, step in zip(product, stride, strict=True)]
        return tuple(product)

    def padded(self, patch: Sequence[int]) -> tuple[int, ...]:
        """The smallest patch around ``patch`` that the halvings divide."""
        return tuple(-(-edge // step) * step for edge, step in zip(patch, self.divisor, strict=True))


def topology_for(patch: Sequence[int], spacing: Sequence[float]) -> Topology:
    """The network for a patch (voxels) of a spacing (mm), axis by axis in the same order."""
    size, length = [float(edge) for edge in patch], [float(mm) for mm in spacing]
    axes = range(len(size))
    kernel = [1] * len(size)
    kernels: list[tuple[int, ...]] = []
    strides = [(1,) * len(size)]
    while True:
        large = [axis for axis in axes if size[axis] >= 2 * LEAST_EDGE]
        if not large:
            break
        finest = min(length[axis] for axis in large)
        halved = [axis for axis in large if length[axis] / finest < 2]
        if len(halved) == 1 and size[halved[0]] < 3 * LEAST_EDGE:
            break
        kernel = [3 if length[axis] / min(length) < 2 else kernel[axis] for axis in axes]
        for axis in halved:
            length[axis] *= 2
            size[axis] = -(-size[axis] // 2)
        kernels.append(tuple(kernel))
        strides.append(tuple(2 if axis in halved else 1 for axis in axes))
    kernels.append((3,) * len(size))
    return Topology(tuple(kernels), tuple(strides))
