"""Shared by the tests of the centralised references: a golden step and two small problems with three sites."""

from __future__ import annotations

import numpy as np
import torch
from conftest import golden, make_context
from torch import Tensor, nn
from torch.nn import functional

from fedshift.data.samples import Samples
from fedshift.federation.in_process import PooledSite
from fedshift.methods import all as erm
from fedshift.methods import base

ERM = erm.Client(erm.Config())
IRM = {"scalar": "irm_scalar_lambda100_active", "classifier": "irm_classifierweight_lambda100_active"}
"""The golden numbers of both penalties."""


class TwoLayers(nn.Module):
    """Linear, tanh, linear, as in dg_objectives.npz."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.out = nn.Linear(4, 5), nn.Linear(5, 3)
        init = golden("dg_objectives")
        self.double().load_state_dict({key: torch.from_numpy(init[f"init:{key}"]) for key in self.state_dict()})

    @property
    def head(self) -> nn.Linear:
        """The name of the last layer in classification networks."""
        return self.out

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.out(torch.tanh(self.f(x)))
        return logits


def training_of(reference: PooledSite) -> Samples:
    """The samples that a centralised reference trains on."""
    return reference._training


def golden_step(client: base.Client, name: str, sites: int) -> tuple[float, base.Context]:
    """One SGD step over the first ``sites`` sites; compares the weights with the authors'."""
    g = golden("dg_objectives")
    net = TwoLayers()
    optimizer = torch.optim.SGD(net.parameters(), lr=float(g["lr"]))
    ctx = make_context("m", net, optimizer=optimizer, sites=("A", "B", "C")[:sites])
    x = torch.from_numpy(np.concatenate([g[f"env{i}_x"] for i in range(sites)]))
    y = torch.from_numpy(np.concatenate([g[f"env{i}_y"] for i in range(sites)]))
    logits = net(x)
    loss = client.loss(base.Batch(x, y), logits, functional.cross_entropy(logits, y), ctx)
    loss.backward()
    optimizer.step()
    which = "allenvs" if sites == 3 else "env0only"
    for key, value in net.state_dict().items():
        np.testing.assert_allclose(value, g[f"{name}:{which}:after:{key}"], rtol=1e-9, atol=1e-12, err_msg=key)
    return loss.item(), ctx


def turned(seed: int) -> tuple[Tensor, Tensor]:
    """Two sites with the same class boundary and a third with a rotated one, concatenated by site."""
    rng = torch.Generator().manual_seed(seed)
    x, y = [], []
    for angle in (0.0, 0.0, 1.2):
        x.append(torch.randn(60, 2, generator=rng))
        y.append((x[-1] @ torch.tensor([np.cos(angle), np.sin(angle)], dtype=torch.float32) > 0).long())
    return torch.cat(x), torch.cat(y)


def coloured(seed: int, agree: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """A shape that matches the class in 3 of 4 cases everywhere, a colour that does with probability ``agree``."""
    rng = torch.Generator().manual_seed(seed)
    x, y = [], []
    for share in agree:
        label = torch.rand(400, generator=rng) < 0.5
        shape = label ^ (torch.rand(400, generator=rng) > 0.75)
        colour = label ^ (torch.rand(400, generator=rng) > share)
        x.append(torch.stack([shape, colour], 1).float() * 2 - 1)
        y.append(label.long())
    return torch.cat(x), torch.cat(y)


def fitted(client: base.Client, x: Tensor, y: Tensor, *, adam: bool = False) -> nn.Linear:
    """A linear model trained for 300 steps on all samples of three sites."""
    net = nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.zero_()
        net.bias.zero_()
    optimizer = torch.optim.Adam(net.parameters(), 0.05) if adam else torch.optim.SGD(net.parameters(), 0.1)
    ctx = make_context("m", net, optimizer=optimizer)
    for _ in range(300):
        optimizer.zero_grad()
        logits = net(x)
        client.loss(base.Batch(x, y), logits, functional.cross_entropy(logits, y), ctx).backward()
        optimizer.step()
    return net


def losses(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean loss of each of three sites."""
    with torch.no_grad():
        return torch.stack([functional.cross_entropy(net(a), b) for a, b in zip(x.chunk(3), y.chunk(3), strict=True)])
