"""HarmoFL's amplitude normalisation against the authors' numbers and the paper's formula, and its effect."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import Samples, Sent, golden, make_context, server_context

from fedshift.methods import harmofl

SHAPES = ["even", "rect", "odd"]


def half(spectrum: np.ndarray) -> torch.Tensor:
    """The stored half of a full spectrum (…, W)."""
    return torch.from_numpy(spectrum[..., : spectrum.shape[-1] // 2 + 1])


def normalised(x: np.ndarray, shared: torch.Tensor, variant: str = "paper") -> np.ndarray:
    ctx = make_context("harmofl")
    client = harmofl.Client(harmofl.Config(variant=variant))
    client.receive({"amplitude": shared.numpy()}, ctx)
    trained, tested = (client.inputs(torch.from_numpy(x), ctx, training=training) for training in (True, False))
    assert torch.equal(trained, tested), "the same in training and evaluation"
    return tested.numpy()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_papers_normalisation(shape: str) -> None:
    g = golden("harmofl_amplitude")
    y = normalised(g[f"{shape}_x2"].astype(np.float64), half(g[f"{shape}_numpy_intended_ema_amp1"]))
    np.testing.assert_allclose(y, g[f"{shape}_numpy_full_amplitude_y2"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_released_one_replaces_the_mean_alone(shape: str) -> None:
    g = golden("harmofl_amplitude")
    dc = half(g[f"{shape}_amp2"])[:, :1, :1]
    np.testing.assert_allclose(normalised(g[f"{shape}_x2"], dc, "released"), g[f"{shape}_y2"], rtol=1e-5, atol=1e-6)
    dark = normalised(-g[f"{shape}_x2"], dc, "released")
    np.testing.assert_allclose(dark, -g[f"{shape}_y2"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sites_amplitude_is_the_mean_over_its_images(shape: str) -> None:
    g = golden("harmofl_amplitude")
    for variant, expected in (("paper", half(g[f"{shape}_amp0"])), ("released", half(g[f"{shape}_amp0"])[:, :1, :1])):
        client = harmofl.Client(harmofl.Config(variant=variant))
        sent = client.statistics(Samples(g[f"{shape}_x0"]), make_context("harmofl", round=0))
        assert sent["amplitude"].dtype == np.float32
        np.testing.assert_allclose(sent["amplitude"], expected.numpy(), rtol=1e-5, atol=1e-5)


def test_the_server_counts_every_site_the_same_and_a_new_one_goes_on_from_its_state() -> None:
    spectra = [np.full((1, 2, 2), v, np.float32) for v in (1.0, 4.0)]
    updates = [
        Sent(site, {}, n_samples=n, arrays={"harmofl": {"amplitude": spectrum}})
        for site, n, spectrum in zip("AB", (1, 99), spectra, strict=True)
    ]
    server = harmofl.Server(harmofl.Config())
    server.receive(updates, server_context(round=0))
    server.receive([Sent("A", {})], server_context(round=1))
    other = harmofl.Server(harmofl.Config())
    other.state = dict(server.state)
    for half_ in (server, other):
        np.testing.assert_allclose(half_.broadcast(server_context(round=2))["amplitude"], np.full((1, 2, 2), 2.5))


def test_amplitudes_become_the_shared_ones_and_phases_stay() -> None:
    rng = np.random.default_rng(0)
    x, others = rng.random((3, 2, 9, 8)), rng.random((5, 2, 9, 8))
    shared = harmofl.amplitude(torch.from_numpy(others)).mean(0)
    y = normalised(x, shared)
    np.testing.assert_allclose(np.abs(np.fft.rfft2(y)), np.broadcast_to(shared, (3, 2, 9, 5)), rtol=1e-8)
    turn = np.angle(np.fft.rfft2(y)) - np.angle(np.fft.rfft2(x))
    np.testing.assert_allclose(np.cos(turn), 1, atol=1e-8)


def test_an_image_whose_amplitude_is_the_shared_one_stays() -> None:
    x = np.random.default_rng(0).random((1, 3, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(normalised(x, harmofl.amplitude(torch.from_numpy(x))[0]), x, atol=1e-6)


def test_gain_and_brightness_of_a_site_are_gone() -> None:
    rng = np.random.default_rng(1)
    x = rng.random((4, 3, 16, 16))
    shared = harmofl.amplitude(torch.from_numpy(x)).mean(0)
    np.testing.assert_allclose(normalised(3.7 * x + 25, shared), normalised(x, shared), atol=1e-9)
    assert np.abs(normalised(x, shared) - x).max() > 0.01


def test_a_constant_image_stays_finite() -> None:
    assert np.isfinite(normalised(np.zeros((2, 1, 8, 8), np.float32), torch.ones(1, 8, 5))).all()


def accuracies(seed: int, *, harmonised: bool) -> tuple[float, float]:
    """Accuracy of a linear model on new images of its training site, and of a site with another contrast."""
    rng = np.random.default_rng(seed)
    patterns = rng.random((3, 1, 8, 8))
    labels = np.arange(120) % 3

    def pictures() -> np.ndarray:
        return patterns[labels] + rng.normal(0, 0.1, (120, 1, 8, 8))

    own, shifted = pictures(), 0.1 * pictures() + 3
    client = harmofl.Client(harmofl.Config())
    ctx = make_context("harmofl", round=0)
    spectra = [client.statistics(Samples(x), ctx)["amplitude"] for x in (own, shifted)]
    updates = [Sent(site, {}, arrays={"harmofl": {"amplitude": a}}) for site, a in zip("AB", spectra, strict=True)]
    server = harmofl.Server(harmofl.Config())
    server.receive(updates, server_context(round=0))
    client.receive(server.broadcast(server_context()), ctx)

    def seen(x: np.ndarray, *, training: bool) -> torch.Tensor:
        images = torch.from_numpy(x)
        return (client.inputs(images, ctx, training=training) if harmonised else images).flatten(1)

    torch.manual_seed(seed)
    net = torch.nn.Linear(64, 3).double()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    y = torch.from_numpy(labels)
    for _ in range(100):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(seen(own, training=True)), y).backward()
        optimizer.step()
    tests = (pictures(), 0.1 * pictures() + 3)
    first, second = (float((net(seen(x, training=False)).argmax(1) == y).double().mean()) for x in tests)
    return first, second


def test_a_model_works_at_a_site_with_another_contrast_that_it_never_saw() -> None:
    own, shifted = accuracies(0, harmonised=True)
    assert own > 0.9 and shifted > 0.9
    own, shifted = accuracies(0, harmonised=False)
    assert own > 0.9 and shifted < 0.7
