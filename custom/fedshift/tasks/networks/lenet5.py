"""LeNet-5, which FedFA names for EMNIST: 66,126 parameters at 28 x 28 with one channel and 62 classes.

LeCun et al., "Gradient-Based Learning Applied to Document Recognition", Proceedings of the IEEE 1998. As is usual
today, and unlike the original: ReLU in place of tanh, max-pooling in place of trained subsampling, every filter sees
all channels, a linear last layer. FedFA's released code has no network for EMNIST.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedshift.schema.errors import ConfigError
from fedshift.tasks.stages import Stage


class LeNet5(nn.Module):
    """(B, in_channels, S, S) -> logits (B, n_classes): twice conv 5x5, ReLU, max-pool; three linear layers."""

    def __init__(self, *, in_channels: int, n_classes: int, size: int) -> None:
        """``size`` is S, a multiple of 4 from 12; the second convolution is not padded and takes 4 off its input."""
        super().__init__()
        self.in_channels = in_channels
        self.conv1 = nn.Conv2d(in_channels, 6, 5, padding=2)
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.pool2 = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(16 * (size // 4 - 2) ** 2, 120)
        self.fc2 = nn.Linear(120, 84)
        self.head = nn.Linear(84, n_classes)

    @property
    def stages(self) -> tuple[Stage, ...]:
        return Stage(self.pool1, 6), Stage(self.pool2, 16)

    def embed(self, x: Tensor) -> Tensor:
        """The embedding, (B, 84)."""
        x = self.pool1(functional.relu(self.conv1(x)))
        x = self.pool2(functional.relu(self.conv2(x)))
        x = functional.relu(self.fc1(torch.flatten(x, 1)))
        return functional.relu(self.fc2(x))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embed(x))
        return logits


def build(*, in_channels: int, n_classes: int, size: int = 28) -> LeNet5:
    """For images of ``size`` x ``size``."""
    if size < 12 or size % 4:
        raise ConfigError("invalid-value", f"network lenet5: size must be a multiple of 4 and at least 12, not {size}")
    return LeNet5(in_channels=in_channels, n_classes=n_classes, size=size)
