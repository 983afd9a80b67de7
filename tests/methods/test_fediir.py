"""FedIIR: the objective, its gradient and the server's mean by hand, and where the classifier's gradient goes."""

from __future__ import annotations

import numpy as np
import torch
from conftest import Samples, Sent, make_context, server_context
from torch import Tensor, nn

from fedshift.methods import base, fediir

X = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 1, 0, 2, 2, 1])


class Net(nn.Module):
    """A layer without bias and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.Linear(3, 4, bias=False), nn.Linear(4, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.layer(x)))
        return logits


def numbers(net: Net) -> list[np.ndarray]:
    return [p.detach().numpy().copy() for p in (net.layer.weight, net.head.weight, net.head.bias)]


def gradients_by_hand(
    parameters: list[np.ndarray], x: np.ndarray, y: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Cross-entropy and its gradient by the head's weight and bias: (p − y)' u and the sum of p − y, over B."""
    layer, weight, bias = parameters
    u = np.tanh(x @ layer.T)
    logits = u @ weight.T + bias
    share = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    loss = -np.log(share[np.arange(len(y)), y]).mean()
    error = (share - np.eye(3)[y]) / len(y)
    return float(loss), error.T @ u, error.sum(0)


def objective_by_hand(parameters: list[np.ndarray], mean: dict[str, np.ndarray], gamma: float) -> float:
    loss, weight, bias = gradients_by_hand(parameters, X.numpy(), Y.numpy())
    far = np.square(weight - mean["head.weight"]).sum() + np.square(bias - mean["head.bias"]).sum()
    return loss + gamma * float(far)


def test_the_objective_and_its_gradient_are_those_by_hand() -> None:
    net, gamma = Net(), 3.0
    mean = {"head.weight": np.full((3, 4), 0.1), "head.bias": np.array([0.2, -0.1, 0.05])}
    client, ctx = fediir.Client(fediir.Config(gamma=gamma)), make_context("fediir", net)
    client.receive(mean, ctx)
    client.begin(Samples(X, Y), ctx)
    logits = net(X)
    total = client.loss(base.Batch(X, Y), logits, ctx.run.objective(logits, Y), ctx)
    np.testing.assert_allclose(total.item(), objective_by_hand(numbers(net), mean, gamma), rtol=1e-10)
    total.backward()  # type: ignore[no-untyped-call]
    for place, parameter in enumerate((net.layer.weight, net.head.weight, net.head.bias)):
        for index in np.ndindex(*parameter.shape):
            moved = []
            for step in (1e-5, -1e-5):
                changed = numbers(net)
                changed[place][index] += step
                moved.append(objective_by_hand(changed, mean, gamma))
            assert parameter.grad is not None
            np.testing.assert_allclose(parameter.grad[index], (moved[0] - moved[1]) / 2e-5, rtol=1e-4, atol=1e-8)
    sent = client.end(Samples(X, Y), ctx)
    _, weight, bias = gradients_by_hand(numbers(net), X.numpy(), Y.numpy())
    np.testing.assert_allclose(sent["head.weight"], weight, rtol=1e-10)
    np.testing.assert_allclose(sent["head.bias"], bias, rtol=1e-10)


def test_before_any_gradient_has_come_there_is_no_term() -> None:
    net = Net()
    server = fediir.Server(fediir.Config())
    server.start(net, server_context())
    for arrays in (server.broadcast(server_context()), {}):  # a final model comes without
        client, ctx = fediir.Client(fediir.Config()), make_context("fediir", net)
        client.receive(arrays, ctx)
        loss = torch.ones(())
        assert client.loss(base.Batch(X, Y), net(X), loss, ctx) is loss


def test_the_mean_is_over_samples_and_moves_slowly() -> None:
    server = fediir.Server(fediir.Config(ema=0.9))
    server.start(Net(), server_context())
    sent = [
        Sent(site, {}, n, arrays={"fediir": {"head.weight": np.full((3, 4), v), "head.bias": np.full(3, -v)}})
        for site, n, v in (("A", 30, 1.0), ("B", 10, 5.0))
    ]
    server.receive(sent, server_context(round=1))
    np.testing.assert_allclose(server.state["head.weight"], 0.1 * 2.0, rtol=1e-6)
    server.receive(sent[1:], server_context(round=2))
    np.testing.assert_allclose(server.state["head.bias"], -(0.9 * 0.2 + 0.1 * 5.0), rtol=1e-6)


def test_the_gradient_comes_nearer_to_the_mean_than_without() -> None:
    mean = {"head.weight": np.full((3, 4), 0.1), "head.bias": np.array([0.2, -0.1, -0.1])}
    far = []
    for gamma in (0.0, 5.0):
        net = Net()
        client, ctx = fediir.Client(fediir.Config(gamma=gamma)), make_context("fediir", net)
        client.receive(mean, ctx)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for _ in range(100):
            logits = net(X)
            optimizer.zero_grad()
            client.loss(base.Batch(X, Y), logits, ctx.run.objective(logits, Y), ctx).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        far.append(objective_by_hand(numbers(net), mean, 1.0) - objective_by_hand(numbers(net), mean, 0.0))
    assert far[1] < 0.75 * far[0]
