"""The network of a plan: depth, strides and kernels by nnU-Net v2's rule, and how much memory a training step takes.

Isensee et al., "nnU-Net: a self-configuring method for deep learning-based biomedical image segmentation", Nature
Methods 2021, and the released planner (``get_pool_and_conv_props``): an axis is halved as long as it has at least
twice `LEAST_EDGE` voxels, but only with those whose voxels are less than twice as long as the smallest; kernels are 1
along an axis whose voxels are longer, and 3 elsewhere and in the bottleneck. The patch is then padded to what the
halvings divide.

Memory is counted without computing anything: the network is built on PyTorch's meta device, and what its forward pass
keeps for the backward pass, which grows with the voxels, is counted for a small patch of each topology.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

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


GIGA = 1e9
BACKWARD, WORKSPACE = 1.5, 0.15 * GIGA
"""Peak of a step in multiples of what the forward pass keeps, and bytes that convolutions work with. Measured on a CPU:
with these the estimate was 1.10, 1.18 and 1.10 times the peak (patches of 40x56x40, 16x96x96 and 192x192)."""
COPIES = 4
"""Of the network's weights: themselves, their gradients, and up to two of the optimiser's."""
BASE_FEATURES = 32
MOST_FEATURES = {2: 512, 3: 320}
"""nnU-Net's widths: 32 in the first stage, twice as many in each further one up to these."""


@dataclass(frozen=True)
class NetworkShape:
    """The parts of a network that its memory depends on."""

    topology: Topology
    channels: int
    classes: int

    @property
    def dims(self) -> int:
        """2 or 3."""
        return len(self.topology.divisor)

    @property
    def filters(self) -> tuple[int, ...]:
        """Features of each stage."""
        return tuple(min(BASE_FEATURES * 2**stage, MOST_FEATURES[self.dims]) for stage in range(self.topology.depth))

    @property
    def supervised(self) -> int:
        """Outputs of lower resolution that are trained too: of every stage but the first and the bottleneck."""
        return self.topology.depth - 2

    def options(self) -> dict[str, Any]:
        """The options of MONAI's DynUNet, without channels and classes."""
        strides = [list(stride) for stride in self.topology.strides]
        options: dict[str, Any] = {
            "kernel_size": [list(kernel) for kernel in self.topology.kernels],
            "strides": strides,
            "upsample_kernel_size": strides[1:],
            "filters": list(self.filters),
        }
        if self.supervised > 0:
            options |= {"deep_supervision": True, "deep_supr_num": self.supervised}
        return options

    def nnunet_options(self) -> dict[str, Any]:
        """The same of nnU-Net's own network, ``nnunet.PlainConvUNet``."""
        return {
            "features_per_stage": list(self.filters),
            "kernel_sizes": [list(kernel) for kernel in self.topology.kernels],
            "strides": [list(stride) for stride in self.topology.strides],
        }

    def bytes_of_step(self, patch: Sequence[int], batch: int) -> float:
        """Bytes of a training step in single precision."""
        weights, kept = _counted(self)
        return WORKSPACE + COPIES * weights + BACKWARD * batch * kept * prod(patch)


@lru_cache(maxsize=256)
def _counted(shape: NetworkShape) -> tuple[float, float]:
    """Bytes of the weights, and bytes that are kept for each voxel of a patch."""
    import torch
    from monai.networks.nets import DynUNet
    from torch.autograd.graph import saved_tensors_hooks

    with torch.device("meta"):
        net = DynUNet(
            spatial_dims=shape.dims,
            in_channels=shape.channels,
            out_channels=shape.classes,
            norm_name=("INSTANCE", {"affine": True}),
            **shape.options(),
        ).train()
        edges = [2 * edge for edge in shape.topology.divisor]  # instance norm needs more than one voxel
        x = torch.empty(1, shape.channels, *edges)
    weights = {value.untyped_storage()._cdata: value.nbytes for value in net.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(value: torch.Tensor) -> torch.Tensor:
        kept[value.untyped_storage()._cdata] = value.untyped_storage()
        return value.detach()  # an output that is kept by what made it would never be freed

    with saved_tensors_hooks(keep, lambda value: value):
        out = net(x)
        out.softmax(-shape.dims - 1)
    count = sum(storage.nbytes() for address, storage in kept.items() if address not in weights)
    return float(sum(weights.values())), count / prod(edges)
