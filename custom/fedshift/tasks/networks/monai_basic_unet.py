"""MONAI's ``BasicUNet`` with its stages named: the outputs of its max-poolings, and its deepest convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from monai.networks.nets.basic_unet import BasicUNet as MonaiBasicUNet
from torch import nn

from fedshift.tasks.stages import Stage


class BasicUNet(MonaiBasicUNet):
    """(B, in_channels, H, W) -> logits (B, n_classes, H, W)."""

    def __init__(self, *, in_channels: int, n_classes: int, features: Sequence[int]) -> None:
        """``features``: six widths, as MONAI counts them (five levels and the last decoder)."""
        super().__init__(
            spatial_dims=2, in_channels=in_channels, out_channels=n_classes, features=tuple(features), norm="batch"
        )
        self.in_channels = in_channels
        self._widths = tuple(features)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The pooled branches, which skip connections do not see, and the bottleneck."""
        downs = (self.down_1, self.down_2, self.down_3, self.down_4)
        pooled = [Stage(down.max_pooling, width) for down, width in zip(downs, self._widths, strict=False)]
        return (*pooled, Stage(self.down_4, self._widths[4]))

    @property
    def head(self) -> nn.Module:
        """The last layer."""
        head: nn.Module = self.final_conv
        return head


def build(*, in_channels: int, n_classes: int, features: Sequence[int] = (32, 32, 64, 128, 256, 32)) -> BasicUNet:
    """MONAI's default widths."""
    return BasicUNet(in_channels=in_channels, n_classes=n_classes, features=features)
