"""FedRobust against numbers from its formulas, side effects of its extra pass, and robustness to shifts."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from conftest import Samples, golden, make_context
from torch import Tensor, nn
from torch.nn import functional

from fedshift.methods import base, fedrobust
from fedshift.tasks.networks import unet

NO_DATA = Samples(np.zeros((1, 1)))
UNIT = Samples(np.float32([0, 1]).reshape(2, 1, 1, 1))
"""Images whose range is 1."""


class Linear(nn.Module):
    """Softmax-linear on one-pixel images, whose channels are the golden file's flattened inputs."""

    def __init__(self) -> None:
        super().__init__()
        g = golden("fedrobust_affine")
        self.w = nn.Parameter(torch.from_numpy(g["W0"].copy()))
        self.b = nn.Parameter(torch.from_numpy(g["b0"].copy()))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.w + self.b


def test_ascent_and_descent_are_the_golden_ones_and_go_on_in_a_new_round() -> None:
    """Two rounds of two batches. The golden file multiplies rows from the right, so its Γ is transposed."""
    g = golden("fedrobust_affine")
    config = fedrobust.Config(
        step_delta=float(g["step_delta"]),
        step_gamma=float(g["step_Gamma"]),
        penalty_delta=float(g["lambda_delta"]),
        penalty_gamma=float(g["lambda_Gamma"]),
    )
    assert config == fedrobust.Config(), "the defaults are the authors' numbers"
    net = Linear()
    optimizer = torch.optim.SGD(net.parameters(), lr=float(g["step_model"]))
    batch = base.Batch(torch.from_numpy(g["X"])[:, :, None, None], torch.from_numpy(g["y"]))
    state: dict[str, Tensor] = {}
    for t in range(4):
        if t % 2 == 0:
            client, ctx = fedrobust.Client(config), make_context("fedrobust", net)
            ctx.state.update(state)
            client.begin(UNIT, ctx)
        changed = client.batch(batch, ctx)
        affine = ctx.scratch["affine"]
        np.testing.assert_allclose(affine.delta.numpy(), g[f"t{t}_delta"][0], rtol=1e-9)
        np.testing.assert_allclose(affine.gamma.numpy().T, g[f"t{t}_Gamma"], rtol=1e-9, atol=1e-12)
        assert net.w.grad is None, "the adversary's pass leaves no gradients"
        loss = functional.cross_entropy(net(changed.x), changed.y)
        np.testing.assert_allclose(loss.item(), g[f"t{t}_loss_perturbed"], rtol=1e-9)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        np.testing.assert_allclose(net.w.detach().numpy(), g[f"t{t}_W"], rtol=1e-9)
        np.testing.assert_allclose(net.b.detach().numpy(), g[f"t{t}_b"], rtol=1e-9)
        if t % 2:
            assert client.end(NO_DATA, ctx) == {}
            state = dict(ctx.state)
            assert set(state) == {"gamma", "delta", "range"} and not any(s.requires_grad for s in state.values())


def test_the_adversary_is_the_same_whatever_the_images_unit() -> None:
    """With a first layer that undoes the unit, Γ and δ are those of images in [0, 1], and so are the logits."""
    g = golden("fedrobust_affine")
    x = torch.from_numpy(g["X"])[:, :, None, None]
    x = (x - x.min()) / (x.max() - x.min())
    changed = {}
    for scale in (1.0, 255.0):
        net = Linear()
        with torch.no_grad():
            net.w /= scale
        client, ctx = fedrobust.Client(fedrobust.Config()), make_context("fedrobust", net)
        data = Samples(x * scale, torch.from_numpy(g["y"]))
        client.begin(data, ctx)
        for _ in range(5):
            out = client.batch(base.Batch(data.x, data.y), ctx)
        changed[scale] = ctx.scratch["affine"], net(out.x).detach()
    (ours, logits), (theirs, expected) = changed[255.0], changed[1.0]
    torch.testing.assert_close(ours.gamma, theirs.gamma)
    torch.testing.assert_close(ours.delta, theirs.delta)
    torch.testing.assert_close(logits, expected)
    assert float(theirs.delta.abs().max()) > 0.01


def test_layers_draw_the_same_in_the_adversarys_pass_and_in_training() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 3)).train()
    ctx = make_context("fedrobust", net)
    seen: list[Tensor] = []
    net[1].register_forward_hook(lambda _m, _i, out: seen.append(out.detach() != 0))
    net[0].register_forward_hook(lambda *_: seen.append(torch.randint(99, (4,), generator=ctx.rng("layer"))))
    batch = base.Batch(torch.rand(2, 3, 2, 2) + 1, torch.tensor([0, 1]))
    still = fedrobust.Client(fedrobust.Config(step_delta=0, step_gamma=0))
    still.begin(UNIT, ctx)
    net(still.batch(batch, ctx).x)
    assert torch.equal(seen[0], seen[2]) and torch.equal(seen[1], seen[3])
    assert not ctx.run.replay


def test_slices_of_a_segmentation_network_in_half_precision_layout() -> None:
    net = unet.UNet(features=4).train().to(memory_format=torch.channels_last)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    ctx = make_context("fedrobust", net, objective=functional.cross_entropy, dense=True)
    x = torch.rand(2, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    soft = torch.softmax(torch.rand(2, 2, 32, 32), 1)
    client = fedrobust.Client(fedrobust.Config())
    client.begin(UNIT, ctx)
    out = client.batch(base.Batch(x, soft), ctx)
    assert out.y is soft and out.x.dtype == torch.float32 and out.x.shape == x.shape and not out.x.requires_grad
    assert out.x.is_contiguous(memory_format=torch.channels_last) and not torch.equal(out.x, x)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert net.training and all(p.grad is None for p in net.parameters())
    torch.testing.assert_close(out.x, ctx.scratch["affine"](x))


def coloured(site: int, seed: int, n: int = 64) -> tuple[Tensor, Tensor]:
    """Images 3 x 2 x 2 of two classes that differ in colour and in a noisy pattern; one tint per site."""
    rng = np.random.default_rng([seed, site])
    y = rng.integers(0, 2, n)
    sign = (2 * y - 1)[:, None, None, None]
    pattern = np.array([[1, -1], [-1, 1]])
    x = 0.3 * sign + 0.4 * sign * pattern + rng.normal(0, 0.5, (n, 3, 1, 1)) * pattern
    x = x + rng.normal(0, 0.03, (n, 3, 2, 2)) + 0.05 * (site - 1)
    return torch.from_numpy(x).float(), torch.from_numpy(y)


def accuracy_under_tint(config: fedrobust.Config, seed: int) -> float:
    """Trains a linear model at three sites; its accuracy on new images with the worst of eight tints."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    weights = {k: torch.zeros_like(v) for k, v in net.state_dict().items()}
    states: list[dict[str, Tensor]] = [{}, {}, {}]
    for round_ in range(15):
        ends = []
        for site in range(3):
            net.load_state_dict(weights)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
            client, ctx = fedrobust.Client(config), make_context("fedrobust", net, round=round_ + 1)
            ctx.state.update(states[site])
            client.begin(UNIT, ctx)
            for x, y in zip(*(t.split(16) for t in coloured(site, seed)), strict=True):
                batch = client.batch(base.Batch(x, y), ctx)
                optimizer.zero_grad()
                functional.cross_entropy(net(batch.x), batch.y).backward()
                optimizer.step()
            client.end(NO_DATA, ctx)
            states[site] = ctx.state
            ends.append({k: v.clone() for k, v in net.state_dict().items()})
        weights = {k: torch.stack([end[k] for end in ends]).mean(0) for k in weights}
    net.load_state_dict(weights)
    x, y = coloured(1, seed + 1000, 400)
    tints = [0.6 * torch.tensor(signs)[:, None, None] for signs in product((-1.0, 1.0), repeat=3)]
    return min(float((net(x + tint).argmax(1) == y).double().mean()) for tint in tints)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_it_stands_tints_better_than_fedavg(seed: int) -> None:
    """The model relies less on features that an affine map of channels can change."""
    fedavg = accuracy_under_tint(fedrobust.Config(step_delta=0, step_gamma=0), seed)
    assert accuracy_under_tint(fedrobust.Config(), seed) > fedavg + 0.1
