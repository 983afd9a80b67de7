"""FRAug's six-layer network for Digits at 32 x 32: 18,151,370 parameters at full width.

Three convolutions 5x5 with batch norm and ReLU, the first two max-pooled (3, stride 2, padding 1); two linear layers
with batch norm and ReLU; a linear head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedshift.schema.errors import ConfigError
from fedshift.tasks.stages import Stage


class DigitsCnn(nn.Module):
    """(B, in_channels, S, S) -> logits (B, n_classes)."""

    def __init__(self, *, in_channels: int, n_classes: int, size: int, width: int) -> None:
        """``size`` is S, a multiple of 4; ``width`` the channels of the first convolution (64 in the paper)."""
        super().__init__()
        w = width
        self.in_channels = in_channels
        self.widths = (w, w, 2 * w)
        self.block1 = self._block(in_channels, w, pooled=True)
        self.block2 = self._block(w, w, pooled=True)
        self.block3 = self._block(w, 2 * w, pooled=False)
        flat = 2 * w * (size // 4) ** 2
        self.fc1 = nn.Sequential(nn.Linear(flat, 32 * w), nn.BatchNorm1d(32 * w), nn.ReLU())
        self.fc2 = nn.Sequential(nn.Linear(32 * w, 8 * w), nn.BatchNorm1d(8 * w), nn.ReLU())
        self.head = nn.Linear(8 * w, n_classes)

    @staticmethod
    def _block(in_channels: int, channels: int, *, pooled: bool) -> nn.Sequential:
        layers = [nn.Conv2d(in_channels, channels, 5, padding=2), nn.BatchNorm2d(channels), nn.ReLU()]
        return nn.Sequential(*layers, *([nn.MaxPool2d(3, 2, 1)] if pooled else []))

    @property
    def stages(self) -> tuple[Stage, ...]:
        blocks = (self.block1, self.block2, self.block3)
        return tuple(Stage(block, channels) for block, channels in zip(blocks, self.widths, strict=True))

    def embed(self, x: Tensor) -> Tensor:
        """The embedding, (B, 8 width)."""
        x = self.block3(self.block2(self.block1(x)))
        embedding: Tensor = self.fc2(self.fc1(torch.flatten(x, 1)))
        return embedding

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embed(x))
        return logits


def build(*, in_channels: int, n_classes: int, size: int = 32, width: int = 64) -> DigitsCnn:
    """The paper's at ``size=32, width=64``."""
    if size < 4 or size % 4 or width < 1:
        raise ConfigError(
            "invalid-value", f"network digits_cnn: size {size} must be a multiple of 4 and width {width} at least 1"
        )
    return DigitsCnn(in_channels=in_channels, n_classes=n_classes, size=size, width=width)
