"""FedProx against the golden quadratic, and how close a site stays to the received model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Samples, golden, make_context, small_image_job
from torch import Tensor

from fedshift.federation.in_process import run_in_process
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.federation.tensors import read_weights
from fedshift.methods import base, fedprox
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast
from fedshift.tasks.kinds import build_task

from .made import Point

NOTHING = base.Batch(torch.zeros(1), torch.zeros(1))


def trajectory(config: fedprox.Config, steps: int) -> np.ndarray:
    """The golden quadratic ½ w'Aw − b'w by gradient descent with the method's term."""
    g = golden("fedprox_quadratic")
    net, a, b = Point(g["w0"]), torch.from_numpy(g["A"]), torch.from_numpy(g["b"])
    ctx, client = make_context("fedprox", net), fedprox.Client(config)
    optimizer = torch.optim.SGD(net.parameters(), lr=float(g["lr"]))
    client.begin(Samples(np.zeros((1, 1))), ctx)
    rows = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = 0.5 * net.w @ a @ net.w - b @ net.w
        client.loss(NOTHING, net.w, loss, ctx).backward()
        optimizer.step()
        ctx.run.step += 1
        rows.append(net.w.detach().numpy().copy())
    return np.stack(rows)


@pytest.mark.parametrize("mu", [0.01, 0.3])
def test_trajectory_is_that_of_the_squared_distance_and_released_that_of_the_norm(mu: float) -> None:
    g = golden("fedprox_quadratic")
    paper, released = g[f"squared_half_mu_mu{mu}"], g[f"fedbn_sqrt_norm_skip_step0_mu{mu}"]
    np.testing.assert_allclose(trajectory(fedprox.Config(mu=mu), 4), paper, rtol=1e-10)
    np.testing.assert_allclose(trajectory(fedprox.Config(mu=mu, variant="released"), 4), released, rtol=1e-10)
    assert np.abs(paper - released).max() > 1e-5


def test_norm_has_no_infinite_gradient_where_nothing_has_moved() -> None:
    w = torch.zeros(3, requires_grad=True)
    fedprox.distance([w], [torch.zeros(3)], squared=False).backward()
    assert w.grad is not None and torch.equal(w.grad, torch.zeros(3))


def travelled(job: JobSpec, data: Mapping[str, Path], folder: Path) -> list[float]:
    """How far each site's parameters are from the received ones after a round."""
    net = build_task(job).network()
    received = read_weights(net)
    trainable = [name for name, _ in net.named_parameters()]
    far = []
    for name in job.task.sites:
        site = Site(job, name, data[name], SiteOptions(folder))
        site.statistics()
        sent = site.train(Broadcast(1, 0, received)).weights
        far.append(float(np.sqrt(sum(np.square(sent[k] - received[k]).sum() for k in trainable))))
    return far


@pytest.mark.slow
def test_the_larger_mu_the_nearer_every_site_stays(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    free, held, tight = (
        travelled(
            small_image_job("fedprox", f"fedprox.mu={mu}", "schedule.local_epochs=8"),
            three_image_sites,
            tmp_path / str(mu),
        )
        for mu in (0, 1, 4)
    )
    for site in range(3):
        assert held[site] < 0.75 * free[site]
    assert sum(tight) < 0.9 * sum(held)


def test_personal_layers_are_held_near_their_own_value_and_not_the_servers() -> None:
    net = Point(np.array([1.0, 2.0]))
    ctx, client = make_context("fedprox", net), fedprox.Client(fedprox.Config(mu=2.0))
    with torch.no_grad():
        net.w.copy_(torch.tensor([5.0, 2.0]))  # as if a personal layer had been loaded over the received one
    client.begin(Samples(np.zeros((1, 1))), ctx)
    zero = torch.zeros((), dtype=torch.float64)
    assert client.loss(NOTHING, net.w, zero, ctx).item() == 0.0
    with torch.no_grad():
        net.w.add_(torch.tensor([0.0, 3.0]))
    assert client.loss(NOTHING, net.w, zero, ctx).item() == pytest.approx(9.0)


@pytest.mark.slow
def test_the_anchor_is_what_training_begins_with_whatever_others_load_before(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    """PartialFed's search ends with weights other than the received ones; the first step's distance is 0."""
    first: list[float] = []
    original = fedprox.distance

    def spy(weights: Sequence[Tensor], anchor: Sequence[Tensor], *, squared: bool) -> Tensor:
        far = original(weights, anchor, squared=squared)
        first.append(float(far.detach()))
        return far

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedprox, "distance", spy)
        job = small_image_job("fedprox+partialfed", "partialfed.mode=adaptive", "partialfed.search_lr=1")
        run_in_process(job, three_image_sites, tmp_path)
    assert len(first) == 2 * 3 * 4
    assert first[::4] == [0.0] * 6 and all(far > 0 for k, far in enumerate(first) if k % 4)
