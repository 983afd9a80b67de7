"""FPL: clusters and both terms against plain numbers, what a lone site counts for, and what may be sent."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from conftest import Samples, Sent, make_context, server_context
from scipy.sparse import csgraph, csr_array

from fedshift.methods import base, fpl

from .made import Embedded

D, CLASSES = 5, 3


def first_neighbours(points: np.ndarray) -> tuple[int, np.ndarray]:
    """FINCH's Eq. 1 as printed: i and j are linked if j = κ_i, κ_j = i or κ_i = κ_j."""
    n = len(points)
    cosine = [[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in points] for a in points]
    nearest = [max((j for j in range(n) if j != i), key=lambda j, i=i: cosine[i][j]) for i in range(n)]
    links = [[j == nearest[i] or nearest[j] == i or nearest[i] == nearest[j] for j in range(n)] for i in range(n)]
    number, groups = csgraph.connected_components(csr_array(np.array(links)), directed=False)
    return int(number), groups


def same_partition(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(((one[:, None] == one) == (other[:, None] == other)).all())


@pytest.mark.parametrize("n", [2, 3, 5, 8, 20])
def test_a_step_links_first_neighbours(n: int) -> None:
    for seed in range(10):
        points = np.random.default_rng(seed).normal(size=(n, D))
        found = fpl.linked(points)
        number, expected = first_neighbours(points)
        assert found.max() + 1 == number and same_partition(found, expected)


def test_clusters_are_merged_as_long_as_more_than_one_is_left() -> None:
    """Eight directions in four pairs, in two groups: four clusters first, then two."""
    angles = np.radians([0, 1, 10, 11, 90, 91, 100, 101])
    points = np.stack([np.cos(angles), np.sin(angles)], 1)
    assert same_partition(fpl.linked(points), np.repeat([0, 1, 2, 3], 2))
    assert same_partition(fpl.finch(points), np.repeat([0, 1], 4))
    assert fpl.finch(points[:2]).tolist() == [0, 0] and fpl.finch(points[:1]).tolist() == [0]
    np.testing.assert_allclose(fpl.means_of(points, fpl.finch(points))[0], points[:4].mean(0))


def by_hand(
    u: np.ndarray,
    y: list[int],
    clusters: dict[int, list[np.ndarray]],
    *,
    temperature: float,
    of: tuple[float, float],
    released: bool,
) -> float:
    """Both terms, one image after the other, weighted by ``of``: equations 8 and 10, or the code's."""
    total = 0.0
    for image, label in zip(u, y, strict=True):
        if label not in clusters:
            continue
        share = {
            c: sum(np.exp(image @ p / np.linalg.norm(image) / np.linalg.norm(p) / temperature) for p in points)
            for c, points in clusters.items()
        }
        unbiased = np.mean(clusters[label], axis=0)
        contrast, squares = -np.log(share[label] / sum(share.values())), np.square(image - unbiased)
        consistency = squares.mean() if released else squares.sum()
        total += of[0] * contrast + of[1] * consistency
    return total / len(y)


def told(clusters: dict[int, list[np.ndarray]], most: int) -> dict[str, np.ndarray]:
    """What the server sends."""
    arrays = {"prototypes": np.zeros((CLASSES, most, D), np.float32), "number": np.zeros(CLASSES, np.int64)}
    for label, points in clusters.items():
        arrays["prototypes"][label, : len(points)], arrays["number"][label] = points, len(points)
    return arrays


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("of", [(1.0, 1.0), (2.0, 0.0), (0.0, 3.0)])
def test_both_terms_are_those_by_hand(of: tuple[float, float], variant: Literal["paper", "released"]) -> None:
    rng = np.random.default_rng(0)
    clusters = {0: [rng.normal(size=D) for _ in range(2)], 2: [rng.normal(size=D)]}
    u, y = rng.normal(size=(6, D)), [0, 1, 2, 0, 2, 1]
    net = Embedded(D, CLASSES)
    config = fpl.Config(variant=variant, temperature=0.2, contrast=of[0], consistency=of[1])
    client, ctx = fpl.Client(config), make_context("fpl", net)
    client.attach(net, ctx)
    client.receive(told(clusters, 3), ctx)
    client.begin(Samples(u), ctx)
    x = torch.from_numpy(u).float()
    batch = base.Batch(x, torch.tensor(y))
    found = client.loss(batch, net(x), torch.zeros(()), ctx)
    expected = by_hand(u, y, clusters, temperature=0.2, of=of, released=variant == "released")
    np.testing.assert_allclose(found.item(), expected, rtol=1e-4)


def test_a_small_temperature_gives_finite_losses_and_gradients() -> None:
    u = torch.randn(4, D, generator=torch.Generator().manual_seed(0)).requires_grad_()
    prototypes = torch.randn(CLASSES, 2, D, generator=torch.Generator().manual_seed(1))
    present = torch.tensor([[True, True], [True, False], [False, False]])
    loss = fpl.contrast_loss(u, torch.tensor([0, 1, 0, 1]), prototypes, present, temperature=0.002)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(loss).all() and u.grad is not None and torch.isfinite(u.grad).all()


def sent(site: str, prototypes: dict[int, np.ndarray]) -> Sent:
    arrays = {"prototypes": np.zeros((CLASSES, D), np.float32), "counts": np.zeros(CLASSES, np.float32)}
    for label, point in prototypes.items():
        arrays["prototypes"][label], arrays["counts"][label] = point, 1
    return Sent(site, {}, 10, arrays={"fpl": arrays})


def test_alike_sites_do_not_outweigh_others_and_an_absent_class_stays() -> None:
    server, sites = fpl.Server(fpl.Config()), tuple("ABCDE")
    server.start(Embedded(D, CLASSES), server_context(sites=sites))
    one, other = np.eye(D)[0], np.eye(D)[1]
    near = [one + 0.01 * np.eye(D)[k] for k in (2, 3, 4)]
    points = [*near, other, other + 0.01 * np.eye(D)[2]]
    updates = [sent(site, {0: point}) for site, point in zip(sites, points, strict=True)]
    server.receive(updates, server_context(sites=sites))
    assert server.state["number"].tolist() == [2, 0, 0]
    net = Embedded(D, CLASSES)
    client, ctx = fpl.Client(fpl.Config(contrast=0)), make_context("fpl", net)
    client.attach(net, ctx)
    client.receive(server.broadcast(server_context()), ctx)
    client.begin(Samples(points[0][None]), ctx)
    middle = torch.from_numpy((np.mean(near, 0) + np.mean(points[3:], 0)) / 2).float()
    for away, squared in ((0.0, 0.0), (1.0, 1.0)):
        u = (middle + away * torch.eye(D)[0])[None]
        loss = client.loss(base.Batch(u, torch.tensor([0])), net(u), torch.zeros(()), ctx)
        np.testing.assert_allclose(loss.item(), squared, rtol=1e-5, atol=1e-12)
    server.receive([sent("A", {1: other})], server_context(sites=sites, round=2))
    assert server.state["number"].tolist() == [2, 1, 0], "class 0 keeps its clusters"


def test_a_site_that_alone_of_a_round_has_a_class_is_told_to_all() -> None:
    server, points = fpl.Server(fpl.Config()), np.eye(D)
    server.start(Embedded(D, CLASSES), server_context())
    server.receive([sent("A", {0: points[0]}), sent("B", {0: points[1]})], server_context())
    assert server.broadcast(server_context())["number"].tolist() == [1, 0, 0], "one cluster of two sites"
    server.receive([sent("C", {0: points[2]})], server_context(round=2))
    np.testing.assert_array_equal(server.broadcast(server_context())["prototypes"][0, 0], points[2])
    assert "alone" in server.down(Embedded(D, CLASSES))["prototypes"].reveals


def test_a_prototype_of_one_image_is_refused() -> None:
    update = sent("A", {0: np.ones(D)})
    server = fpl.Server(fpl.Config())
    assert server.fault(update.arrays["fpl"], 10) is None
    update.arrays["fpl"]["counts"][0] = 0
    fault = server.fault(update.arrays["fpl"], 10)
    assert fault is not None and fault[0] == "prototypes"
