"""FedSGD: one step a round is gradient descent on all sites' images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Samples, make_context, make_image_site, small_image_job
from torch import Tensor, nn

from fedshift.federation.in_process import run_in_process
from fedshift.methods import base, fedsgd
from fedshift.tasks.kinds import build_task

from .made import final_weights

# Without batch norm a mean of batch gradients is the gradient of the mean.
PLAIN = ("network.name=mnist_cnn", "network.options.size=16")


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_whole_epochs_are_gradient_descent_on_all_images(weights: str, tmp_path: Path) -> None:
    """36, 36 and 66 training images, divisible into equal batches."""
    options = (*PLAIN, "schedule.batch_size=6", "schedule.rounds=3", "optimizer.lr=0.1", f"fedsgd.weights={weights}")
    job = small_image_job("fedsgd", *options)
    data = {site: make_image_site(tmp_path / "data", site, images=96 if site == "C" else 48) for site in "ABC"}
    trained = final_weights(job, data, tmp_path / "run")

    task = build_task(job)
    net = task.network()
    opened = [task.open(data[site], site) for site in "ABC"]
    parts = [site.train_samples(np.arange(site.n_train)) for site in opened]
    n = [len(y) for _, y in parts]
    assert n[2] > n[0] == n[1] and not any(k % 6 for k in n)
    shares = [k / sum(n) for k in n] if weights == "samples" else [1 / 3] * 3
    for _ in range(3):
        net.zero_grad()
        sum(share * task.loss(net(x), y) for share, (x, y) in zip(shares, parts, strict=True)).backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad
    for key, value in net.state_dict().items():
        torch.testing.assert_close(trained[key], value, rtol=1e-4, atol=2e-5, msg=key)


def closure_of(net: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        net.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    return closure


def test_the_network_stays_until_the_end_and_then_takes_one_step() -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    ctx = make_context("fedsgd", net)
    ctx.run.optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    client = fedsgd.Client(fedsgd.Config())
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    before = net.weight.detach().clone()
    for part in (slice(0, 4), slice(4, 8)):
        loss = client.step(closure_of(net, x[part], y[part]), ctx)
        ctx.run.step += 1
        assert torch.equal(net.weight, before) and float(loss) > 0
    assert client.end(Samples(x, y), ctx) == {} and ctx.state == {}
    reference = nn.Linear(4, 3)
    reference.load_state_dict({"weight": before, "bias": torch.from_numpy(ctx.run.received["bias"])})
    closure_of(reference, x, y)()
    assert reference.weight.grad is not None
    torch.testing.assert_close(net.weight.detach(), before - 0.5 * reference.weight.grad)


def test_a_parameter_that_no_batch_reaches_stays_as_it_was() -> None:
    net = nn.ModuleDict({"used": nn.Linear(2, 3), "idle": nn.Linear(2, 3)})
    ctx = make_context("fedsgd", net)
    ctx.run.optimizer = torch.optim.SGD(net.parameters(), lr=0.5, weight_decay=0.1)
    client = fedsgd.Client(fedsgd.Config())
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    client.step(closure_of(net["used"], torch.randn(2, 2), torch.tensor([0, 1])), ctx)
    ctx.run.step = 1
    client.end(Samples(torch.zeros(2, 2)), ctx)
    moved = {name for name, p in net.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"used.weight", "used.bias"}


@pytest.mark.slow
def test_images_are_learned(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_image_job(
        "fedsgd", *PLAIN, "schedule.rounds=25", "optimizer.lr=0.3", "data.mean=[0.4]", "data.std=[0.2]"
    )
    losses = [
        [site.train_loss for site in record.sites.values()]
        for record in run_in_process(job, three_image_sites, tmp_path).results.rounds
    ]
    assert np.mean(losses[-1]) < 0.5 * np.mean(losses[0])


def test_gradients_of_later_rounds_do_not_contain_earlier_ones() -> None:
    """A new client for every round does not keep the first round's sum."""
    net = nn.Linear(4, 3)
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    moves = []
    for _ in range(2):
        with torch.no_grad():
            net.weight.zero_()
            net.bias.zero_()
        ctx: base.Context = make_context("fedsgd", net)
        ctx.run.optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        client = fedsgd.Client(fedsgd.Config())
        client.step(closure_of(net, x, y), ctx)
        ctx.run.step = 1
        client.end(Samples(x, y), ctx)
        moves.append(net.weight.detach().clone())
    assert torch.equal(moves[0], moves[1]) and moves[0].abs().max() > 0
