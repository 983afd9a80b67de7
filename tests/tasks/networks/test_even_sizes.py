"""MONAI's ``UpCat`` pads only what needs it, with the same numbers."""

from __future__ import annotations

import pytest
import torch
from monai.networks.nets.basic_unet import BasicUNet

from fedshift.tasks.networks.monai import build
from fedshift.tasks.precision import autocast

CPU = torch.device("cpu")
FEATURES = [4, 4, 8, 8, 8, 4]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("size", "pads"), [((16, 32), 0), ((20, 32), 1), ((33, 30), 4), ((16, 16, 40), 1)])
def test_the_numbers_are_monais_and_only_odd_sizes_are_padded(
    size: tuple[int, ...], pads: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = build(
        "monai.BasicUNet", {"features": FEATURES}, in_channels=2, n_classes=3, spatial_dims=len(size), patch=None
    )
    monai = BasicUNet(spatial_dims=len(size), in_channels=2, out_channels=3, features=FEATURES)
    monai.load_state_dict(net.state_dict())
    x = torch.randn(2, 2, *size, generator=torch.Generator().manual_seed(0))

    def computed(network: torch.nn.Module) -> list[torch.Tensor]:
        with autocast(precision, CPU):  # type: ignore[arg-type]
            logits = network(x)
        logits.float().square().sum().backward()
        return [logits.detach(), *(p.grad for p in network.parameters() if p.grad is not None)]

    expected = computed(monai)
    padded = []
    pad = torch.nn.functional.pad
    monkeypatch.setattr(torch.nn.functional, "pad", lambda *a, **k: (padded.append(a[1]), pad(*a, **k))[1])
    found = computed(net)
    assert len(found) > 20 and all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert len(padded) == pads and all(any(sides) for sides in padded)
