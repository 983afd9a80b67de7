"""MOON: the contrast against plain numbers, from which models it embeds, and what it does to embeddings."""

from __future__ import annotations

import copy

import numpy as np
import torch
from conftest import Samples, make_context
from torch import Tensor, nn
from torch.nn import functional

from fedshift.methods import base, moon
from fedshift.methods.shared.passes import Replayed

X, Y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1, 1, 0])


class Net(nn.Module):
    """A layer, batch norm, and a head."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer, self.norm, self.head = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def embed(self, x: Tensor) -> Tensor:
        u: Tensor = self.norm(self.layer(x))
        return u

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embed(x))
        return logits


def by_hand(z: np.ndarray, positive: np.ndarray, negative: np.ndarray, temperature: float) -> float:
    """The paper's equation, one image after the other."""
    losses = []
    for a, p, n in zip(z, positive, negative, strict=True):
        near, far = (np.exp(a @ b / np.linalg.norm(a) / np.linalg.norm(b) / temperature) for b in (p, n))
        losses.append(-np.log(near / (near + far)))
    return float(np.mean(losses))


def test_contrast_is_the_papers_equation() -> None:
    z, positive, negative = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = moon.contrast(z, positive, negative, temperature=0.3)
    np.testing.assert_allclose(found.item(), by_hand(*(t.numpy() for t in (z, positive, negative)), 0.3), rtol=1e-10)


def begun(net: Net, previous: Net | None, **options: float) -> tuple[moon.Client, base.Context]:
    client, ctx = moon.Client(moon.Config(**options)), make_context("moon", net, round=2)
    if previous is not None:
        ctx.state.update({key: value.clone() for key, value in previous.state_dict().items()})
    client.attach(net, ctx)
    client.receive({}, ctx)
    client.begin(Samples(X, Y), ctx)
    return client, ctx


def test_the_term_compares_with_the_received_and_the_previous_model_in_evaluation_mode() -> None:
    net, previous = Net(0).train(), Net(1)
    client, ctx = begun(net, previous, mu=2.0, temperature=0.5)
    received = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for step in range(3):
        batch = client.batch(base.Batch(X, Y), ctx)
        logits = net(batch.x)
        loss = functional.cross_entropy(logits, batch.y)
        z = copy.deepcopy(net).embed(X).detach().numpy()
        others = [model.eval().embed(X).detach().numpy() for model in (received, previous)]
        total = client.loss(batch, logits, loss, ctx)
        np.testing.assert_allclose((total - loss).item(), 2 * by_hand(z, *others, 0.5), rtol=1e-4, err_msg=str(step))
        optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert net.training and net.norm.num_batches_tracked == 3, "the other models' passes are not counted"


def test_a_site_that_has_not_trained_before_has_no_term() -> None:
    net = Net(0).train()
    client, ctx = begun(net, None)
    loss = torch.ones(())
    logits = net(client.batch(base.Batch(X, Y), ctx).x)
    assert client.loss(base.Batch(X, Y), logits, loss, ctx) is loss
    assert client.end(Samples(X, Y), ctx) == {}
    assert ctx.state.keys() == net.state_dict().keys(), "the next round has the trained model"


def test_a_repeated_pass_has_the_same_loss() -> None:
    net = Net(0).train()
    client, ctx = begun(net, Net(1))
    batch = client.batch(base.Batch(X, Y), ctx)

    def compute() -> Tensor:
        return client.loss(batch, net(X), torch.zeros(()), ctx).detach()

    closure = Replayed(ctx.run, compute)
    assert torch.equal(closure(), closure())


def test_embeddings_are_nearer_to_the_received_models_and_farther_from_the_previous_ones() -> None:
    lead = {}
    for mu in (0.0, 1.0):
        net, previous = Net(0).train(), Net(1)
        client, ctx = begun(net, previous, mu=mu)
        received, optimizer = copy.deepcopy(net).eval(), torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(20):
            batch = client.batch(base.Batch(X, Y), ctx)
            logits = net(X)
            optimizer.zero_grad()
            client.loss(batch, logits, functional.cross_entropy(logits, Y), ctx).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        near, far = (
            functional.cosine_similarity(net.embed(X), other.eval().embed(X)).mean().item()
            for other in (received, previous)
        )
        lead[mu] = near - far
    assert lead[1.0] > lead[0.0] + 0.1
