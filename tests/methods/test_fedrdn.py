"""FedRDN against the authors' numbers, and how it draws pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import Samples, golden, make_context
from errors import raises

from fedshift.methods import base, fedrdn


def test_statistics_are_the_papers_over_n() -> None:
    g = golden("fedrdn")
    for k in range(3):
        ctx = make_context("fedrdn", round=0)
        sent = fedrdn.Client(fedrdn.Config()).statistics(Samples(g[f"client{k}_images"]), ctx)
        np.testing.assert_allclose(sent["mean"], g["float64_mean"][k], rtol=1e-12)
        np.testing.assert_allclose(sent["mean"], g["code_mean"][k], rtol=1e-5)
        np.testing.assert_allclose(sent["std"], g["paper_sum_over_n_biased_std_mean"][k], rtol=1e-12)
        assert np.abs(sent["std"] - g["pooled_pixel_std_for_contrast"][k]).max() > 1e-3


def client_with_pairs(config: fedrdn.Config, ctx: base.Context) -> fedrdn.Client:
    g = golden("fedrdn")
    client = fedrdn.Client(config)
    ctx.state["mean"] = torch.from_numpy(g["code_mean"][1]).double()
    ctx.state["std"] = torch.from_numpy(g["code_std_unbiased"][1]).double()
    means, stds = g["code_mean"].astype(np.float64), g["code_std_unbiased"].astype(np.float64)
    client.receive({"means": means, "stds": stds}, ctx)
    return client


def test_normalisation_is_the_authors(monkeypatch: pytest.MonkeyPatch) -> None:
    g = golden("fedrdn")
    x = torch.from_numpy(g["client1_images"])
    ctx = make_context("fedrdn")
    client = client_with_pairs(fedrdn.Config(variant="released"), ctx)
    at_test = client.inputs(x, ctx, training=False)
    np.testing.assert_allclose(at_test.numpy(), g["normalized_client1_test_local"], rtol=1e-5, atol=1e-6)
    draws = iter([torch.tensor([2]), torch.tensor([0])])
    monkeypatch.setattr(fedrdn.torch, "randint", lambda *_a, **_k: next(draws))
    trained = client.inputs(x, ctx, training=True)
    np.testing.assert_allclose(trained.numpy(), g["normalized_client1_mean_of_2_std_of_0"], rtol=1e-5, atol=1e-6)


def test_paper_draws_a_pair_an_image_and_released_two_numbers_a_batch() -> None:
    g = golden("fedrdn")
    x = torch.full((64, 3, 1, 1), 0.5)
    pairs = [(0.5 - g["code_mean"][k]) / g["code_std_unbiased"][k] for k in range(3)]
    ctx = make_context("fedrdn")
    out = client_with_pairs(fedrdn.Config(), ctx).inputs(x, ctx, training=True)[..., 0, 0].numpy()
    of_pair = [np.isclose(out, p, rtol=1e-5).all(1) for p in pairs]
    assert np.sum(of_pair, 0).tolist() == [1] * 64, "every image uses the mean and deviation of one site"
    assert min(np.sum(m) for m in of_pair) > 8
    released = client_with_pairs(fedrdn.Config(variant="released"), ctx)
    batches = [released.inputs(x, ctx, training=True)[..., 0, 0].numpy() for _ in range(32)]
    assert all((b == b[0]).all() for b in batches), "one draw per batch"
    unpaired = [b[0] for b in batches if not any(np.allclose(b[0], p, rtol=1e-5) for p in pairs)]
    assert unpaired, "mean and standard deviation of different sites are combined"


def test_mean_and_fixed_modes_treat_training_and_test_alike() -> None:
    g = golden("fedrdn")
    x = torch.from_numpy(g["client1_images"])
    ctx = make_context("fedrdn")
    v = client_with_pairs(fedrdn.Config(mode="mean"), ctx)
    expected = (x - torch.from_numpy(g["code_mean"].mean(0))[:, None, None]) / torch.from_numpy(
        g["code_std_unbiased"].mean(0)
    )[:, None, None]
    for training in (True, False):
        torch.testing.assert_close(v.inputs(x, ctx, training=training), expected)
    fixed = fedrdn.Client(fedrdn.Config(mode="fixed", fixed_mean=(0.4,), fixed_std=(0.2,)))
    fixed.receive({}, ctx)
    for training in (True, False):
        torch.testing.assert_close(fixed.inputs(x, ctx, training=training), (x - 0.4) / 0.2)
    assert fixed.up(torch.nn.Identity()) == {} and fixed.statistics(Samples(g["client0_images"]), ctx) == {}


def test_constant_images_are_refused() -> None:
    with raises("images-constant", naming="site A"):
        fedrdn.Client(fedrdn.Config()).statistics(
            Samples(np.ones((3, 3, 4, 4), np.float32)), make_context("fedrdn", round=0)
        )
