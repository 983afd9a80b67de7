"""Every method's formula is over all of space: a volume that repeats one slice gives the slice's numbers."""

from __future__ import annotations

import pytest
import torch
from conftest import Samples, make_context
from torch import Tensor, nn
from torch.nn import functional

from fedshift.methods import method_set
from fedshift.methods.base import Batch, Client
from fedshift.tasks.stages import Stage

DEPTH, SIDE, CHANNELS, CLASSES = 3, 16, 2, 3
ROUNDING, UNBIASED = 1e-4, 5e-3
"""Tolerances; unbiased variances differ by a part of about one in the number of pixels."""


class Staged(nn.Module):
    """One stage, so that features are the image, then per-pixel logits."""

    in_channels = CHANNELS

    def __init__(self) -> None:
        super().__init__()
        self.stage = nn.Identity()
        self.scale = nn.Parameter(torch.tensor([0.5, -1.0]))

    @property
    def stages(self) -> tuple[Stage, ...]:
        return (Stage(self.stage, CHANNELS),)

    def forward(self, x: Tensor) -> Tensor:
        features = self.stage(x)
        logits = [features[:, 0] * self.scale[0], features[:, 1] * self.scale[1], features.sum(1)]
        return torch.stack(logits, 1)


@pytest.mark.parametrize(
    ("job", "tolerance"),
    [
        ("fedfa fusion=local p=1", ROUNDING),
        ("fedfa fusion=local p=1 variant=released", UNBIASED),
        ("fedrdn", ROUNDING),
        ("mixstyle p=1", UNBIASED),
        ("moex", ROUNDING),
        ("moex norm=in", UNBIASED),
        ("moex norm=ln", UNBIASED),
        ("mixup", ROUNDING),
        ("manifold_mixup layers=[1]", ROUNDING),
        ("harmofl", ROUNDING),
        ("harmofl variant=released", ROUNDING),
        ("fedrobust", ROUNDING),
        ("augmentation level=moderate rotation=20 blur=1", ROUNDING),
        ("fedmix images=2", ROUNDING),
    ],
)
def test_a_volume_that_repeats_one_slice_gives_the_slices_numbers(job: str, tolerance: float) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.rand((4, CHANNELS, SIDE, SIDE), generator=rng) + torch.rand((4, CHANNELS, 1, 1), generator=rng)
    y = torch.randint(CLASSES, (4, SIDE, SIDE), generator=rng)
    flat = passed(job, x, y)
    deep = passed(job, repeated(x), y[:, None].expand(-1, DEPTH, -1, -1))
    assert flat.keys() == deep.keys()
    for name, value in flat.items():
        slice_value = deep[name] if deep[name].dim() == value.dim() else deep[name].movedim(-3, 0)
        torch.testing.assert_close(slice_value, value.expand_as(slice_value), rtol=tolerance, atol=tolerance)
    plain = passed("fedavg", x, y)
    assert any(not torch.equal(flat[name], plain[name]) for name in ("x", "logits", "loss")), "the method did something"


def repeated(x: Tensor) -> Tensor:
    """The slice as every slice of a volume."""
    return x[:, :, None].expand(-1, -1, DEPTH, -1, -1).contiguous()


def passed(job: str, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """What a training step of the method computes from a batch."""
    name, *options = job.split()
    raw = {key: eval(text) if text[0] in "[0123456789" else text for key, text in (o.split("=") for o in options)}
    method = next(method for method in method_set.load({name: raw}) if method.name == name)
    client: Client = method.client()
    net = Staged()
    ctx = make_context(name, net, objective=functional.cross_entropy, n_classes=CLASSES, dense=True)
    data = Samples(x, y)
    handles = client.attach(net, ctx)
    sent = client.statistics(data, ctx)
    received = {"amplitude": 0.8 * sent["amplitude"]} if name == "harmofl" else sent
    if name == "fedrdn":
        received = {f"{key}s": value[None] for key, value in sent.items()}
    client.receive(received, ctx)
    client.begin(data, ctx)
    net.train()
    batch = client.augment(Batch(x, y), ctx)
    batch = client.batch(Batch(client.inputs(batch.x, ctx, training=True), batch.y), ctx)
    logits = net(batch.x)
    loss = client.loss(batch, logits, functional.cross_entropy(logits, batch.y), ctx)
    for handle in handles:
        handle.remove()
    return {"x": batch.x, "y": batch.y, "logits": logits.detach(), "loss": loss.detach()}
