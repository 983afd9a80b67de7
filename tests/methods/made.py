"""Small networks, samples and runs that several methods' tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conftest import Samples, make_context, make_image_site, small_image_job
from torch import Tensor, nn
from torch.nn import functional

from fedshift.data import samples
from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.methods import base
from fedshift.schema.job import JobSpec
from fedshift.schema.results import LAST, Results

NO_NORM = ("network.name=mnist_cnn", "network.options.size=16", "optimizer.name=adam", "optimizer.lr=0.003")
"""A network without running statistics, which a few rounds do not settle."""
LEARNS = (*NO_NORM, "schedule.rounds=6", "schedule.local_epochs=2")
SHIFTS = {"A": (1.0, 0.0), "B": (0.15, 0.0), "C": (-0.8, 255.0)}
"""Gain and offset of sites whose images differ much."""


def run(names: str, data: Mapping[str, Path], folder: Path, *options: str) -> Results:
    """The results of a small job."""
    return run_in_process(small_image_job(names, *options), data, folder).results


def last_weights(folder: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = read_model_file(folder / LAST)["weights"]
    return weights


def final_weights(job: JobSpec, data: Mapping[str, Path], folder: Path) -> dict[str, Tensor]:
    """The last model of a run."""
    run_in_process(job, data, folder)
    return last_weights(folder)


def site_state(folder: Path, site: str, round_: int) -> dict[str, Any]:
    """What a site of a run has on disk after a round."""
    state: dict[str, Any] = torch.load(folder / f"site_state/{site}/round_{round_:06d}.pt", weights_only=True)
    return state


def shifted_sites(root: Path, *, images: int = 48, seed: int = 0) -> dict[str, Path]:
    """The sites of `SHIFTS`."""
    return {s: make_image_site(root, s, gain=g, offset=o, images=images, seed=seed) for s, (g, o) in SHIFTS.items()}


def bend(
    client: base.Client, net: nn.Module, ends: Callable[[Tensor], Tensor], head: Callable[[Tensor], Tensor]
) -> float:
    """How far a trained network's answer between two samples is from the mean of its answers to both.

    The samples are taken where ``ends`` gives them, from which ``head`` goes on.
    """
    torch.manual_seed(0)
    x, y = torch.randn(32, 4), torch.randint(3, (32,))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    ctx = make_context("bend", net, n_classes=3)
    client.attach(net, ctx)
    for _ in range(300):
        batch = client.batch(base.Batch(x, y), ctx)
        optimizer.zero_grad()
        functional.cross_entropy(net(batch.x), batch.y).backward()
        optimizer.step()
    net.eval()
    partner = torch.randperm(32)
    with torch.no_grad():
        points = ends(x)
        mean = (head(points).softmax(1) + head(points[partner]).softmax(1)) / 2
        return float((head((points + points[partner]) / 2).softmax(1) - mean).abs().mean())


class Embedded(nn.Module):
    """Passes its input to the head as the embedding."""

    def __init__(self, size: int, n_classes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(size, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.flatten(1))
        return logits


class Point(nn.Module):
    """A network that is one vector."""

    def __init__(self, w: np.ndarray) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.from_numpy(w.copy()))


class OneByOne(Samples):
    """Samples that are large, so that a chunk has one."""

    def chunks(self, order: torch.Generator | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in super().chunks(order):
            yield from zip(x.split(1), y.split(1), strict=True)


class InMemory(samples.Samples):
    """Training samples as a site's data are, from tensors."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._x, self._y = x, y

    @property
    def n_train(self) -> int:
        return len(self._x)

    def train_samples(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        return self._x[index], self._y[index]
