"""The U-Net of the FedFA paper (Table 14, 15): in 2D 7,763,074 parameters with 32 features; the same in 3D.

A block is twice conv 3x3 (padded, no bias), batch norm, ReLU. Four encoder stages with max-pooling, a bottleneck
of 16 times the features, four transposed convolutions with skip connections, a 1x1 convolution to logits.

``norm=batch_statistics`` has HarmoFL's batch norm: the statistics of the batch at hand in evaluation, too, and neither
running statistics nor scale and shift. A prediction then depends on the images beside it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fedshift.schema.errors import ConfigError
from fedshift.tasks.stages import Stage

Norm = Literal["batch", "batch_statistics"]


CONV = {2: nn.Conv2d, 3: nn.Conv3d}
UP = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
POOL = {2: nn.MaxPool2d, 3: nn.MaxPool3d}
NORM = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def _block(in_channels: int, features: int, name: str, norm: Norm, dims: int) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, channels in ((1, in_channels), (2, features)):
        layers[f"{name}_conv{i}"] = CONV[dims](channels, features, 3, padding=1, bias=False)
        layers[f"{name}_bn{i}"] = NORM[dims](features, affine=norm == "batch", track_running_stats=norm == "batch")
        layers[f"{name}_relu{i}"] = nn.ReLU(inplace=True)
    return nn.Sequential(layers)


class UNet(nn.Module):
    """(B, in_channels, *spatial) -> logits (B, n_classes, *spatial); each side is a multiple of 16."""

    def __init__(
        self,
        *,
        in_channels: int = 3,
        n_classes: int = 2,
        features: int = 32,
        bn_momentum: float = 0.1,
        norm: Norm = "batch",
        spatial_dims: int = 2,
    ) -> None:
        """``features`` is the width of the first stage; it doubles with each.

        ``bn_momentum`` is the weight of each training batch in batch norm's running statistics, as PyTorch defines it.
        """
        super().__init__()
        f, dims = features, spatial_dims
        self.in_channels = in_channels
        self.encoder1 = _block(in_channels, f, "enc1", norm, dims)
        self.pool1 = POOL[dims](2)
        self.encoder2 = _block(f, 2 * f, "enc2", norm, dims)
        self.pool2 = POOL[dims](2)
        self.encoder3 = _block(2 * f, 4 * f, "enc3", norm, dims)
        self.pool3 = POOL[dims](2)
        self.encoder4 = _block(4 * f, 8 * f, "enc4", norm, dims)
        self.pool4 = POOL[dims](2)
        self.bottleneck = _block(8 * f, 16 * f, "bottleneck", norm, dims)
        self.upconv4 = UP[dims](16 * f, 8 * f, 2, stride=2)
        self.decoder4 = _block(16 * f, 8 * f, "dec4", norm, dims)
        self.upconv3 = UP[dims](8 * f, 4 * f, 2, stride=2)
        self.decoder3 = _block(8 * f, 4 * f, "dec3", norm, dims)
        self.upconv2 = UP[dims](4 * f, 2 * f, 2, stride=2)
        self.decoder2 = _block(4 * f, 2 * f, "dec2", norm, dims)
        self.upconv1 = UP[dims](2 * f, f, 2, stride=2)
        self.decoder1 = _block(2 * f, f, "dec1", norm, dims)
        self.conv = CONV[dims](f, n_classes, 1)
        self._features = f
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d | nn.BatchNorm3d):
                module.momentum = bn_momentum

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The pooled branches, which skip connections do not see, and the bottleneck."""
        f = self._features
        modules = (self.pool1, self.pool2, self.pool3, self.pool4, self.bottleneck)
        return tuple(Stage(module, f * 2**i) for i, module in enumerate(modules))

    @property
    def head(self) -> nn.Module:
        return self.conv

    def forward(self, x: Tensor) -> Tensor:
        """Logits at the input's size."""
        skip1 = self.encoder1(x)
        skip2 = self.encoder2(self.pool1(skip1))
        skip3 = self.encoder3(self.pool2(skip2))
        skip4 = self.encoder4(self.pool3(skip3))
        u = self.bottleneck(self.pool4(skip4))
        u = self.decoder4(torch.cat((self.upconv4(u), skip4), 1))
        u = self.decoder3(torch.cat((self.upconv3(u), skip3), 1))
        u = self.decoder2(torch.cat((self.upconv2(u), skip2), 1))
        u = self.decoder1(torch.cat((self.upconv1(u), skip1), 1))
        logits: Tensor = self.conv(u)
        return logits


def build(
    *,
    in_channels: int,
    n_classes: int,
    features: int = 32,
    bn_momentum: float = 0.1,
    norm: Norm = "batch",
    spatial_dims: int = 2,
) -> UNet:
    """The paper's network has 32 features and batch norm's momentum 0.1; 16 features train three times as fast."""
    if features < 1:
        raise ConfigError("invalid-value", f"network unet: features must be at least 1, not {features}")
    if not 0 < bn_momentum <= 1:
        raise ConfigError(
            "invalid-value", f"network unet: bn_momentum must be above 0 and at most 1, not {bn_momentum}"
        )
    if norm not in get_args(Norm):
        raise ConfigError(
            "invalid-value", f"network unet: norm must be one of {', '.join(get_args(Norm))}, not {norm!r}"
        )
    if norm == "batch_statistics" and bn_momentum != 0.1:
        raise ConfigError(
            "no-effect",
            "network unet: bn_momentum has no effect with norm=batch_statistics, which has no running statistics: set "
            "network.options.bn_momentum=0.1",
        )
    return UNet(
        in_channels=in_channels,
        n_classes=n_classes,
        features=features,
        bn_momentum=bn_momentum,
        norm=norm,
        spatial_dims=spatial_dims,
    )
