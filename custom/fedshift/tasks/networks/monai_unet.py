"""MONAI's ``UNet`` (residual units, strided convolutions) with its stages named.

Each level of MONAI's network sends the same tensor into the skip connection and deeper. Stages 1 to 4 are the
inputs of the deeper part, so what a method changes there does not reach the skip; stage 5 is the bottleneck's output.
"""

from __future__ import annotations

from collections.abc import Sequence

from monai.networks.layers.simplelayers import SkipConnection
from monai.networks.nets.unet import UNet as MonaiUNet

from fedshift.tasks.stages import Stage


class UNet(MonaiUNet):
    """(B, in_channels, H, W) -> logits (B, n_classes, H, W)."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Inputs of the deeper parts, and the output of the deepest."""
        deeper = [m.submodule for m in self.modules() if isinstance(m, SkipConnection)]
        inner = [Stage(m, c, "input") for m, c in zip(deeper, self.channels, strict=False)]
        return (*inner, Stage(deeper[-1], self.channels[-1]))


def build(
    *, in_channels: int, n_classes: int, channels: Sequence[int] = (16, 32, 64, 128, 256), residual: int = 2
) -> UNet:
    """``channels`` a level, ``residual`` units a level; batch norm, so that the same methods apply."""
    return UNet(
        spatial_dims=2,
        in_channels=in_channels,
        out_channels=n_classes,
        channels=tuple(channels),
        strides=(2,) * (len(channels) - 1),
        num_res_units=residual,
        norm="batch",
    )
