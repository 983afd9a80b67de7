"""Instance norm that keeps channels last gives what torch's gives."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fedshift.tasks.instance_norm import keep_channels_last

LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def made(dims: int, **options: bool) -> nn.Module:
    torch.manual_seed(0)
    norm = (nn.InstanceNorm2d, nn.InstanceNorm3d)[dims - 2](6, affine=True, dtype=torch.float64, **options)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


def features(dims: int, size: int = 5) -> Tensor:
    scale = torch.tensor([1.0, 20.0, 0.1], dtype=torch.float64).view(3, *[1] * (dims + 1))  # samples differ
    x = torch.randn(3, 6, *[size] * dims) * scale + 2
    return x.contiguous(memory_format=LAST[dims]).requires_grad_()


def results(norm: nn.Module, x: Tensor) -> list[Tensor]:
    """The output, and the gradients of a loss that depends on each of its values in another way."""
    y = norm(x)
    loss = (y * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum()
    return [y, *torch.autograd.grad(loss, [x, *norm.parameters()])]


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("training", [True, False])
def test_values_and_gradients_are_torch_s_and_features_stay_in_channels_last(dims: int, training: bool) -> None:
    plain = made(dims).train(training)
    norm = copy.deepcopy(plain)
    keep_channels_last(nn.Sequential(norm))
    x = features(dims)
    for ours, torch_s in zip(results(norm, x), results(plain, x), strict=True):
        torch.testing.assert_close(ours, torch_s)
    assert norm(x).is_contiguous(memory_format=LAST[dims])
    assert not plain(x).is_contiguous(memory_format=LAST[dims]), "torch keeps channels last by itself now"


def test_one_that_keeps_running_statistics_predicts_with_them_still() -> None:
    norm = made(2, track_running_stats=True)
    keep_channels_last(norm)
    norm(features(2))
    x = torch.zeros(1, 6, 4, 4, dtype=torch.float64)
    assert (norm.eval()(x) - norm.bias.view(-1, 1, 1)).all(), "a sample's own mean and variance give the bias alone"


def test_a_copy_has_its_own_weights() -> None:
    norm = made(2)
    keep_channels_last(norm)
    copied = copy.deepcopy(norm)
    nn.init.zeros_(norm.weight)
    nn.init.zeros_(norm.bias)
    assert not norm(features(2)).any() and copied(features(2)).all()


def test_a_single_voxel_is_refused_as_by_torch() -> None:
    norm = made(3)
    keep_channels_last(norm)
    with pytest.raises(ValueError, match="Expected more than 1"):
        norm(features(3, size=1))
