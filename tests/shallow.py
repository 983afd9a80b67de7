"""The networks of small jobs with fewer layers: a third of the arrays and less to train, send and store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from fedshift.tasks.networks import digits_cnn, unet
from fedshift.tasks.stages import Stage

WholeUNet = unet.UNet
"""What `ShallowUNet` stands for, for a test among others that needs its size."""


class ShallowUNet(nn.Module):
    """The papers' U-Net with one of its four levels, and one convolution in a block in place of two."""

    def __init__(
        self,
        *,
        in_channels: int = 3,
        n_classes: int = 2,
        features: int = 32,
        bn_momentum: float = 0.1,
        norm: unet.Norm = "batch",
        spatial_dims: int = 2,
    ) -> None:
        super().__init__()
        self.in_channels = in_channels

        def block(channels: int, width: int, name: str) -> nn.Sequential:
            return unet._block(channels, width, name, norm, spatial_dims)[:3]

        self.encoder1 = block(in_channels, features, "enc1")
        self.pool1 = unet.POOL[spatial_dims](2)
        self.bottleneck = block(features, 2 * features, "bottleneck")
        self.upconv1 = unet.UP[spatial_dims](2 * features, features, 2, stride=2)
        self.decoder1 = block(2 * features, features, "dec1")
        self.conv = unet.CONV[spatial_dims](features, n_classes, 1)
        self.stages = (Stage(self.pool1, features), Stage(self.bottleneck, 2 * features))
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d | nn.BatchNorm3d):
                module.momentum = bn_momentum

    @property
    def head(self) -> nn.Module:
        return self.conv

    def forward(self, x: Tensor) -> Tensor:
        skip = self.encoder1(x)
        up = self.upconv1(self.bottleneck(self.pool1(skip)))
        logits: Tensor = self.conv(self.decoder1(torch.cat((up, skip), 1)))
        return logits


class ShallowCnn(digits_cnn.DigitsCnn):
    """FRAug's network for Digits with two of its three convolutions and one of its two linear layers."""

    def __init__(self, *, in_channels: int, n_classes: int, size: int, width: int) -> None:
        nn.Module.__init__(self)
        self.in_channels = in_channels
        self.widths = (width, width)
        self.block1 = self._block(in_channels, width, pooled=True)
        self.block2 = self._block(width, width, pooled=True)
        flat = width * (size // 4) ** 2
        self.fc = nn.Sequential(nn.Linear(flat, 8 * width), nn.BatchNorm1d(8 * width), nn.ReLU())
        self.head = nn.Linear(8 * width, n_classes)

    @property
    def stages(self) -> tuple[Stage, ...]:
        return Stage(self.block1, self.widths[0]), Stage(self.block2, self.widths[1])

    def embed(self, x: Tensor) -> Tensor:
        embedding: Tensor = self.fc(torch.flatten(self.block2(self.block1(x)), 1))
        return embedding


def shallow_networks() -> Iterator[None]:
    """Jobs that name ``unet`` or ``digits_cnn`` have these networks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unet, "UNet", ShallowUNet)
        patch.setattr(digits_cnn, "DigitsCnn", ShallowCnn)
        yield
