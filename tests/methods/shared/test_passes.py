"""Passes beside training: which samples they read, and that they leave no trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Samples, make_context, make_image_site, make_site, small_image_job, small_job
from torch import nn
from torch.nn import functional
from volumesites import blob_job, make_volume_site

from fedshift.methods import fedfa
from fedshift.methods.shared.passes import frozen_statistics, gradient_over, mean_loss, validation_loss
from fedshift.tasks.base import SiteData
from fedshift.tasks.kinds import build_task
from fedshift.tasks.networks.unet import UNet

from ..made import OneByOne


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(3), nn.InstanceNorm2d(3, track_running_stats=True)])
def test_a_pass_that_is_not_counted_moves_no_statistics_of_any_norm(norm: nn.Module) -> None:
    x = torch.randn(3, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    norm.running_mean.fill_(0.3)  # type: ignore[operator, union-attr]
    before = {key: value.clone() for key, value in norm.state_dict().items()}
    with frozen_statistics(norm), frozen_statistics(norm):
        y = norm(x)
    torch.testing.assert_close(dict(norm.state_dict()), before, rtol=0, atol=0)
    torch.testing.assert_close(y, norm(x), rtol=0, atol=0, msg="normalised as in training")
    assert not torch.equal(norm.running_mean, before["running_mean"])  # type: ignore[arg-type]


def test_validation_samples_are_those_of_the_split_as_in_training(tmp_path: Path) -> None:
    opened: list[SiteData] = [
        build_task(small_image_job("fedavg")).open(make_image_site(tmp_path, "A", images=48), "A"),
        build_task(small_job("fedavg")).open(make_site(tmp_path, "HK"), "HK"),
        build_task(blob_job(tmp_path)).open(make_volume_site(tmp_path, "A"), "A"),
    ]
    for data in opened:
        x, y = (torch.cat(parts) for parts in zip(*data.validation(), strict=True))
        expected = data.samples(np.arange(data.n_samples("val")), "val")
        torch.testing.assert_close((x, y), expected, rtol=0, atol=0)
        trained, _ = next(data.chunks())
        assert x.dtype == trained.dtype and x.shape[1:] == trained.shape[1:]
        assert not any(torch.equal(x[0], other) for other in trained), "a training sample is among them"


def test_the_gradient_is_over_all_samples_where_each_is_a_chunk() -> None:
    net = nn.Linear(4, 3)
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, 4, generator=rng), torch.arange(6) % 3
    gradient = gradient_over(make_context("m", net).run, OneByOne(x, y), dict(net.named_parameters()), method="m")
    expected = torch.autograd.grad(functional.cross_entropy(net(x), y), list(net.parameters()))
    torch.testing.assert_close(tuple(gradient.values()), expected)


def test_a_last_chunk_of_one_sample_is_left_out_of_the_gradient() -> None:
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    rng = torch.Generator().manual_seed(0)
    data = Samples(torch.randn(5, 4, generator=rng), torch.tensor([0, 1, 2, 0, 1]))
    found = gradient_over(make_context("m", net).run, data, dict(net.named_parameters()), method="m")
    assert all(torch.isfinite(gradient).all() for gradient in found.values())


def test_the_validation_loss_is_over_validation_samples_or_else_training_samples() -> None:
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    rng = torch.Generator().manual_seed(0)
    samples = Samples(torch.randn(7, 4, generator=rng), torch.arange(7) % 3)
    ctx = make_context("m", net)
    with_validation = Samples(samples.x + 1, samples.y, validation=samples)
    expected = float(functional.cross_entropy(net.eval()(samples.x), samples.y).detach())
    net.train()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    assert validation_loss(ctx.run, with_validation) == pytest.approx(expected, rel=1e-6)
    assert validation_loss(ctx.run, samples) == mean_loss(ctx.run, samples) == pytest.approx(expected, rel=1e-6)
    assert net.training
    torch.testing.assert_close(dict(net.state_dict()), before, rtol=0, atol=0)


def test_the_gradients_pass_moves_no_statistics_of_other_methods() -> None:
    net = UNet(features=4)
    half, ctx = (
        fedfa.Client(fedfa.Config(p=1, layers=(1,))),
        make_context("fedfa", net, objective=functional.cross_entropy),
    )
    half.attach(net, ctx)
    data = Samples(torch.rand(4, 3, 16, 16), torch.zeros(4, 16, 16, dtype=torch.int64))
    before = half.checkpoint(ctx)
    gradient_over(ctx.run, data, dict(net.named_parameters()), method="m")
    torch.testing.assert_close(half.checkpoint(ctx), before, rtol=0, atol=0)
    net.train()(data.x)
    assert not torch.equal(half.checkpoint(ctx)["mean.1"], before["mean.1"])
