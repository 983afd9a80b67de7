"""The network keeps sizes in 2D and 3D, and is one that fedshift makes by its name."""

from __future__ import annotations

import pytest
import torch

from fedshift.schema.components import choose
from fedshift.schema.errors import ConfigError
from fedshift.tasks import networks

NAME = "fedshift-template:ladder"


@pytest.mark.parametrize("dims", [2, 3])
def test_sizes(dims: int) -> None:
    choose([NAME])
    net = networks.build(NAME, {"features": 4}, in_channels=2, n_classes=3, seed=0, spatial_dims=dims)
    assert net(torch.zeros(1, 2, *[8] * dims)).shape == (1, 3, *[8] * dims)


def test_an_odd_width_is_refused_in_a_sentence() -> None:
    choose([NAME])
    with pytest.raises(ConfigError, match="even number"):
        networks.build(NAME, {"features": 3}, in_channels=2, n_classes=3, seed=0)
