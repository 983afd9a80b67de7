"""Grad-CAM: it is where the class is, for every classifier, and the network is left as it was."""

from __future__ import annotations

import pytest
import torch
from errors import raises
from torch import Tensor, nn

from fedshift.tasks import networks
from fedshift.tasks.saliency import grad_cam
from fedshift.tasks.stages import Stage


class Bright(nn.Module):
    """Class 1 is how bright the brightest quarter is, class 0 the opposite."""

    in_channels = 1

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(4)
        self.scale = nn.Parameter(torch.ones(1))

    @property
    def stages(self) -> tuple[Stage, ...]:
        return (Stage(self.pool, 1),)

    def forward(self, x: Tensor) -> Tensor:
        level = (self.scale * self.pool(x)).flatten(1).mean(1)
        return torch.stack([-level, level], 1)


def test_it_is_where_the_class_is() -> None:
    x = torch.zeros(1, 1, 16, 16)
    x[..., 8:, 8:] = 1
    places = grad_cam(Bright(), x, 1)
    assert places.shape == (16, 16) and places[12, 12] == 1 and places[3, 3] == 0
    assert (grad_cam(Bright(), x, 0) == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "dims"),
    [
        ("resnet18", {}, 2),
        ("digits_cnn", {"size": 64}, 2),
        ("monai.DenseNet121", {"init_features": 8, "growth_rate": 4}, 2),
        ("monai.EfficientNetBN", {}, 2),
        ("monai.SEResNet50", {"layers": [1, 1, 1, 1]}, 2),
        ("monai.resnet10", {"widen_factor": 0.25}, 3),
    ],
)
def test_every_kind_of_network_has_one(name: str, options: dict[str, object], dims: int) -> None:
    net = networks.build(name, options, in_channels=3, n_classes=2, seed=0, spatial_dims=dims, patch=(64,) * dims)
    x = torch.rand(1, 3, *[64] * dims)
    net.eval()
    before, hooks = net(x), sum(len(m._forward_hooks) + len(m._backward_hooks) for m in net.modules())
    with torch.inference_mode():
        maps = [grad_cam(net, x, k) for k in range(2)]
    assert all(found.shape == x.shape[2:] and found.isfinite().all() and found.min() >= 0 for found in maps)
    assert max(float(found.max()) for found in maps) == pytest.approx(1)
    assert torch.equal(net(x), before) and all(parameter.grad is None for parameter in net.parameters())
    assert hooks == sum(len(m._forward_hooks) + len(m._backward_hooks) for m in net.modules())


def test_a_network_without_stages_has_none() -> None:
    net = networks.build(
        *("monai.ViT", {"num_layers": 1, "hidden_size": 24, "mlp_dim": 24, "num_heads": 2}),
        in_channels=1,
        n_classes=2,
        seed=0,
        patch=(32, 32),
    )
    with raises("no-saliency", naming="ViT"):
        grad_cam(net, torch.rand(1, 1, 32, 32), 0)
