"""PN against a layer with the same parameters, at batches of one image, and what its statistics learn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import make_context, small_image_job, small_job
from torch import Tensor, nn

from fedshift.methods import pn
from fedshift.methods.base import Context
from fedshift.tasks.kinds import build_task

from .made import final_weights, last_weights, run, shifted_sites


class Layer(nn.Module):
    """The layer of the formula, with parameters of its own."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.mean, self.variance = nn.Parameter(torch.zeros(channels)), nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        mean, variance, weight, bias = (
            each.reshape(-1, 1, 1) for each in (self.mean, self.variance, self.weight, self.bias)
        )
        return (x - mean) / (variance + 1e-5).sqrt() * weight + bias


def two_networks() -> tuple[nn.Sequential, nn.Sequential]:
    """The same weights, once with batch norm and once with `Layer`."""
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 1, 3))
    plain = nn.Sequential(nn.Conv2d(2, 4, 3), Layer(4), nn.ReLU(), nn.Conv2d(4, 1, 3))
    for number in (0, 3):
        plain[number].load_state_dict(ours[number].state_dict())
    return ours, plain


def begun(net: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[pn.Client, Context]:
    client, ctx = pn.Client(pn.Config()), make_context("pn", net)
    ctx.run.optimizer = optimizer
    client.attach(net, ctx)
    client.begin(None, ctx)  # type: ignore[arg-type]
    return client, ctx


@pytest.mark.parametrize("settings", [{"lr": 0.3}, {"lr": 0.3, "momentum": 0.9}], ids=str)
def test_steps_are_those_of_a_layer_whose_statistics_are_parameters(settings: dict[str, float]) -> None:
    ours, plain = two_networks()
    optimizers = [torch.optim.SGD(net.parameters(), **settings) for net in (ours, plain)]  # type: ignore[arg-type]
    client, ctx = begun(ours, optimizers[0])
    for number in range(3):
        x = torch.randn(3, 2, 8, 8, generator=torch.Generator().manual_seed(number)) * 2 + 1
        for net, optimizer in zip((ours, plain), optimizers, strict=True):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            if net is ours:
                client.gradients(ctx)
            optimizer.step()
    norm, layer = ours[1], plain[1]
    assert isinstance(norm, nn.BatchNorm2d)
    assert isinstance(layer, Layer)
    pairs = [(norm.running_mean, layer.mean), (norm.running_var, layer.variance), (norm.weight, layer.weight)]
    for mine, expected in [*pairs, *zip(ours[0].parameters(), plain[0].parameters(), strict=True)]:
        assert isinstance(mine, Tensor)
        torch.testing.assert_close(mine.detach(), expected.detach(), rtol=1e-4, atol=1e-6)
    assert (layer.mean.detach().abs() > 1e-3).any(), "the statistics have moved"
    x = torch.randn(2, 2, 8, 8)
    torch.testing.assert_close(ours.eval()(x), plain.eval()(x), rtol=1e-4, atol=1e-5)


def test_an_image_is_normalised_by_itself_and_evaluation_is_training() -> None:
    net, _ = two_networks()
    begun(net, torch.optim.SGD(net.parameters(), lr=0.1))
    x = torch.randn(4, 2, 8, 8)
    together = net.train()(x)
    torch.testing.assert_close(together[:1], net(x[:1]))
    torch.testing.assert_close(together, net.eval()(x), rtol=1e-5, atol=1e-6)
    assert isinstance(net[1], nn.BatchNorm2d)
    assert net[1].num_batches_tracked == 0


def test_a_variance_stays_positive() -> None:
    net = nn.Sequential(nn.BatchNorm1d(1, affine=False))
    client, ctx = begun(net, torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1e3))
    (-net(torch.full((2, 1), 3.0))).sum().backward()  # rises with a smaller variance
    client.gradients(ctx)
    norm = net[0]
    assert isinstance(norm, nn.BatchNorm1d)
    assert isinstance(norm.running_var, Tensor)
    assert float(norm.running_var) == pytest.approx(pn.LEAST)


def test_weight_decay_leaves_the_statistics_alone() -> None:
    net = nn.Sequential(nn.BatchNorm1d(1))
    client, ctx = begun(net, torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.5))
    (0 * net(torch.ones(2, 1))).sum().backward()
    client.gradients(ctx)
    assert isinstance(net[0], nn.BatchNorm1d)
    assert float(net[0].running_var) == 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["images", "slices"])
def test_nothing_of_the_model_has_another_name(kind: str) -> None:
    job = small_image_job("pn") if kind == "images" else small_job("pn")
    net = build_task(job).network()
    keys = list(net.state_dict())
    for handle in pn.Client(pn.Config()).attach(net, make_context("pn", net)):
        handle.remove()
    assert list(net.state_dict()) == keys
    x = torch.randn(2, 3, 16, 16)
    if kind == "images":
        torch.testing.assert_close(net.train()(x), build_task(job).network().train()(x))


def test_all_sites_get_statistics_that_were_trained_and_batches_of_one_image_train(tmp_path: Path) -> None:
    data = shifted_sites(tmp_path / "data", images=24)
    job = small_image_job("pn", "schedule.batch_size=1", "schedule.rounds=2")
    weights = final_weights(job, data, tmp_path / "one")
    assert float(weights["fc1.1.num_batches_tracked"]) == 0
    assert (weights["fc1.1.running_mean"] != 0).any()
    assert (weights["fc1.1.running_var"] != 1).any()


def test_the_statistics_optimiser_is_kept_where_the_tasks_is(tmp_path: Path) -> None:
    data = shifted_sites(tmp_path / "data", images=24)
    adam = ("optimizer.name=adam", "optimizer.lr=0.01", "schedule.rounds=2")
    means = []
    for keep in ("true", "false"):
        run("pn", data, tmp_path / keep, *adam, f"optimizer.keep={keep}")
        means.append(last_weights(tmp_path / keep)["fc1.1.running_mean"])
    assert not torch.equal(*means)
