"""SCAFFOLD against NIID-Bench's and derived numbers; drift, lost updates, and side effects."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pytest
import torch
from conftest import Samples, Sent, golden, make_context, server_context
from torch import Tensor, nn
from torch.nn import functional

from fedshift.methods import base, method_set, scaffold
from fedshift.schema.optimizer import OptimizerSpec

from .made import InMemory

SITES = ("A", "B", "C")


class Linear(nn.Module):
    """A linear model, (B, 3) -> (B,)."""

    def __init__(self, w: np.ndarray) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.from_numpy(w.copy()))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def half_square(answer: Tensor, y: Tensor) -> Tensor:
    return 0.5 * ((answer - y) ** 2).mean()


class Federation:
    """Sites with losses .5 (a.w - b)^2 over rows [a, b]; two epochs in batches of two each round by default."""

    def __init__(
        self, rows: Sequence[np.ndarray], w: np.ndarray, name: str, *, lr: float, momentum: float = 0, **options: object
    ) -> None:
        self.method = method_set.load({name: options})[0]
        self.rows, self.weights, self.lr, self.momentum = rows, {"w": w.copy()}, lr, momentum
        self.server = self.method.server()
        spec = OptimizerSpec(name="sgd", lr=lr, momentum=momentum, keep=False)
        self.ctx = server_context("w", optimizer=spec, sites=SITES[: len(rows)])
        self.server.start(Linear(w), self.ctx)
        self.states: list[dict[str, Tensor]] = [{} for _ in rows]
        self.trained: list[np.ndarray] = []

    def round(
        self,
        number: int,
        *,
        epochs: int = 2,
        lost: Sequence[int] = (),
        absent: Sequence[int] = (),
        parts: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        """``lost`` sites train but their updates do not arrive; ``absent`` sites do not train; ``parts`` are by site
        what the server's limits leave of the change of its control variate.
        """
        ctx = copy.copy(self.ctx)
        object.__setattr__(ctx, "round", number)
        arrays, sent = self.server.broadcast(ctx), []
        self.trained = []
        for i, rows in enumerate(self.rows):
            if i in absent:
                continue
            w, steps, told = self.train(i, number, epochs, arrays)
            self.trained.append(w)
            if i not in lost:
                scaled = {"scaffold": parts[i]} if i in parts else {}
                told = {name: parts.get(i, 1.0) * array for name, array in told.items()}
                sent.append(Sent(SITES[i], {"w": w}, len(rows), steps, arrays={self.method.name: told}, scaled=scaled))
        self.server.receive(sent, ctx)
        self.weights = self.server.combine(self.weights, sent, ctx)

    def train(
        self, i: int, number: int, epochs: int, arrays: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, int, dict[str, np.ndarray]]:
        """A new client for every task, as at a site."""
        net, half = Linear(self.weights["w"]), self.method.client()
        sites = SITES[: len(self.rows)]
        context = make_context(
            self.method.name, net, site=SITES[i], sites=sites, round=number, rounds=9999, objective=half_square
        )
        ctx = base.Context(context.run, self.method.name, self.states[i])
        ctx.run.optimizer = torch.optim.SGD(net.parameters(), lr=self.lr, momentum=self.momentum)
        rows = torch.from_numpy(self.rows[i])
        data = Samples(rows[:, :3], rows[:, 3])
        half.receive(copy.deepcopy(arrays), ctx)
        half.begin(data, ctx)
        for _ in range(epochs):
            for batch in rows.split(2):
                ctx.run.optimizer.zero_grad()
                half_square(net(batch[:, :3]), batch[:, 3]).backward()  # type: ignore[no-untyped-call]
                half.gradients(ctx)
                ctx.run.optimizer.step()
                ctx.run.step += 1
        told = half.end(data, ctx)
        return net.w.detach().numpy().copy(), ctx.run.step, told

    def control(self, i: int) -> np.ndarray:
        return self.states[i]["sent.w"].numpy()


def golden_federation(**options: object) -> Federation:
    g = golden("scaffold_fednova_quadratic")
    return Federation([g[f"data{i}"] for i in range(3)], g["w0"], "scaffold", lr=0.05, **options)


def test_three_rounds_of_option_two_are_the_benchmarks() -> None:
    g = golden("scaffold_fednova_quadratic")
    federation = golden_federation(weights="samples")
    for r in range(3):
        name = f"scaffold_lr0.05_r{r}"
        federation.round(r + 1)
        np.testing.assert_allclose(federation.trained, g[f"{name}_client_w"], rtol=1e-10)
        np.testing.assert_allclose([federation.control(i) for i in range(3)], g[f"{name}_client_c"], rtol=1e-10)
        np.testing.assert_allclose(federation.server.state["w"], g[f"{name}_c_global"], rtol=1e-10)
        np.testing.assert_allclose(federation.weights["w"], g[f"{name}_global_w_nk"], rtol=1e-10)


@pytest.mark.parametrize("option", ["I", "II"])
def test_both_options_with_uniform_weights_are_the_derived_numbers(option: str) -> None:
    g = golden("scaffold_fednova_quadratic")
    federation = golden_federation(option=option)
    for r in range(3):
        federation.round(r + 1)
        name = f"numpy_scaffold_option{option}_uniform_r{r}"
        np.testing.assert_allclose(federation.server.state["w"], g[f"{name}_c"], rtol=1e-10)
        np.testing.assert_allclose(federation.weights["w"], g[f"{name}_global_w"], rtol=1e-10)


@pytest.mark.parametrize("option", ["I", "II"])
def test_momentum_leaves_the_control_variate_a_mean_of_gradients(option: str) -> None:
    """The losses are nearly linear, so a site's gradient is -a b at every step."""
    rows = [np.array([[1e-4, 0, 0, b]] * 4) for b in (1.0, 2.0, 6.0)]
    federation = Federation(rows, np.zeros(3), "scaffold", lr=0.1, momentum=0.9, option=option)
    for r in range(3):
        federation.round(r + 1)
        controls = [federation.control(i)[0] for i in range(3)]
        np.testing.assert_allclose(controls, [-1e-4, -2e-4, -6e-4], rtol=1e-5)


def drifting(seed: int = 3) -> tuple[list[np.ndarray], np.ndarray]:
    """Rows of three sites with different curvatures and optima, and the optimum of their mean loss."""
    rng = np.random.default_rng(seed)
    rows = []
    for scale, optimum in ((1.3, (1, 1, 0)), (1.0, (-1, 0, 2)), (0.7, (0, -3, -1))):
        a = rng.normal(0, 1, (12, 3)) * scale * rng.uniform(0.6, 1.4, 3)
        rows.append(np.column_stack([a, a @ np.array(optimum, float)]))
    hessian = sum(r[:, :3].T @ r[:, :3] / len(r) for r in rows)
    return rows, np.linalg.solve(hessian, sum(r[:, :3].T @ r[:, 3] / len(r) for r in rows))


@pytest.mark.parametrize("option", ["I", "II"])
def test_with_many_local_steps_it_ends_nearer_the_common_optimum_than_fedavg(option: str) -> None:
    rows, optimum = drifting()
    corrected = Federation(rows, np.zeros(3), "scaffold", lr=0.02, option=option)
    averaged = Federation(rows, np.zeros(3), "fedavg", lr=0.02)
    for r in range(40):
        corrected.round(r + 1, epochs=5)
        averaged.round(r + 1, epochs=5)
    far = np.linalg.norm(averaged.weights["w"] - optimum)
    assert far > 0.1
    assert np.linalg.norm(corrected.weights["w"] - optimum) < 0.35 * far


def test_an_answer_that_is_lost_leaves_no_trace_in_c() -> None:
    rows, optimum = drifting()
    federation = Federation(rows, np.zeros(3), "scaffold", lr=0.02)
    for r in range(40):
        federation.round(r + 1, epochs=5, lost=[0] if r in (0, 3, 4) else [], absent=[2] if r == 2 else [])
    mean = np.mean([federation.control(i) for i in range(3)], axis=0)
    np.testing.assert_allclose(federation.server.state["w"], mean, rtol=1e-9, atol=1e-12)
    assert np.linalg.norm(federation.weights["w"] - optimum) < 0.1


def test_a_change_that_a_limit_scaled_down_leaves_no_trace_in_c() -> None:
    rows, optimum = drifting()
    federation = Federation(rows, np.zeros(3), "scaffold", lr=0.02)
    for r in range(40):
        parts = {0: {0: 0.1, 1: 0.5}, 1: {1: 0.3, 2: 0.0}}.get(r, {})
        federation.round(r + 1, epochs=5, parts=parts, lost=[0] if r == 1 else [], absent=[2] if r == 2 else [])
    mean = np.mean([federation.control(i) for i in range(3)], axis=0)
    np.testing.assert_allclose(federation.server.state["w"], mean, rtol=1e-9, atol=1e-12)
    assert np.linalg.norm(federation.weights["w"] - optimum) < 0.1


def test_absent_sites_count_as_no_change_in_the_mean_over_all() -> None:
    rows, _ = drifting()
    federation = Federation(rows, np.zeros(3), "scaffold", lr=0.02)
    federation.round(1, absent=[1, 2])
    np.testing.assert_allclose(federation.server.state["w"], federation.control(0) / 3, rtol=1e-12)
    assert federation.server.state["accepted"].tolist() == [1, 0, 0]


def test_one_site_is_fedavg() -> None:
    rows, _ = drifting()
    corrected = Federation(rows[:1], np.zeros(3), "scaffold", lr=0.02)
    averaged = Federation(rows[:1], np.zeros(3), "fedavg", lr=0.02)
    for r in range(4):
        corrected.round(r + 1)
        averaged.round(r + 1)
        np.testing.assert_allclose(corrected.weights["w"], averaged.weights["w"], rtol=1e-9)


def test_the_full_gradient_normalises_images_and_leaves_no_trace() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5), nn.Flatten(), nn.Linear(8, 3))
    ctx = make_context("scaffold", net)
    x, y = torch.randn(5, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1])
    net.eval()
    before = copy.deepcopy(net.state_dict())
    noise = torch.get_rng_state()
    gradient = scaffold.mean_gradient(ctx, Samples(x, y))
    assert not net.training and torch.equal(torch.get_rng_state(), noise) and not ctx.run.replay
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    again = scaffold.mean_gradient(ctx, Samples(x, y))
    assert all(torch.equal(gradient[name], again[name]) for name in gradient)
    ctx.run.normalise = lambda x, *, training: 2 * x + 1
    by_hand = scaffold.mean_gradient(make_context("scaffold", net), Samples(2 * x + 1, y))
    normalised = scaffold.mean_gradient(ctx, Samples(x, y))
    assert all(torch.equal(normalised[name], by_hand[name]) for name in by_hand)
    assert not torch.allclose(normalised["0.weight"], gradient["0.weight"])


def test_the_full_gradient_does_not_depend_on_how_a_site_is_sorted() -> None:
    """Batch norm normalises by the batch: sorted by class, it would take the classes' difference away."""

    y = torch.arange(128) // 32
    x = torch.randn(128, 4, generator=torch.Generator().manual_seed(0)) + 3 * functional.one_hot(y, 4)
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4))
    ctx = make_context("scaffold", net, n_classes=4)
    net.train()
    whole = torch.autograd.grad(functional.cross_entropy(net(x), y), list(net.parameters()))
    gradient = scaffold.mean_gradient(ctx, InMemory(x, y))
    for (name, _), wanted in zip(net.named_parameters(), whole, strict=True):
        assert (gradient[name] - wanted).norm() < 0.2 * wanted.norm(), name


def test_the_full_gradient_is_that_of_the_mean_loss() -> None:
    net = nn.Linear(3, 3)
    x, y = torch.randn(7, 3), torch.tensor([0, 1, 2, 0, 1, 1, 1])
    ctx = make_context("scaffold", net)
    gradient = scaffold.mean_gradient(ctx, Samples(x[:6], y[:6]))
    ctx.run.objective(net(x[:6]), y[:6]).backward()
    assert net.weight.grad is not None
    torch.testing.assert_close(gradient["weight"], net.weight.grad)
