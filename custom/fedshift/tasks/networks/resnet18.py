"""ResNet-18: 11,689,512 parameters with 3 channels and 1000 classes.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016: eight blocks of two convolutions 3x3 with a
shortcut, in four stages of 64 to 512 channels; a stage that changes size has a convolution 1x1 in its first shortcut.
Keys and shapes of the ``state_dict`` are those of torchvision's checkpoints, so that the head is stored as ``fc``.

``norm=group`` has group norm with two groups in place of batch norm, as the released code of "Mitigating Data
Heterogeneity…" does. ``stem=small`` is for images of about 32 x 32: it begins with a convolution 3x3 of stride 1, as
the paper's networks for CIFAR-10 do, and has no max-pooling.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fedshift.schema.errors import ConfigError
from fedshift.tasks.stages import Stage

Norm = Literal["batch", "group"]
Stem = Literal["imagenet", "small"]
WIDTHS = (64, 128, 256, 512)


def _norm(channels: int, norm: Norm) -> nn.Module:
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(2, channels)


class Block(nn.Module):
    """Two convolutions 3x3, whose result is added to the input before the last ReLU."""

    def __init__(self, in_channels: int, channels: int, *, stride: int, norm: Norm) -> None:
        """``stride`` is that of the first convolution and of the shortcut."""
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = _norm(channels, norm)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = _norm(channels, norm)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or in_channels != channels:
            shortcut = nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, _norm(channels, norm))

    def forward(self, x: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, channels, H / stride, W / stride)."""
        change = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out: Tensor = self.relu(change + self.downsample(x))
        return out


class ResNet18(nn.Module):
    """(B, in_channels, H, W) -> logits (B, n_classes)."""

    def __init__(self, *, in_channels: int, n_classes: int, norm: Norm, stem: Stem) -> None:
        """Convolutions start from He's normal distribution (fan-out), norms at scale 1 and shift 0."""
        super().__init__()
        self.in_channels = in_channels
        small = stem == "small"
        size, stride, padding = (3, 1, 1) if small else (7, 2, 3)
        self.conv1 = nn.Conv2d(in_channels, WIDTHS[0], size, stride=stride, padding=padding, bias=False)
        self.bn1 = _norm(WIDTHS[0], norm)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        before = (WIDTHS[0], *WIDTHS)
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            nn.Sequential(
                Block(before[i], width, stride=1 if i == 0 else 2, norm=norm), Block(width, width, stride=1, norm=norm)
            )
            for i, width in enumerate(WIDTHS)
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(WIDTHS[-1], n_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def stages(self) -> tuple[Stage, ...]:
        """After each of the four stages."""
        layers = (self.layer1, self.layer2, self.layer3, self.layer4)
        return tuple(Stage(layer, width) for layer, width in zip(layers, WIDTHS, strict=True))

    @property
    def head(self) -> nn.Linear:
        """The last layer, under its name in checkpoints."""
        return self.fc

    def embed(self, x: Tensor) -> Tensor:
        """The embedding, (B, 512)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return torch.flatten(self.avgpool(x), 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embed(x))
        return logits


def build(*, in_channels: int, n_classes: int, norm: Norm = "batch", stem: Stem = "imagenet") -> ResNet18:
    """The paper's for ImageNet, unless options say otherwise."""
    options: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        ("norm", norm, get_args(Norm)),
        ("stem", stem, get_args(Stem)),
    )
    for key, value, known in options:
        if value not in known:
            raise ConfigError("invalid-value", f"network resnet18: {key} must be {' or '.join(known)}, not {value!r}")
    return ResNet18(in_channels=in_channels, n_classes=n_classes, norm=norm, stem=stem)
