"""Ladder: a small U-Net of two levels, in 2D and 3D.

Convolution 3x3, group norm and ReLU at each level; the lower one at half the size; a skip connection; a 1x1 convolution
to logits. Group norm has no running statistics, which would differ between sites.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedshift.tasks.stages import Stage

CONV = {2: nn.Conv2d, 3: nn.Conv3d}
UP = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
POOL = {2: nn.MaxPool2d, 3: nn.MaxPool3d}


class Ladder(nn.Module):
    """(B, in_channels, *spatial) -> logits (B, n_classes, *spatial); sides are even."""

    def __init__(self, in_channels: int, n_classes: int, features: int, spatial_dims: int) -> None:
        """``features``: channels of the upper level; the lower one has twice as many."""
        super().__init__()
        self.in_channels = in_channels

        def level(channels: int, width: int) -> nn.Sequential:
            return nn.Sequential(CONV[spatial_dims](channels, width, 3, padding=1), nn.GroupNorm(2, width), nn.ReLU())

        self.upper = level(in_channels, features)
        self.pool = POOL[spatial_dims](2)
        self.lower = level(features, 2 * features)
        self.up = UP[spatial_dims](2 * features, features, 2, stride=2)
        self.merge = level(2 * features, features)
        self.head = CONV[spatial_dims](features, n_classes, 1)
        # Where methods see and change features: encoder stages in order, the last one is the bottleneck.
        self.stages = (Stage(self.pool, features), Stage(self.lower, 2 * features))

    def forward(self, x: Tensor) -> Tensor:
        """Logits at the input's size."""
        skip = self.upper(x)
        below = self.up(self.lower(self.pool(skip)))
        logits: Tensor = self.head(self.merge(torch.cat((skip, below), 1)))
        return logits


def build(*, in_channels: int, n_classes: int, features: int = 16, spatial_dims: int = 2) -> Ladder:
    """What fedshift calls. ``features`` is an option of jobs; the rest follows from the task."""
    if features < 2 or features % 2:
        raise ValueError(f"features must be an even number from 2, not {features}")
    return Ladder(in_channels, n_classes, features, spatial_dims)
