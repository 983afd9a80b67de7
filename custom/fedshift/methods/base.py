"""The contract between a method and the rest: a client half, a server half, and what each may see.

A method is one file in this folder, found by its name, with three classes: ``Config`` (a ``Strict``
model), ``Client`` and ``Server``. Every hook has a default, and the defaults together are FedAvg, so a
file holds only what its method does differently.

Order of the client hooks within a round::

    attach → receive → begin → for each batch: inputs → batch → loss → (backward) → gradients → step → end

``inputs`` also runs in evaluation. Halves keep nothing in attributes between rounds: what must last
goes to ``ctx.state``, which is written to disk before the site answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedshift.messages import Arrays, MethodArrays, Weights
from fedshift.strict import Strict
from fedshift.training.seeding import generator

ConfigT = TypeVar("ConfigT", bound=Strict)

Owned = Literal["combine", "step"]
"""What only one method of a job may do."""


@dataclass(frozen=True)
class ArraySpec:
    """An array that travels: what the guard accepts and what the leaves-a-site table says.

    ``shape`` may hold None for the number of sites. ``low`` and ``high`` bound every element, inclusive.
    ``reveals`` says in plain words what a reader of the array learns about the site.
    """

    shape: tuple[int | None, ...]
    dtype: str = "float32"
    when: Literal["once", "round"] = "round"
    low: float = -np.inf
    high: float = np.inf
    reveals: str = ""


@dataclass(frozen=True)
class Stage:
    """A place in a network where features can be seen and changed without touching its code.

    ``module``'s output (or first input) has ``channels`` channels in dimension 1.
    """

    module: nn.Module
    channels: int
    where: Literal["input", "output"] = "output"

    def hook(self, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
        """Replace the stage's features by ``change(features)`` until the handle is removed."""
        if self.where == "output":
            return self.module.register_forward_hook(lambda _m, _i, output: change(output))
        return self.module.register_forward_pre_hook(lambda _m, inputs: (change(inputs[0]), *inputs[1:]))


class StagedNetwork(Protocol):
    """What a network offers to methods besides ``forward``."""

    in_channels: int
    """Channels of the images it takes."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Encoder stages in order; the last one is the bottleneck."""
        ...


class TrainingImages(Protocol):
    """A site's training images, as methods may read them."""

    @property
    def n_train(self) -> int:
        """Number of training samples."""
        ...

    def image_chunks(self) -> Any:
        """Iterate over float32 tensors (B, C, H, W) of un-augmented training images, in order."""
        ...


@dataclass
class Run:
    """One site's round, shared by all methods of the job."""

    seed: int
    site: str
    round: int
    rounds: int
    sites: tuple[str, ...]
    net: nn.Module
    step: int = 0
    received: Weights = field(default_factory=dict)
    optimizer: torch.optim.Optimizer | None = None
    generators: dict[str, torch.Generator] = field(default_factory=dict)
    stop: Callable[[], bool] = lambda: False


class Context:
    """A method's view of its site's round: where it is, what it may keep, its own random numbers."""

    def __init__(self, run: Run, method: str, state: dict[str, Tensor]) -> None:
        """``state`` is the method's part of the site's state tree; ``scratch`` is thrown away."""
        self.run = run
        self.method = method
        self.state = state
        self.scratch: dict[str, Any] = {}

    @property
    def round(self) -> int:
        """The round, from 1; 0 in the statistics round."""
        return self.run.round

    def rng(self, purpose: str) -> torch.Generator:
        """The generator of (seed, site, round, method, purpose); it advances within the round."""
        name = f"{self.method}.{purpose}"
        if name not in self.run.generators:
            self.run.generators[name] = generator(self.run.seed, self.run.site, self.run.round, name)
        return self.run.generators[name]


@dataclass
class Batch:
    """Inputs (B, C, H, W) float32 and targets: (B, H, W) or (B,) int64, or soft (B, K, …) float32."""

    x: Tensor
    y: Tensor


class Client(Generic[ConfigT]):
    """The half at a site. A new object is made for every task the site is given."""

    owns: ClassVar[frozenset[Owned]] = frozenset()

    def __init__(self, config: ConfigT) -> None:
        """``config`` is the method's own, checked settings."""
        self.config = config

    def up(self, net: nn.Module) -> dict[str, ArraySpec]:
        """Arrays that leave the site with this method, by name."""
        return {}

    def personal(self, net: nn.Module) -> frozenset[str]:
        """``state_dict`` keys that never leave the site and are not overwritten from outside."""
        return frozenset()

    def attach(self, net: nn.Module, ctx: Context) -> list[RemovableHandle]:
        """Insert layers at ``net.stages``; they never enter ``net.state_dict()``."""
        return []

    def statistics(self, data: TrainingImages, ctx: Context) -> Arrays:
        """Once, before round 1: numbers about the site's training images."""
        return {}

    def receive(self, arrays: Arrays, ctx: Context) -> None:
        """This method's arrays of the broadcast; the network has its weights already."""

    def begin(self, data: TrainingImages, ctx: Context) -> None:
        """With the received model, before the first step."""

    def inputs(self, x: Tensor, ctx: Context, *, training: bool) -> Tensor:
        """Change a batch of images (B, C, H, W), in training and in evaluation."""
        return x

    def batch(self, batch: Batch, ctx: Context) -> Batch:
        """Change inputs and targets together; soft targets are allowed. Training only."""
        return batch

    def loss(self, batch: Batch, loss: Tensor, ctx: Context) -> Tensor:
        """Add to the task's loss of this batch (a scalar)."""
        return loss

    def gradients(self, ctx: Context) -> None:
        """Change gradients after the backward pass."""

    def step(self, closure: Callable[[], Tensor], ctx: Context) -> Tensor:
        """Take the optimiser step (owners of "step" only); ``closure`` computes loss and gradients."""
        raise TypeError(f"{self.config.__class__.__name__}: owns no step")

    def end(self, ctx: Context) -> Arrays:
        """After the last step of the round: the arrays named in ``up`` with ``when="round"``."""
        return {}


class SiteUpdate(Protocol):
    """An accepted update as a server half sees it; ``weights`` are read from disk key by key."""

    site: str
    n_samples: int
    n_steps: int
    metrics: Mapping[str, float]
    arrays: MethodArrays

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        """Network keys to arrays."""
        ...


@dataclass(frozen=True)
class ServerContext:
    """A server half's view of a round."""

    round: int
    rounds: int
    sites: tuple[str, ...]


class Server(Generic[ConfigT]):
    """The half at the server. It lives as long as the job."""

    owns: ClassVar[frozenset[Owned]] = frozenset()

    def __init__(self, config: ConfigT) -> None:
        """``config`` is the method's own, checked settings."""
        self.config = config

    def down(self, net: nn.Module) -> dict[str, ArraySpec]:
        """Arrays that every site receives with this method, by name."""
        return {}

    def start(self, net: nn.Module, ctx: ServerContext) -> None:
        """Before the statistics round."""

    def receive(self, updates: Sequence[SiteUpdate], ctx: ServerContext) -> None:
        """The accepted updates of a round, in site order (round 0: those of the statistics round)."""

    def combine(self, weights: Weights, updates: Sequence[SiteUpdate], ctx: ServerContext) -> Weights:
        """New global weights (owners of "combine" only)."""
        raise TypeError(f"{self.config.__class__.__name__}: owns no combine")

    def broadcast(self, ctx: ServerContext) -> Arrays:
        """The arrays named in ``down`` for the next round."""
        return {}
