"""The two-convolution network of "Mitigating Data Heterogeneity…" for Rotated MNIST: 28,938 parameters at 28 x 28."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedshift.schema.errors import ConfigError
from fedshift.tasks.stages import Stage


class MnistCnn(nn.Module):
    """(B, in_channels, S, S) -> logits (B, n_classes): twice conv 5x5, ReLU, max-pool; one linear layer."""

    def __init__(self, *, in_channels: int, n_classes: int, size: int) -> None:
        """``size`` is S, a multiple of 4."""
        super().__init__()
        self.in_channels = in_channels
        self.conv1 = nn.Conv2d(in_channels, 16, 5, padding=2)
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(16, 32, 5, padding=2)
        self.pool2 = nn.MaxPool2d(2)
        self.head = nn.Linear(32 * (size // 4) ** 2, n_classes)

    @property
    def stages(self) -> tuple[Stage, ...]:
        return Stage(self.pool1, 16), Stage(self.pool2, 32)

    def embed(self, x: Tensor) -> Tensor:
        """The embedding, (B, 32 (S/4)²)."""
        x = self.pool1(functional.relu(self.conv1(x)))
        x = self.pool2(functional.relu(self.conv2(x)))
        return torch.flatten(x, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embed(x))
        return logits


def build(*, in_channels: int, n_classes: int, size: int = 28) -> MnistCnn:
    """For images of ``size`` x ``size``."""
    if size < 4 or size % 4:
        raise ConfigError("invalid-value", f"network mnist_cnn: size must be a multiple of 4, not {size}")
    return MnistCnn(in_channels=in_channels, n_classes=n_classes, size=size)
