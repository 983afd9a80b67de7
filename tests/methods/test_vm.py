"""VM against the authors' and Eq. 24's numbers; the variance of the sites' losses falls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Sent, golden, make_image_site, server_context, small_image_job

from fedshift.federation.in_process import run_in_process
from fedshift.methods import vm


@pytest.mark.parametrize("beta", [10.0, 0.5])
@pytest.mark.parametrize(
    ("options", "name"),
    [({}, "eq24"), ({"variant": "released"}, "code"), ({"weights": "samples"}, "weighted_consistent")],
)
def test_new_weights_are_the_golden_ones(options: dict[str, str], name: str, beta: float) -> None:
    g = golden("vm_aggregation")
    updates = [
        Sent(
            str(i),
            {key: g[f"client_{key}"][i] for key in "ab"},
            int(g["n_samples"][i]),
            arrays={"vm": {"loss": np.asarray(g["losses"][i])}},
        )
        for i in range(5)
    ]
    server = vm.Server(vm.Config.parse({"beta": beta, **options}, where="test"))
    out = server.combine({key: g[f"theta0_{key}"] for key in "ab"}, updates, server_context("a", "b"))
    for key in "ab":
        np.testing.assert_allclose(out[key], g[f"{name}_beta{beta}_{key}"], rtol=1e-10, atol=1e-12)


def test_coefficients_are_the_gradient_of_mean_and_variance() -> None:
    """With gradients as the sites' changes, the update is the descent direction of Eq. 22."""
    rng = np.random.default_rng(0)
    optima = torch.from_numpy(rng.normal(0, 1, (4, 3)))
    curvature = torch.from_numpy(rng.uniform(0.5, 2, 4))
    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    losses = 0.5 * curvature * ((w - optima) ** 2).sum(1)
    (losses.mean() + 3 * losses.var(correction=0)).backward()
    moves = vm.coefficients(losses.detach().numpy(), np.full(4, 0.25), beta=3, released=False)
    gradients = (curvature[:, None] * (w - optima)).detach().numpy()
    assert w.grad is not None
    np.testing.assert_allclose(moves @ gradients, w.grad.numpy(), rtol=1e-12)


def test_it_lowers_the_variance_of_the_sites_losses_against_fedavg(tmp_path: Path) -> None:
    shifts = {"A": (1.0, 0.0, 96), "B": (0.9, 5.0, 96), "C": (-0.8, 250.0, 48)}  # small, with an inverted contrast
    data = {s: make_image_site(tmp_path, s, images=n, gain=g, offset=o) for s, (g, o, n) in shifts.items()}
    options = ["network.name=mnist_cnn", "network.options.size=16", "data.mean=[0.4]", "data.std=[0.2]"]
    options += ["schedule.rounds=8", "optimizer.lr=0.03"]

    def variance(names: str, *more: str) -> float:
        folder = tmp_path / "_".join([names, *more])
        results = run_in_process(small_image_job(names, *options, *more, seed=0), data, folder).results
        return float(np.var([site.train_loss for site in results.rounds[-1].sites.values()]))

    averaged = variance("fedavg", "fedavg.weights=uniform")
    for more in (["vm.beta=1"], ["vm.beta=0.33", "vm.variant=released"]):
        assert variance("vm", *more) < 0.75 * averaged
