"""FedSAM against the authors' trajectories, side effects of its second pass, and the flatness of the minimum."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import golden, make_context, small_image_job
from torch import Tensor, nn

from fedshift.federation.site.site import Site, SiteOptions
from fedshift.federation.tensors import load_weights, read_weights
from fedshift.methods import fedsam
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast, Update
from fedshift.tasks.kinds import build_task

from .made import final_weights


class Quartic(nn.Module):
    """½ w'Aw − b'w + Σ w⁴/4."""

    def __init__(self) -> None:
        super().__init__()
        g = golden("sam_weight_perturbation")
        self.w = nn.Parameter(torch.from_numpy(g["w0"].copy()))
        self._a, self._b = torch.from_numpy(g["A"]), torch.from_numpy(g["b"])

    def loss(self) -> Tensor:
        return 0.5 * self.w @ self._a @ self.w - self._b @ self.w + (self.w**4).sum() / 4


OPTIMIZERS = {
    "sam_rho0.05_sgd_lr0.1": lambda p: torch.optim.SGD(p, lr=0.1),
    "sam_rho0.05_adam_lr0.01_wd1e-4": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=1e-4),
    "wp_alpha0.05_sgd_lr0.1_mom0.9_wd1e-4": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-4),
    "wp_alpha0.05_adam_lr0.01_wd1e-4": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=1e-4),
}


def take_steps(net: Quartic, optimizer: torch.optim.Optimizer, steps: int, config: fedsam.Config) -> np.ndarray:
    ctx = make_context("fedsam", net, optimizer=optimizer)

    def closure() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = net.loss()
        loss.backward()
        return loss.detach()

    rows = []
    for _ in range(steps):
        before = float(net.loss().detach())
        assert float(fedsam.Client(config).step(closure, ctx)) == before, "the reported loss is that before the step"
        rows.append(net.w.detach().numpy().copy())
    return np.stack(rows)


@pytest.mark.parametrize("case", list(OPTIMIZERS))
def test_five_steps_are_the_authors_with_any_optimiser(case: str) -> None:
    net = Quartic()
    rows = take_steps(net, OPTIMIZERS[case](net.parameters()), 5, fedsam.Config(rho=0.05))
    np.testing.assert_allclose(rows, golden("sam_weight_perturbation")[case], rtol=1e-9)


def test_perturbation_has_length_rho_over_all_parameters_and_asam_in_scaled_coordinates() -> None:
    weights = [torch.tensor([3.0, -0.5]), torch.tensor([[2.0]])]
    gradients = [torch.tensor([1.0, 2.0]), torch.tensor([[-2.0]])]
    plain = torch.cat([e.flatten() for e in fedsam.perturbation(weights, gradients, rho=0.3)])
    torch.testing.assert_close(plain, 0.3 * torch.tensor([1.0, 2.0, -2.0]) / 3)
    scaled = fedsam.perturbation(weights, gradients, rho=0.3, adaptive=True, eta=0.5)
    t = torch.tensor([3.5, 1.0, 2.5])
    g = torch.tensor([1.0, 2.0, -2.0])
    torch.testing.assert_close(torch.cat([e.flatten() for e in scaled]), 0.3 * t**2 * g / (t * g).norm())
    zero = fedsam.perturbation(weights, [torch.zeros_like(x) for x in gradients], rho=0.3)
    assert all(torch.equal(e, torch.zeros_like(e)) for e in zero), "a zero gradient gives no NaN"


def test_asam_does_not_mind_how_weights_are_scaled() -> None:
    weights, gradients = [torch.tensor([3.0, -0.5])], [torch.tensor([1.0, 2.0])]
    factor = torch.tensor([10.0, 0.1])
    (e,) = fedsam.perturbation(weights, gradients, rho=0.1, adaptive=True)
    (scaled,) = fedsam.perturbation([weights[0] * factor], [gradients[0] / factor], rho=0.1, adaptive=True)
    torch.testing.assert_close(scaled, e * factor)


def test_weights_are_put_back_exactly() -> None:
    net = Quartic()
    still = torch.optim.SGD(net.parameters(), lr=0.0)
    before = net.w.detach().clone()
    take_steps(net, still, 3, fedsam.Config(rho=0.05))
    assert torch.equal(net.w.detach(), before)


def one_round(methods: str, *options: str, data: Mapping[str, Path], folder: Path) -> Update:
    job = small_image_job(methods, "fedfa.p=1.0", *options)
    received = read_weights(build_task(job).network())
    site = Site(job, "A", data["A"], SiteOptions(folder))
    site.statistics()
    shapes = {str(n): c for n, c in enumerate((4, 4, 8), start=1)}
    fills = {"gamma_mean": 1, "gamma_std": 1, "mean": 0, "std": 1}
    arrays = {f"{name}.{n}": np.full(c, fill, np.float32) for n, c in shapes.items() for name, fill in fills.items()}
    return site.train(Broadcast(1, 0, received, {"fedfa": arrays}))


def test_statistics_move_once_a_step(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    """After one step with a large radius, running statistics hold the first pass only."""
    once = ["schedule.local_steps=1"]
    plain = one_round("fedfa", *once, data=three_image_sites, folder=tmp_path / "a")
    sam = one_round("fedfa+fedsam", "fedsam.rho=2.0", *once, data=three_image_sites, folder=tmp_path / "b")
    for name, value in plain.arrays["fedfa"].items():
        np.testing.assert_array_equal(sam.arrays["fedfa"][name], value, err_msg=name)
    moved = 0
    for key, value in plain.weights.items():
        if "running" in key or "num_batches" in key:
            np.testing.assert_array_equal(sam.weights[key], value, err_msg=key)
        else:
            moved += not np.array_equal(sam.weights[key], value)
    assert moved, "the step itself differs"
    four = one_round("fedfa+fedsam", "schedule.local_steps=4", data=three_image_sites, folder=tmp_path / "c")
    assert {int(v) for k, v in four.weights.items() if "num_batches" in k} == {4}


def losses_around(
    job: JobSpec, weights: Mapping[str, torch.Tensor], data: Mapping[str, Path], radius: float
) -> tuple[float, float]:
    """Loss on all sites' training images at the weights, and at distance ``radius`` along the gradient."""
    task = build_task(job)
    net = task.network()
    load_weights(net, {k: v.numpy() for k, v in weights.items()})
    net.eval()
    opened = [task.open(data[s], s) for s in job.task.sites]
    chunks = [chunk for part in opened for chunk in part.chunks()]
    x, y = torch.cat([c[0] for c in chunks]), torch.cat([c[1] for c in chunks])
    here = task.loss(net(x), y)
    gradients = torch.autograd.grad(here, list(net.parameters()))
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    with torch.no_grad():
        for p, g in zip(net.parameters(), gradients, strict=True):
            p.add_(radius * g / norm)
        return float(here), float(task.loss(net(x), y))


@pytest.mark.slow
def test_it_finds_a_flatter_minimum_than_fedavg(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    options = ["network.name=mnist_cnn", "network.options.size=16", "optimizer.name=adam", "optimizer.lr=0.003"]
    rises = []
    for method in ("fedavg", "fedsam"):
        job = small_image_job(method, *options, "schedule.rounds=3", "schedule.local_epochs=5")
        weights = final_weights(job, three_image_sites, tmp_path / method)
        here, risen = losses_around(job, weights, three_image_sites, 0.3)
        assert here < 0.2, "both learn"
        rises.append(risen - here)
    assert rises[1] < 0.7 * rises[0]
