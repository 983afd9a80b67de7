"""PartialFed: which modules a site keeps, what it trains and evaluates, and the search for what to keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Samples, make_context
from torch import nn

from fedshift.methods import base, partialfed
from fedshift.tasks import networks

from .made import last_weights, run, site_state


@pytest.mark.parametrize(
    ("name", "options", "first", "last", "head"),
    [
        ("digits_cnn", {"size": 16, "width": 4}, {"block1.0", "block1.1"}, {"fc2.0", "fc2.1"}, {"head"}),
        (
            "unet",
            {"features": 4},
            {"encoder1.enc1_conv1", "encoder1.enc1_bn1"},
            {"decoder1.dec1_conv2", "decoder1.dec1_bn2"},
            {"conv"},
        ),
        ("mnist_cnn", {"size": 16}, {"conv1"}, {"conv2"}, {"head"}),
    ],
)
def test_names_of_places(name: str, options: dict[str, Any], first: set[str], last: set[str], head: set[str]) -> None:
    net = networks.build(name, options, in_channels=3, n_classes=2, seed=0)
    found = partialfed.places(net)
    assert found["first"] == first and found["last"] == last and found["head"] == head
    norms = {key.rpartition(".")[0] for key in net.state_dict() if key.endswith("running_mean")}
    assert found["norm"] == norms


def test_a_network_that_names_no_head_ends_with_it() -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.GroupNorm(1, 2), nn.ReLU(), nn.Conv2d(2, 2, 1), nn.PReLU())
    found = partialfed.places(net)
    assert found == {"norm": {"1"}, "first": {"0", "1"}, "last": {"0", "1"}, "head": {"3", "4"}}


def test_a_site_that_keeps_nothing_stores_nothing(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    results = run("partialfed", three_image_sites, tmp_path, "partialfed.keep=[]")
    assert results.final is not None and results.final.personal == {}
    assert not site_state(tmp_path, "A", 2)["methods"].get("partialfed")


def test_a_site_that_keeps_norms_does_fedbn(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    """Equal bit for bit; the scores are those of the site's mixture."""
    options = ("schedule.rounds=3", "fedavg.weights=uniform")
    expected = run("fedbn", three_image_sites, tmp_path / "a", "fedbn.unseen=averaged", *options)
    results = run("partialfed", three_image_sites, tmp_path / "b", "partialfed.keep=[norm]", *options)
    plain, weights = last_weights(tmp_path / "a"), last_weights(tmp_path / "b")
    assert all(torch.equal(plain[key], weights[key]) for key in plain)
    assert results.final == expected.final and results.final is not None and results.final.personal != {}


def test_by_default_it_is_neither_fedavg_nor_fedbn() -> None:
    """More than the norms stay at a site, and more than nothing is shared."""
    net = networks.build("digits_cnn", {"size": 16, "width": 4}, in_channels=3, n_classes=3, seed=0)
    where, keep = partialfed.places(net), partialfed.Config().keep
    kept = frozenset[str]().union(*(where[place] for place in keep))
    assert where["norm"] < kept < frozenset(partialfed.units(net))


def two_layers(first: float, second: float) -> nn.Sequential:
    """Two scalar factors on one-pixel images: logits (0, first * second * x)."""
    net = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.Flatten(), nn.Linear(1, 2, bias=False))
    net.load_state_dict({"0.weight": torch.full((1, 1, 1, 1), first), "2.weight": torch.tensor([[0.0], [second]])})
    return net


def state_of(net: nn.Module) -> dict[str, np.ndarray]:
    return {key: value.numpy().copy() for key, value in net.state_dict().items()}


def test_the_first_round_is_global_and_the_next_a_mixture_in_a_new_object() -> None:
    config = partialfed.Config(keep=("first",))
    received, ctx = two_layers(2, 3), make_context("partialfed", two_layers(2, 3))
    partialfed.Client(config).receive({}, ctx)
    assert all(torch.equal(a, b) for a, b in zip(ctx.run.net.parameters(), received.parameters(), strict=True))
    trained = make_context_on(ctx, two_layers(5, 7))
    partialfed.Client(config).end(Samples(np.zeros((1, 1, 1, 1))), trained)
    later = make_context_on(trained, two_layers(20, 30))
    partialfed.Client(config).receive({}, later)
    expected = two_layers(5, 30)
    assert all(torch.equal(a, b) for a, b in zip(later.run.net.parameters(), expected.parameters(), strict=True))


def make_context_on(ctx: base.Context, net: nn.Module, **changes: Any) -> base.Context:
    """A later task of the same site: a new network, the same state."""
    later = make_context("partialfed", net, n_classes=2, **changes)
    later.state = {key: value.clone() for key, value in ctx.state.items()}
    return later


@pytest.mark.parametrize(("own", "received", "keeps"), [((4, 0), (-4, 4), [1, 0]), ((-4, 4), (4, 0), [0, 1])])
def test_it_learns_to_keep_what_is_good_for_the_sites_images(
    own: tuple[float, float], received: tuple[float, float], keeps: list[int]
) -> None:
    """Each model has one useful layer (4) and one harmful (-4) or useless (0) one, so only one mixture is good."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(60, 1, 1, 1, generator=rng)
    data = Samples(x, (x.flatten() > 0).long())
    config = partialfed.Config(mode="adaptive", search_steps=150)
    empty = make_context("partialfed")
    first = make_context_on(empty, two_layers(*own))
    partialfed.Client(config).begin(data, first)
    assert "logits" not in first.state, "no own model in the first round"
    partialfed.Client(config).end(data, first)
    ctx = make_context_on(first, two_layers(*received))
    partialfed.Client(config).begin(data, ctx)
    logits = ctx.state["logits"]
    assert logits.argmax(1).tolist() == keeps and not logits.requires_grad
    assert [parameter.max().item() for parameter in ctx.run.net.parameters()] == [4, 4]
    again = make_context_on(first, two_layers(*received))
    partialfed.Client(config).begin(data, again)
    assert torch.equal(again.state["logits"], logits), "the same draws"
    longer = make_context_on(ctx, two_layers(*received), round=2)
    partialfed.Client(config).receive({}, longer)
    assert all(torch.equal(a, b) for a, b in zip(longer.run.net.parameters(), ctx.run.net.parameters(), strict=True))
    still = partialfed.Config(mode="adaptive", search_steps=1, search_lr=1e-6)
    partialfed.Client(still).begin(data, longer)
    torch.testing.assert_close(longer.state["logits"], logits, msg="logits go on")


def test_the_search_moves_neither_weights_nor_statistics() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 3))
    config = partialfed.Config(mode="adaptive", search_steps=3, search_batch=4)
    first = make_context("partialfed", net)
    data = Samples(torch.randn(6, 1, 1, 1, generator=torch.Generator().manual_seed(0)))
    partialfed.Client(config).end(data, first)
    before = state_of(net)
    later = make_context_on(first, net)
    net.eval()
    partialfed.Client(config).begin(data, later)
    after = state_of(net)
    assert all(np.array_equal(before[key], after[key]) for key in before)
    assert not net.training and not net[1].training
    assert all(parameter.grad is None for parameter in net.parameters())


def test_draws_are_zero_or_one_as_often_as_the_soft_choice_says() -> None:
    rng = torch.Generator().manual_seed(0)
    logits = torch.tensor([[0.0, 1.0]]).repeat(4000, 1).requires_grad_()
    drawn = partialfed.one_hot_sample(logits, temperature=1.0, rng=rng)
    torch.testing.assert_close(drawn.detach().round(), drawn.detach())
    assert drawn.sum(1).allclose(torch.ones(4000))
    assert drawn[:, 1].mean().item() == pytest.approx(1 / (1 + np.exp(-1)), abs=0.02)
    drawn[:, 1].sum().backward()
    assert logits.grad is not None and bool((logits.grad[:, 1] > 0).all())


def test_random_batches_repeat_no_sample_before_all_were_there() -> None:
    x = torch.arange(10).float().reshape(10, 1, 1, 1)
    rng = torch.Generator().manual_seed(0)
    batches = list(partialfed.random_batches(Samples(x, torch.arange(10)), steps=5, size=3, rng=rng))
    assert [len(y) for _, y in batches] == [3] * 5
    assert all(torch.equal(images.flatten().long(), y) for images, y in batches)
    order = torch.cat([y for _, y in batches]).tolist()
    assert sorted(order[:10]) == list(range(10)) != order[:10] and len(set(order[10:])) == 5


def test_an_adaptive_run_learns_and_says_whose_scores_they_are(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    options = ("partialfed.mode=adaptive", "partialfed.search_steps=3", "schedule.rounds=3")
    unclipped = ("federation.clip_norm_ratio=null", "federation.clip_opposed_ratio=null")
    results = run("partialfed", three_image_sites, tmp_path, *options, *unclipped)
    assert [record.rejected for record in results.rounds] == [[], [], []]
    assert results.final is not None and set(results.final.personal) == {"A", "B", "C"}
    states = [site_state(tmp_path, site, 3)["methods"]["partialfed"] for site in "ABC"]
    assert not torch.equal(states[0]["logits"], states[1]["logits"]), "each site chooses for itself"
    heads = torch.stack([state["own.head.weight"] for state in states])
    torch.testing.assert_close(last_weights(tmp_path)["head.weight"], heads.mean(0), msg="all weights are averaged")
