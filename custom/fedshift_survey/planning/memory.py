"""How much memory a training step of a plan's network takes, counted without computing anything.

The network is built on PyTorch's meta device, where tensors have shapes and no contents, and what its forward pass
keeps for the backward pass is counted. That grows with the voxels, so a small patch is counted for each topology.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from fedshift_survey.planning.topology import Topology

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
        return value

    with saved_tensors_hooks(keep, lambda value: value):
        out = net(x)
        out.softmax(-shape.dims - 1)
    count = sum(storage.nbytes() for address, storage in kept.items() if address not in weights)
    return float(sum(weights.values())), count / prod(edges)
