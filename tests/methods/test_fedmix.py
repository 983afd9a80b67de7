"""FedMix against its formula on a model with known derivatives, its averages, and what a model learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Samples, Sent, make_context, make_image_site, server_context, small_image_job
from errors import raises
from torch import Tensor, nn
from torch.nn import functional

from fedshift.federation.site.site import Site, SiteOptions
from fedshift.methods import base, fedmix


class Problem:
    """A softmax-linear model in numpy, for which every term of FedMix has a closed form."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.w, self.b = rng.normal(size=(4, 6)), rng.normal(size=4)
        self.x, self.y = rng.normal(size=(5, 6)), np.array([0, 3, 1, 2, 1])
        self.mean_x, self.mean_y = rng.normal(size=(1, 6)), rng.dirichlet(np.ones(4), 1)

    def cross_entropy(self, w: np.ndarray, x: np.ndarray, target: np.ndarray) -> float:
        logits = x @ w.T + self.b
        log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        return float(-(target * log_p).sum(1).mean())

    def loss(self, w: np.ndarray, lam: float, *, average_product: bool = False) -> float:
        """(1−λ) CE(y) + λ CE(ȳ) + λ (1−λ) Σ_i Wᵀ(p_i − y_i)/B · x̄."""
        x, hard = (1 - lam) * self.x, np.eye(4)[self.y]
        logits = x @ w.T + self.b
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        slope = (p - hard) @ w / len(x)
        product = (1 - lam) * float((slope * self.mean_x).sum())
        if average_product:
            product /= len(x)
        theirs = self.cross_entropy(w, x, np.repeat(self.mean_y, len(x), 0))
        return (1 - lam) * self.cross_entropy(w, x, hard) + lam * theirs + lam * product

    def gradient(self, lam: float, *, average_product: bool = False) -> np.ndarray:
        """Gradient of ``loss`` with respect to W, by central differences."""
        result = np.zeros_like(self.w)
        for place in np.ndindex(self.w.shape):
            step = np.zeros_like(self.w)
            step[place] = 1e-6
            up, down = (self.loss(self.w + s * step, lam, average_product=average_product) for s in (1, -1))
            result[place] = (up - down) / 2e-6
        return result


def trained_loss(
    problem: Problem, lam: float, *, variant: str = "paper", added: float = 0.0, slices: bool = False
) -> tuple[float, np.ndarray]:
    """Loss and gradient of one batch, through the hooks used in training."""
    net = nn.Linear(6, 4).double()
    with torch.no_grad():
        net.weight.copy_(torch.from_numpy(problem.w))
        net.bias.copy_(torch.from_numpy(problem.b))

    def objective(logits: Tensor, y: Tensor) -> Tensor:
        ce = functional.cross_entropy(logits, y)
        return ce / 2 + logits.square().mean() if slices else ce

    ctx = make_context("fedmix", net, n_classes=4, objective=objective, dense=slices)
    client = fedmix.Client(fedmix.Config(lam=lam, variant=variant))
    client.attach(net, ctx)
    client.receive({"images": problem.mean_x, "targets": problem.mean_y}, ctx)
    batch = client.batch(base.Batch(torch.from_numpy(problem.x), torch.from_numpy(problem.y)), ctx)
    logits = net(batch.x)
    loss = client.loss(batch, logits, objective(logits, batch.y) + added, ctx)
    loss.backward()
    assert net.weight.grad is not None
    return float(loss.detach()), net.weight.grad.numpy()


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("lam", [0.05, 0.1, 0.2])
def test_loss_and_gradient_are_those_of_the_formula(lam: float, variant: str) -> None:
    problem = Problem()
    loss, gradient = trained_loss(problem, lam, variant=variant)
    released = variant == "released"
    np.testing.assert_allclose(loss, problem.loss(problem.w, lam, average_product=released), rtol=1e-12)
    np.testing.assert_allclose(gradient, problem.gradient(lam, average_product=released), rtol=1e-6, atol=1e-8)
    assert abs(loss - problem.loss(problem.w, lam, average_product=not released)) > 1e-4


def test_it_approximates_mixup_with_the_average_to_first_order() -> None:
    problem = Problem()

    def error(lam: float) -> float:
        x = (1 - lam) * problem.x + lam * problem.mean_x
        mixed = (1 - lam) * np.eye(4)[problem.y] + lam * problem.mean_y
        return abs(trained_loss(problem, lam)[0] - problem.cross_entropy(problem.w, x, mixed))

    assert 3.5 < error(0.02) / error(0.01) < 4.5, "the neglected terms are of order λ²"


def test_what_other_methods_have_added_to_the_loss_stays() -> None:
    problem = Problem()
    assert trained_loss(problem, 0.1, added=3.0)[0] == pytest.approx(trained_loss(problem, 0.1)[0] + 3)


def test_on_masks_cross_entropy_takes_the_place_of_the_tasks_loss() -> None:
    problem = Problem()
    loss, gradient = trained_loss(problem, 0.1, added=3.0, slices=True)
    plain, plain_gradient = trained_loss(problem, 0.1)
    assert loss == pytest.approx(plain + 3)
    np.testing.assert_allclose(gradient, plain_gradient, rtol=1e-9, atol=1e-12)


# --- averages -----------------------------------------------------------------------------------------


def test_averages_are_of_groups_that_share_no_image_and_a_rest_is_left_out() -> None:
    images = torch.eye(13).reshape(13, 1, 1, 13)  # an average identifies its members
    y = torch.arange(13) % 3
    client = fedmix.Client(fedmix.Config())
    sent = client.statistics(Samples(images, y), make_context("fedmix", round=0))
    assert sent["images"].shape == (2, 1, 1, 13) and sent["images"].dtype == np.float32
    members = sent["images"].reshape(2, 13) * 5
    np.testing.assert_allclose(members.sum(1), 5)
    assert (members.sum(0) <= 1 + 1e-6).all() and members.max() <= 1 + 1e-6
    np.testing.assert_allclose(sent["targets"], members @ np.eye(3)[y.numpy()] / 5, atol=1e-7)
    other = client.statistics(Samples(images, y), make_context("fedmix", round=0, site="B"))
    assert not np.array_equal(other["images"], sent["images"]), "groups are random"
    assert not np.allclose(members[0, :5], 1), "and not in the order of the data"


def test_jobs_with_other_seeds_send_the_same_averages(tmp_path: Path) -> None:
    """From averages over other groups of the same images, single images could be solved."""
    data = make_image_site(tmp_path / "data", "A")
    first, second = (
        Site(small_image_job("fedmix", seed=seed), "A", data, SiteOptions(tmp_path / str(seed), device="cpu"))
        .statistics()
        .arrays["fedmix"]
        for seed in (0, 1)
    )
    for name, array in first.items():
        np.testing.assert_array_equal(second[name], array)


def test_masks_are_averaged_pixel_by_pixel() -> None:
    y = (torch.rand(4, 6, 6, generator=torch.Generator().manual_seed(0)) < 0.5).long()
    ctx = make_context("fedmix", round=0, n_classes=2)
    sent = fedmix.Client(fedmix.Config(images=4)).statistics(Samples(torch.rand(4, 3, 6, 6), y), ctx)
    assert sent["targets"].shape == (1, 2, 6, 6)
    np.testing.assert_allclose(sent["targets"][0, 1], y.float().mean(0).numpy())
    np.testing.assert_allclose(sent["targets"].sum(1), 1)


def test_a_site_with_too_few_images_is_told_what_to_do() -> None:
    with raises("too-few-images", naming="fedmix.images"):
        fedmix.Client(fedmix.Config()).statistics(Samples(torch.rand(4, 3, 6, 6)), make_context("fedmix", round=0))


def test_the_average_is_normalised_as_the_batch_is() -> None:
    net = nn.Linear(6, 4).double()
    ctx = make_context("fedmix", net, n_classes=4, normalise=lambda x, *, training: (x - 5) / 2)
    client = fedmix.Client(fedmix.Config())
    problem = Problem()
    client.receive({"images": problem.mean_x, "targets": problem.mean_y}, ctx)
    client.batch(base.Batch(torch.from_numpy(problem.x), torch.from_numpy(problem.y)), ctx)
    np.testing.assert_allclose(ctx.scratch["average"][0].numpy(), (problem.mean_x - 5) / 2)


def test_an_average_is_drawn_for_every_batch_from_all_that_came() -> None:
    ctx = make_context("fedmix", n_classes=4)
    client = fedmix.Client(fedmix.Config())
    client.receive({"images": np.arange(6.0).reshape(6, 1, 1, 1), "targets": np.eye(6)}, ctx)
    drawn = []
    for _ in range(60):
        client.batch(base.Batch(torch.ones(2, 1, 1, 1), torch.zeros(2, dtype=torch.int64)), ctx)
        image, target = ctx.scratch["average"]
        drawn.append(int(image))
        assert int(target.argmax()) == int(image)
    assert set(drawn) == set(range(6))


def served(config: fedmix.Config) -> fedmix.Server:
    server = fedmix.Server(config)
    updates = []
    for k, site in enumerate("AB"):
        numbers = np.arange(10 * k, 10 * k + 10, dtype=np.float32)
        arrays = {"images": numbers.reshape(10, 1, 1, 1), "targets": np.tile(numbers[:, None], (1, 3))}
        updates.append(Sent(site, {}, arrays={"fedmix": arrays}))
    server.receive(updates, server_context(round=0, rounds=4))
    return server


def test_the_server_sends_a_random_choice_of_all_sites_averages_that_changes_by_round() -> None:
    server = served(fedmix.Config(per_round=6))
    chosen = []
    for round_ in range(1, 5):
        sent = server.broadcast(server_context(round=round_, rounds=4))
        assert sent["images"].shape == (6, 1, 1, 1)
        assert np.array_equal(sent["images"][:, 0, 0, 0], sent["targets"][:, 0])
        chosen.append(frozenset(sent["targets"][:, 0].tolist()))
        again = server.broadcast(server_context(round=round_, rounds=4))
        assert np.array_equal(again["images"], sent["images"]), "a repeated round gets the same averages"
    assert all(len(c) == 6 for c in chosen) and len(set(chosen)) == 4
    assert any(min(c) < 10 <= max(c) for c in chosen), "from both sites"
    everything = served(fedmix.Config()).broadcast(server_context(round=1, rounds=4))
    assert sorted(everything["targets"][:, 0].tolist()) == list(range(20))


# --- whole runs ---------------------------------------------------------------------------------------


def loss_mixed_with_others(lam: float, seed: int) -> float:
    """Mixup's loss with another site's averages, after training without mixed images."""
    torch.manual_seed(seed)
    centres = 2 * torch.eye(3, 6)
    y = torch.arange(60) % 2
    x = centres[y] + torch.randn(60, 6)
    mean_x = (centres[[2] * 60] + torch.randn(60, 6)).reshape(12, 5, 6).mean(1)
    mean_y = functional.one_hot(torch.full((12,), 2), 3).float()
    net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    ctx = make_context("fedmix", net, n_classes=3, seed=seed)
    client = fedmix.Client(fedmix.Config(lam=lam))
    client.attach(net, ctx)
    client.receive({"images": mean_x.numpy(), "targets": mean_y.numpy()}, ctx)
    for _ in range(150):
        batch = client.batch(base.Batch(x, y), ctx)
        optimizer.zero_grad()
        logits = net(batch.x)
        client.loss(batch, logits, functional.cross_entropy(logits, batch.y), ctx).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        pairs = torch.arange(60) % 12
        mixed_y = 0.9 * functional.one_hot(y, 3) + 0.1 * mean_y[pairs]
        return float(functional.cross_entropy(net(0.9 * x + 0.1 * mean_x[pairs]), mixed_y))


def test_it_lowers_the_loss_of_mixup_between_sites() -> None:
    assert loss_mixed_with_others(0.1, seed=0) < 0.8 * loss_mixed_with_others(0.0, seed=0)
