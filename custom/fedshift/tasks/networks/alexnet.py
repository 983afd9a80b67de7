"""AlexNet with batch norm, as in FedFA: 12,974,154 parameters with 3 channels and ten classes.

Krizhevsky et al., "ImageNet Classification with Deep Convolutional Neural Networks", NeurIPS 2012, in the form of
FedFA's released code: every convolution and every linear layer but the last is followed by batch norm and ReLU, there
is no dropout, and the linear layers are 1024 wide. FedBN and FedRDN have them 4096 wide: ``hidden=4096``. Images are
256 x 256 in these papers; any size from 63 x 63 will do, as the last features are pooled to 6 x 6.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from fedshift.schema.errors import ConfigError
from fedshift.tasks.stages import Stage

POOLED = 6


def _layer(number: int, conv: nn.Conv2d, *, pooled: bool) -> nn.Sequential:
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    modules[f"conv{number}"] = conv
    modules[f"bn{number}"] = nn.BatchNorm2d(conv.out_channels)
    modules[f"relu{number}"] = nn.ReLU(inplace=True)
    if pooled:
        modules[f"pool{number}"] = nn.MaxPool2d(3, 2)
    return nn.Sequential(modules)


class AlexNet(nn.Module):
    """(B, in_channels, H, W) -> logits (B, n_classes); H and W are at least 63."""

    def __init__(self, *, in_channels: int, n_classes: int, hidden: int) -> None:
        """``hidden`` is the width of the two linear layers before the head."""
        super().__init__()
        self.in_channels = in_channels
        self.layer1 = _layer(1, nn.Conv2d(in_channels, 64, 11, stride=4, padding=2), pooled=True)
        self.layer2 = _layer(2, nn.Conv2d(64, 192, 5, padding=2), pooled=True)
        self.layer3 = _layer(3, nn.Conv2d(192, 384, 3, padding=1), pooled=False)
        self.layer4 = _layer(4, nn.Conv2d(384, 256, 3, padding=1), pooled=False)
        self.layer5 = _layer(5, nn.Conv2d(256, 256, 3, padding=1), pooled=True)
        self.avgpool = nn.AdaptiveAvgPool2d(POOLED)
        linear: OrderedDict[str, nn.Module] = OrderedDict()
        for fc, bn, width in ((1, 6, 256 * POOLED**2), (2, 7, hidden)):
            linear[f"fc{fc}"] = nn.Linear(width, hidden)
            linear[f"bn{bn}"] = nn.BatchNorm1d(hidden)
            linear[f"relu{bn}"] = nn.ReLU(inplace=True)
        self.classifier = nn.Sequential(linear)
        self.head = nn.Linear(hidden, n_classes)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """After each convolutional layer: its pooling where it has one, else its ReLU."""
        layers = (self.layer1, self.layer2, self.layer3, self.layer4, self.layer5)
        return tuple(Stage(layer, channels) for layer, channels in zip(layers, (64, 192, 384, 256, 256), strict=True))

    def embed(self, x: Tensor) -> Tensor:
        """The embedding, (B, hidden)."""
        x = self.layer5(self.layer4(self.layer3(self.layer2(self.layer1(x)))))
        embedding: Tensor = self.classifier(torch.flatten(self.avgpool(x), 1))
        return embedding

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embed(x))
        return logits


def build(*, in_channels: int, n_classes: int, hidden: int = 1024) -> AlexNet:
    """FedFA's at ``hidden=1024``, FedBN's and FedRDN's at 4096."""
    if hidden < 1:
        raise ConfigError("invalid-value", f"network alexnet: hidden must be at least 1, not {hidden}")
    return AlexNet(in_channels=in_channels, n_classes=n_classes, hidden=hidden)
