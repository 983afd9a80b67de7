"""ELCFS against plain calculations of its formulas: spectra, boundaries, the episode; and what it is for."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SHAPES, Samples, Sent, latest, make_context, make_image_site, make_site, server_context, small_job
from scipy import ndimage
from torch import Tensor, nn
from torch.nn import functional

from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.methods import base, elcfs

from .made import last_weights


def of_classes(n_classes: int) -> Any:
    return SimpleNamespace(n_classes=n_classes, regions=None)


# --- spectra --------------------------------------------------------------------------------------------


def plainly(x: np.ndarray, other: np.ndarray, share: float, b: int) -> np.ndarray:
    """t from one image and another, each channel by full spectra with the zero frequency in the middle."""
    axes = tuple(range(x.ndim))
    f, g = (np.fft.fftshift(np.fft.fftn(a), axes) for a in (x, other))
    amplitude = np.abs(f)
    centre = tuple(slice(side // 2 - b, side // 2 + b + 1) for side in x.shape)
    amplitude[centre] = (1 - share) * amplitude[centre] + share * np.abs(g)[centre]
    return np.fft.ifftn(np.fft.ifftshift(amplitude * np.exp(1j * np.angle(f)), axes)).real


@pytest.mark.parametrize("shape", [(12, 16), (13, 11), (8, 12, 9)])
@pytest.mark.parametrize("alpha", [0.0, 0.2])
def test_low_frequencies_are_interpolated(shape: tuple[int, ...], alpha: float) -> None:
    rng = np.random.default_rng(0)
    x, other, share = rng.random((2, 3, *shape)), rng.random((2, 3, *shape)), np.array([0.3, 1.0])
    low = elcfs.low_amplitude(torch.from_numpy(other), alpha=alpha)
    assert low.shape[2:] == elcfs.low_sides(shape, alpha=alpha)
    found = elcfs.with_low_amplitude(torch.from_numpy(x), low, torch.from_numpy(share), alpha=alpha)
    b = int(alpha * min(shape))
    for i, c in np.ndindex(2, 3):
        np.testing.assert_allclose(found[i, c].numpy(), plainly(x[i, c], other[i, c], share[i], b), atol=1e-12)
    same = elcfs.with_low_amplitude(torch.from_numpy(x), low, torch.zeros(2), alpha=alpha)
    np.testing.assert_allclose(same.numpy(), x, atol=1e-12)


def bank(config: elcfs.Config, images: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """What the server sends."""
    sent = [
        Sent(
            site,
            {},
            arrays={"elcfs": elcfs.Client(config).statistics(Samples(x), make_context("elcfs", site=site, round=0))},
        )
        for site, x in images.items()
    ]
    server = elcfs.Server(config)
    server.receive(sent, server_context(round=0))
    return server.broadcast(server_context())


def test_a_site_sends_some_spectra_and_the_bank_says_whose_they_are() -> None:
    images = {s: torch.full((n, 1, 8, 8), float(v)) for s, n, v in (("A", 9, 1), ("B", 2, 2), ("C", 9, 3))}
    got = bank(elcfs.Config(spectra=4, alpha=0.2), images)
    assert got["spectra"].shape == (10, 1, 3, 2) and got["spectra"].dtype == np.float32
    assert got["owner"].tolist() == [0] * 4 + [1] * 2 + [2] * 4
    np.testing.assert_allclose(got["spectra"][:, 0, 1, 0], 64.0 * (got["owner"] + 1), err_msg="frequency 0")
    assert not got["spectra"][:, 0, 0].any(), "there are no others"


def test_what_is_said_to_leave_is_as_fine_as_the_spectra() -> None:
    net = nn.Module()
    net.in_channels = 3  # type: ignore[assignment]

    def said(**options: Any) -> str:
        return elcfs.Client(elcfs.Config(**options)).up(net)["spectra"].reveals

    assert "100 pixels" in said() and "16" in said()
    assert "2.5 pixels" in said(alpha=0.4, spectra=9) and "9" in said(alpha=0.4, spectra=9)
    assert not any("structure" in text for text in (said(alpha=0.0), said(variant="released")))


def test_which_images_a_sites_spectra_are_of_is_random() -> None:
    x = torch.arange(1.0, 31).reshape(30, 1, 1, 1).expand(30, 1, 4, 4)
    spectra = elcfs.Client(elcfs.Config(spectra=5)).statistics(Samples(x), make_context("elcfs", round=0))["spectra"]
    drawn = (spectra.flatten() / 16).round().tolist()
    assert len(set(drawn)) == 5 and drawn != [1, 2, 3, 4, 5]


def moved(config: elcfs.Config, *, n: int = 40) -> list[Tensor]:
    """Means of t at site A, one of three sites of even images, one tensor for each partner."""
    images = {s: torch.full((3, 1, 8, 8), v) for s, v in (("A", 1.0), ("B", 2.0), ("C", 3.0))}
    ctx, client = make_context("elcfs"), elcfs.Client(config)
    client.receive(bank(config, images), ctx)
    batch = base.Batch(images["A"][:1].expand(n, 1, 8, 8), torch.zeros(n, dtype=torch.int64))
    assert client.batch(batch, ctx) is batch
    found: Tensor = ctx.scratch["moved"]
    return list(found.mean((1, 2, 3)).split(n))


def test_every_other_site_takes_part_and_the_share_is_uniform() -> None:
    one, other = moved(elcfs.Config())
    assert float(torch.minimum(one, other).min()) >= 1 and 1.5 < float(torch.maximum(one, other).max()) <= 3
    low, high = moved(elcfs.Config(lam=0.1))
    assert float(torch.maximum(low, high).max()) <= 1.2 + 1e-5
    (single,) = moved(elcfs.Config(partners=1))
    assert float(single.max()) > 2, "site C, too"
    (whole,) = moved(elcfs.Config(variant="released"))
    assert {round(v, 4) for v in whole.tolist()} == {2.0, 3.0}, "the brightness of one other site, in full"


# --- boundaries -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(20, 18), (9, 14, 12)])
def test_masks_grow_and_shrink_as_scipys(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    mask = ndimage.gaussian_filter(rng.random(shape), 2) > 0.5
    y = torch.from_numpy(np.where(mask, 2, 0))[None]
    regions = list(elcfs.edges(y, of_classes(3)))
    assert not regions[0][0].any() and not regions[0][1].any(), "a class that is not there"
    boundary, background = (region[0].numpy().astype(bool) for region in regions[1])
    np.testing.assert_array_equal(boundary, mask & ~ndimage.binary_erosion(mask))
    np.testing.assert_array_equal(background, ndimage.binary_dilation(mask, iterations=5) & ~mask)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def contrast(
    boundary: np.ndarray, background: np.ndarray, tau: float, *, bounded: bool = True, released: bool = False
) -> float:
    """L_boundary of one class, pair by pair; (V, B, C) each."""
    v, b, _ = boundary.shape
    sets = [[(k, h[i, n]) for k, h in enumerate((boundary, background)) for i in range(v)] for n in range(b)]
    if released:
        sets = [[one for of in sets for one in of]]
    means = []
    for of in sets:
        pairs = list(combinations(range(len(of)), 2))
        pairs += [(p, m) for m, p in pairs] if released else []
        losses = []
        for m, p in pairs:
            if of[m][0] == of[p][0]:
                up = np.exp(cosine(of[m][1], of[p][1]) / tau)
                down = sum(np.exp(cosine(of[m][1], h) / tau) for k, h in of if k != of[m][0])
                losses.append(-np.log(up / (down + (up if bounded else 0))))
        means.append(np.mean(losses))
    return float(np.mean(means))


@pytest.mark.parametrize(("bounded", "released"), [(True, False), (False, False), (True, True)])
def test_features_of_boundaries_and_background_are_contrasted(bounded: bool, released: bool) -> None:
    rng = np.random.default_rng(0)
    boundary, background = rng.normal(size=(2, 3, 4, 5))
    how = {"bounded": bounded, "released": released}
    found = elcfs.info_nce(*map(torch.from_numpy, (boundary, background)), temperature=0.4, **how)
    assert float(found) == pytest.approx(contrast(boundary, background, 0.4, **how), rel=1e-9)


def test_the_default_cannot_fall_below_0_and_the_equation_as_read_can() -> None:
    """Without the pair itself in the sum, pushing the two kinds apart lowers it without an end that is 0."""
    apart = torch.zeros(2, 1, 2)
    apart[..., 0] = 1
    found = {b: float(elcfs.info_nce(apart, -apart, temperature=0.05, bounded=b)) for b in (True, False)}
    assert 0 <= found[True] < 1e-6 and found[False] < -35


def test_boundaries_of_all_classes_count_where_they_are() -> None:
    rng = np.random.default_rng(0)
    z = torch.from_numpy(rng.normal(size=(6, 5, 16, 16)))  # two versions of three images
    y = torch.zeros(3, 16, 16, dtype=torch.int64)
    y[0, 2:6, 2:6], y[0, 8:12, 8:12], y[1, 4:9, 4:9] = 1, 2, 1
    expected = 0.0
    for number, images in ((1, [0, 1]), (2, [0])):
        means = []
        for region in (0, 1):
            masks = list(elcfs.edges(y, of_classes(3)))[number - 1][region].numpy()
            means.append(
                np.array(
                    [[(z[3 * v + i].numpy() * masks[i]).sum((1, 2)) / masks[i].sum() for i in images] for v in range(2)]
                )
            )
        expected += contrast(means[0], means[1], 0.3)
    assert float(elcfs.boundary_loss(z, y, of_classes(3), temperature=0.3)) == pytest.approx(expected, rel=1e-6)
    assert float(elcfs.boundary_loss(z, torch.zeros_like(y), of_classes(3), temperature=0.3)) == 0
    coarse = functional.avg_pool2d(z, 2)
    assert torch.isfinite(elcfs.boundary_loss(coarse, y, of_classes(3), temperature=0.3)), (
        "features are sampled at the masks' size"
    )


# --- the episode ----------------------------------------------------------------------------------------


class Line(nn.Module):
    """Logits w x + v, the last layer; features are w x."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(1, 3, 1, bias=False), nn.Conv2d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.first(x)))
        return logits


def objective(net: Line, x: Tensor, t: Tensor, y: Tensor, config: elcfs.Config, weights: list[Tensor]) -> Tensor:
    """The whole objective as a function of the weights, written out."""

    def run(w: list[Tensor], images: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.tanh(functional.conv2d(images, w[0]))
        return z, functional.conv2d(z, w[1], w[2])

    z_raw, logits = run(weights, x)
    inner = functional.cross_entropy(logits, y)
    slope = torch.autograd.grad(inner, weights, create_graph=True)
    if config.order == "first" or config.variant == "released":
        slope = tuple(g.detach() for g in slope)
    stepped = [w - config.inner_lr * g for w, g in zip(weights, slope, strict=True)]
    z_moved, moved_logits = run(stepped, t)
    z_first = z_raw if config.variant == "released" else run(stepped, x)[0]
    boundary = elcfs.boundary_loss(
        torch.cat([z_first, z_moved]),
        y,
        of_classes(2),
        temperature=config.temperature,
        bounded=config.bounded,
        released=config.variant == "released",
    )
    outer = functional.cross_entropy(moved_logits, y.repeat(len(t) // len(y), 1, 1))
    return inner + outer + config.contrast * boundary


@pytest.mark.parametrize(
    "changes", [{}, {"bounded": False}, {"order": "first"}, {"variant": "released"}, {"contrast": 0}]
)
def test_loss_and_gradient_are_those_of_the_episode(changes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    config = elcfs.Config(inner_lr=0.5, alpha=0.2, temperature=0.5, **changes)
    net = Line().double()
    x, y = torch.rand(2, 1, 12, 12).double(), torch.zeros(2, 12, 12, dtype=torch.int64)
    y[:, 3:7, 3:7] = 1
    ctx = make_context("elcfs", net, n_classes=2, dense=True)
    client = elcfs.Client(config)
    handles = client.attach(net, ctx)
    client.receive(bank(config, {s: torch.rand(3, 1, 12, 12) * k for s, k in (("A", 1), ("B", 2), ("C", 3))}), ctx)
    client.batch(base.Batch(x, y), ctx)
    logits = net(x)
    loss = client.loss(base.Batch(x, y), logits, functional.cross_entropy(logits, y), ctx)
    loss.backward()
    weights = [p.detach().clone().requires_grad_() for p in net.parameters()]
    expected = objective(net, x, ctx.scratch["moved"], y, config, weights)
    torch.testing.assert_close(loss, expected)
    for p, gradient in zip(net.parameters(), torch.autograd.grad(expected, weights), strict=True):
        torch.testing.assert_close(p.grad, gradient)
    assert all(isinstance(p, nn.Parameter) for p in net.parameters()) and not ctx.run.replay
    assert "features" not in ctx.scratch
    for handle in handles:
        handle.remove()


# --- jobs -----------------------------------------------------------------------------------------------

SGD = ("optimizer.name=sgd", "optimizer.weight_decay=0", "schedule.rounds=1")


@pytest.mark.slow
def test_without_mixing_inner_step_and_contrast_it_is_fedavg_at_twice_the_rate(
    three_sites: dict[str, Path], tmp_path: Path
) -> None:
    """Both passes are the same, so the gradient is twice as long."""
    off = ("elcfs.lam=0", "elcfs.inner_lr=0", "elcfs.contrast=0", "elcfs.partners=1")
    run_in_process(small_job("elcfs", *SGD, "optimizer.lr=0.03125", *off), three_sites, tmp_path / "elcfs")
    run_in_process(small_job("fedavg", *SGD, "optimizer.lr=0.0625"), three_sites, tmp_path / "fedavg")
    run_in_process(small_job("elcfs", *SGD, "optimizer.lr=0.03125", "elcfs.contrast=5"), three_sites, tmp_path / "on")
    found, expected, on = (last_weights(tmp_path / name) for name in ("elcfs", "fedavg", "on"))
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-4, msg=key)
    assert not torch.allclose(on["conv.weight"], expected["conv.weight"], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", ["elcfs.variant=released", "elcfs.contrast=0.5", "elcfs.bounded=false", "elcfs.temperature=0.5"]
)
def test_what_classification_does_not_have_changes_masks(options: str, tmp_path: Path) -> None:
    data = {s: make_site(tmp_path, s, cases=3, gain=g) for s, g in (("BIDMC", 1.0), ("HK", 0.5))}
    for name, changed in (("one", (options,)), ("other", ())):
        job = small_job("elcfs", *SGD, *changed, sites=tuple(data))
        run_in_process(job, data, tmp_path / name)
    one, other = (last_weights(tmp_path / name)["conv.weight"] for name in ("one", "other"))
    assert not torch.equal(one, other)


@pytest.mark.slow
def test_the_model_serves_a_dark_site_that_took_no_part(tmp_path: Path) -> None:
    """What the paper claims: spectra of other sites prepare the model for one that it has never seen."""
    shifts = {"A": (1.0, 0.0), "B": (1.4, -30.0), "C": (0.4, 0.0)}
    data = {s: make_image_site(tmp_path, s, gain=g, offset=o) for s, (g, o) in shifts.items()}
    told: dict[str, list[float]] = {"fedavg": [], "elcfs": []}
    for seed in range(4):
        for method, accuracies in told.items():
            job = resolve(str(SHAPES), method, sites="AB", held_out="C", options=latest("schedule.rounds=8"), seed=seed)
            final = run_in_process(job, data, tmp_path / f"{method}{seed}").results.final
            assert final is not None
            accuracies.append(final.last.held_out["C"]["all"]["accuracy"])
    assert np.mean(told["elcfs"]) > np.mean(told["fedavg"]) + 0.05, told


def test_the_order_of_the_gradient_makes_a_difference() -> None:
    torch.manual_seed(0)
    net, y = Line().double(), torch.ones(2, 12, 12, dtype=torch.int64)
    x, t = torch.rand(2, 2, 1, 12, 12).double()
    gradients = []
    for order in ("first", "second"):
        weights = [p.detach().clone().requires_grad_() for p in net.parameters()]
        config = elcfs.Config(inner_lr=0.5, contrast=0, order=order)
        gradients.append(torch.autograd.grad(objective(net, x, t, y, config, weights), weights)[0])
    assert not torch.allclose(*gradients, rtol=1e-2)
