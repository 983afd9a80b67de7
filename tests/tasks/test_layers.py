"""What a processor computes otherwise: instance norm in channels last, and shallow convolutions in float32."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedshift.tasks.layers import keep_channels_last, protect
from fedshift.tasks.precision import autocast, prepare

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


# --- gradients in bf16 of convolutions whose volumes are shallow --------------------------------------


CPU = torch.device("cpu")
CONVOLUTIONS: dict[str, Callable[[], nn.Conv3d]] = {
    "3x3x3": lambda: nn.Conv3d(16, 16, 3, padding=1),
    "5x5x5": lambda: nn.Conv3d(16, 16, 5, padding=2),
    "3x3x3 same": lambda: nn.Conv3d(16, 16, 3, padding="same"),
}


@pytest.mark.parametrize("kernel", CONVOLUTIONS)
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_gradients_are_those_of_full_precision(kernel: str, depth: int) -> None:
    torch.manual_seed(0)
    exact = CONVOLUTIONS[kernel]()
    x = torch.randn(2, 16, depth, 5, 6)
    exact(x).square().mean().backward()
    net = prepare(copy.deepcopy(exact), "bf16", CPU)
    for _ in range(5):
        # What was computed before leaves such numbers in the memory that a gradient is written to.
        used = [torch.full((2**size,), torch.inf, dtype=torch.bfloat16) for size in range(6, 20)]
        del used
        net.zero_grad()
        with autocast("bf16", CPU):
            y = net(x)
            assert torch.is_autocast_enabled("cpu")
        y.float().square().mean().backward()
        assert exact.weight.grad is not None and isinstance(net, nn.Conv3d) and net.weight.grad is not None
        torch.testing.assert_close(net.weight.grad, exact.weight.grad, rtol=0.05, atol=1e-4)


def test_deep_volumes_and_predictions_stay_in_bf16() -> None:
    net = nn.Conv3d(4, 4, 3, padding=1)
    protect(net)
    with torch.autocast("cpu", torch.bfloat16):
        assert net(torch.zeros(1, 4, 3, 4, 4)).dtype == torch.bfloat16
        assert net(torch.zeros(1, 4, 2, 4, 4)).dtype == torch.float32
        with torch.inference_mode():
            assert net(torch.zeros(1, 4, 2, 4, 4)).dtype == torch.bfloat16


def test_autocast_is_back_after_an_error() -> None:
    net = nn.Conv3d(4, 4, 3, padding=1)
    protect(net)
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(RuntimeError):
            net(torch.zeros(1, 5, 2, 4, 4))
        assert torch.is_autocast_enabled("cpu")
