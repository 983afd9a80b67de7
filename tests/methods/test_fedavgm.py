"""FedAvgM against golden trajectories; momentum acts on parameters only, persists, and speeds up convergence."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Sent, golden, server_context

from fedshift.methods import base, fedavgm


def updates_of(weights: dict[str, np.ndarray], deltas: np.ndarray, counts: tuple[int, ...]) -> list[Sent]:
    return [Sent(str(i), {"w": weights["w"] + d}, n) for i, (d, n) in enumerate(zip(deltas, counts, strict=True))]


@pytest.mark.parametrize(
    ("config", "trajectory"),
    [
        (fedavgm.Config(), "hsu_beta0.9"),
        (fedavgm.Config(beta=0.01), "hsu_beta0.01"),
        (fedavgm.Config(nesterov=True), "nesterov_beta0.9_flbench"),
    ],
)
def test_trajectories_are_the_golden_ones(config: fedavgm.Config, trajectory: str) -> None:
    g = golden("fedavgm_vectors")
    counts = np.rint(g["weights"] * 1000).astype(int)
    np.testing.assert_allclose(counts / counts.sum(), g["weights"], rtol=1e-12)
    server, weights = fedavgm.Server(config), {"w": g["w0"]}
    for deltas, expected in zip(g["client_delta"], g[trajectory], strict=True):
        updates = updates_of(weights, deltas, tuple(counts.tolist()))
        weights = server.combine(weights, updates, server_context("w"))
        np.testing.assert_allclose(weights["w"], expected, rtol=1e-10)


def test_parameters_move_as_the_authors_and_buffers_are_averaged() -> None:
    g = golden("aggregation_fedavg_fedavgm_fedbn")
    weights = {k.split(":")[1]: v for k, v in g.items() if k.startswith("fedavgm_server_init:")}
    trainable = [k for k in weights if "running" not in k and "num_batches" not in k]
    server = fedavgm.Server(fedavgm.Config(beta=float(g["fedavgm_beta"])))
    rounds = sorted({name.split("_")[1] for name in g if name.startswith("fedavgm_r")})
    assert len(rounds) == 3
    for r in rounds:
        updates = [
            Sent(str(i), {k: g[f"fedavgm_{r}_client{i}:{k}"] for k in weights}, n) for i, n in enumerate((50, 30, 20))
        ]
        weights = server.combine(weights, updates, server_context(*trainable))
        for key in trainable:
            np.testing.assert_allclose(weights[key], g[f"fedavgm_{r}_server:{key}"], rtol=1e-5, atol=1e-6, err_msg=key)
        for key in ("bn1.running_mean", "bn1.running_var"):
            mean = np.average([u.weights[key] for u in updates], axis=0, weights=(5, 3, 2))
            np.testing.assert_allclose(weights[key], mean, rtol=1e-12)


def descend(server: base.Server[fedavgm.Config], curvature: np.ndarray, rounds: int) -> float:
    """Loss after ``rounds`` rounds of one step per site on badly scaled quadratics."""
    rng = np.random.default_rng(0)
    optima = rng.normal(0, 1, (3, len(curvature)))
    weights = {"w": np.full(len(curvature), 3.0)}
    for _ in range(rounds):
        sent = [Sent(str(i), {"w": weights["w"] - 0.5 * curvature * (weights["w"] - m)}) for i, m in enumerate(optima)]
        weights = server.combine(weights, sent, server_context("w"))
    return float(0.5 * (curvature * (weights["w"] - optima.mean(0)) ** 2).sum())


def test_momentum_descends_faster_where_curvatures_differ() -> None:
    curvature = np.array([1.0, 0.1, 0.01])
    without = descend(fedavgm.Server(fedavgm.Config(beta=0)), curvature, 80)
    assert descend(fedavgm.Server(fedavgm.Config(beta=0.9)), curvature, 80) < 0.2 * without


def test_server_learning_rate_scales_the_move() -> None:
    old, sent = {"w": np.float64([1.0])}, [Sent("A", {"w": np.float64([3.0])})]
    out = fedavgm.Server(fedavgm.Config(server_lr=0.25)).combine(old, sent, server_context("w"))
    assert out["w"] == pytest.approx(1.5)
