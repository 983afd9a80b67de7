"""The page on networks: its tables are what the code has."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import torch

from fedshift.tasks import losses, networks, trial

PAGE = Path(__file__).resolve().parents[2] / "docs" / "networks.md"


def test_the_stages_are_those_that_are_found() -> None:
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert list(rows) == ["unet", *networks.monai.names()]
    for name, said in rows.items():
        if find_spec("einops") is None and name in ("monai.SwinUNETR", "monai.UNETR"):
            continue
        with torch.device("meta"):
            net = networks.build(name, {}, in_channels=1, n_classes=2, seed=0, spatial_dims=3, patch=(64, 64, 64))
        found = trial.find_stages(net, getattr(net, "trial_size", trial.trial_size(3)))
        told = [
            f"{'before' if one.where == 'input' else 'after'} `{one.name}`: {one.channels} at 1/{one.level[0]}"
            for one in found
        ]
        assert said == ("<br>".join(told) or "none"), name


def test_every_loss_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in losses.available() if f"`{name.removeprefix('monai.')}`" not in page] == []
