"""Manifold Mixup: where and what it mixes, and linearity between hidden states."""

from __future__ import annotations

import torch
from conftest import make_context
from torch import Tensor, nn
from torch.nn import functional

from fedshift.methods import base, manifold_mixup
from fedshift.tasks.networks.unet import UNet
from fedshift.tasks.stages import Stage

from .made import bend

N = 8


class Deep(nn.Module):
    """Two identity stages; ``seen`` holds each stage's input, which shows what is mixed."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Identity(), nn.Identity(), nn.Identity()
        self.stages = tuple(Stage(m, 1) for m in (self.one, self.two, self.three))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = [x]
        for stage in (self.one, self.two, self.three):
            self.seen.append(stage(self.seen[-1]))
        return self.seen[-1]


def set_up(net: nn.Module, **options: object) -> tuple[manifold_mixup.Client, base.Context]:
    ctx = make_context("manifold_mixup", net, n_classes=N)
    client = manifold_mixup.Client(manifold_mixup.Config(**options))
    client.attach(net, ctx)
    return client, ctx


def test_features_at_the_drawn_place_are_mixed_as_targets_are_and_others_not() -> None:
    net = Deep().train()
    client, ctx = set_up(net)
    x = torch.eye(N).reshape(N, 1, 1, N)
    changed_at = []
    for _ in range(60):
        batch = client.batch(base.Batch(x, torch.arange(N)), ctx)
        net(batch.x)
        torch.testing.assert_close(net.seen[-1].reshape(N, N), batch.y)
        flat = [x, *net.seen]
        changed_at.append([place for place in range(4) if not torch.equal(flat[place], flat[place + 1])])
    assert all(len(places) <= 1 for places in changed_at)
    counts = [changed_at.count([place]) for place in range(4)]
    assert all(count > 10 for count in counts[:3]) and counts[3] == 0, "input, stage 1 and stage 2 in turn"


def test_layers_chooses_the_places_and_evaluation_is_left_alone() -> None:
    net = Deep().train()
    client, ctx = set_up(net, layers=(3,))
    x = torch.eye(N).reshape(N, 1, 1, N)
    batch = client.batch(base.Batch(x, torch.arange(N)), ctx)
    net(batch.x)
    assert torch.equal(net.seen[2], x) and not torch.equal(net.seen[3], x)
    mixed = net.seen[3]
    net(batch.x)
    assert torch.equal(net.seen[3], mixed), "a second pass of the step mixes the same way"
    net(x[:3])
    assert torch.equal(net.seen[3], x[:3]), "a pass over other samples is not mixed"
    net.eval()
    net(x)
    assert torch.equal(net.seen[3], x)


def test_a_u_net_mixes_its_pooled_branch_and_not_the_skip() -> None:
    net = UNet(in_channels=3, n_classes=2, features=4).train()
    client, ctx = set_up(net, layers=(1,))
    seen = {}
    for name in ("encoder1", "pool1", "decoder1"):
        module = getattr(net, name)
        module.register_forward_hook(lambda _m, i, o, name=name: seen.update({name: (i[0].detach(), o.detach())}))
    batch = client.batch(base.Batch(torch.rand(4, 3, 32, 32), torch.zeros(4, 32, 32, dtype=torch.int64)), ctx)
    net(batch.x)
    skip = seen["encoder1"][1]
    plain = functional.max_pool2d(skip, 2)
    assert not torch.allclose(seen["pool1"][1], plain)
    _, partner, share = ctx.scratch["mix"]
    torch.testing.assert_close(seen["pool1"][1], share * plain + (1 - share) * plain[partner])
    assert torch.equal(seen["decoder1"][0][:, -4:], skip) or torch.equal(seen["decoder1"][0][:, :4], skip)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
        self.stages = (Stage(self.body, 32),)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def test_between_hidden_states_the_network_is_straighter() -> None:
    def straightness(alpha: float) -> float:
        torch.manual_seed(0)
        net = Mlp()
        client = manifold_mixup.Client(manifold_mixup.Config(alpha=alpha, layers=(1,)))
        return bend(client, net, net.body, net.head)

    assert straightness(2.0) < 0.6 * straightness(0.0)
