"""Small packages, laid down as pip installs them, each under a name that no other test has."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path

NETWORK = '''"""A network of one convolution."""

from torch import nn

from fedshift.tasks.stages import Stage


class Network(nn.Module):
    def __init__(self, in_channels: int, n_classes: int, width: int) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.body = nn.Sequential(nn.Conv2d(in_channels, width, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(width, n_classes, 1)
        self.stages = (Stage(self.body, width),)

    def forward(self, x):
        return self.head(self.body(x))


def build(*, in_channels: int, n_classes: int, width: int = 4) -> Network:
    return Network(in_channels, n_classes, width)
'''
METHOD = '''"""Halved: half of each gradient."""

from fedshift.methods import base
from fedshift.schema.strict import Strict


class Config(Strict):
    """Options.

    ``share``: how much of the gradient is kept.
    """

    share: float = 0.5


class Client(base.Client[Config]):
    def gradients(self, ctx):
        for parameter in ctx.run.net.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(self.config.share)
'''
LOSS = '''"""Squared error of the probabilities."""


def loss(logits, target, *, weight: float = 1.0):
    return weight * (logits.softmax(1) - target).square().mean()
'''
MARKED = "raise RuntimeError('this code was run')\n"
"""Code that no refusal may run."""


def files_of(module: str) -> dict[str, str]:
    """A package with a network, a method and a loss."""
    return {
        f"{module}/__init__.py": "",
        f"{module}/network.py": NETWORK,
        f"{module}/method.py": METHOD,
        f"{module}/loss.py": LOSS,
    }


def points_of(module: str) -> dict[str, dict[str, str]]:
    """Their entry points: the kind's group -> name -> module."""
    return {
        "fedshift.networks": {"small": f"{module}.network"},
        "fedshift.methods": {"halved": f"{module}.method"},
        "fedshift.losses": {"squared": f"{module}.loss"},
    }


def install(
    folder: Path,
    name: str,
    *,
    version: str = "1.0",
    files: Mapping[str, str] | None = None,
    points: Mapping[str, Mapping[str, str]] | None = None,
    beside: Mapping[str, str] | None = None,
) -> Path:
    """Lay a package down in a folder of Python packages; returns that folder.

    ``beside``: further files of its ``dist-info``, which its list names without a hash, as pip does.
    """
    module = name.replace("-", "_")
    files = files_of(module) if files is None else files
    points = points_of(module) if points is None else points
    info = f"{module}-{version}.dist-info"
    groups = [f"[{group}]\n" + "".join(f"{n} = {m}\n" for n, m in named.items()) for group, named in points.items()]
    written = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "\n".join(groups),
    }
    extra = {f"{info}/{file}": text for file, text in {"INSTALLER": "pip\n", **(beside or {})}.items()}
    for path, text in {**written, **extra}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    lines = [f"{path},sha256={_hash(text)},{len(text.encode())}\n" for path, text in written.items()]
    lines += [f"{path},,\n" for path in (*extra, f"{info}/RECORD")]
    (folder / info / "RECORD").write_text("".join(lines), encoding="utf-8")
    return folder


def _hash(text: str) -> str:
    return urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
