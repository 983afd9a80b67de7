"""The contract between a method and the rest: a client half, a server half, and what each may see.

A method is one file in this folder, found by its name, with three classes: ``Config`` (a ``Strict``
model), ``Client`` and ``Server``. Every hook has a default, and the defaults together are FedAvg, so a
file holds only what its method does differently.

Order of the client hooks within a round::

    attach → receive → begin → for each batch: augment → inputs → batch → loss → (backward) → gradients → step → end

``inputs`` also runs in evaluation. Halves keep nothing in attributes between rounds: what must last goes to
``ctx.state`` at a site and to ``self.state`` at the server. Both are written to disk, the first before the site
answers, the second when the round is closed.

The centralised references of the papers' tables are client halves that say in ``trains_on`` that they train where
all sites' images are. They run in one process only (`fedshift.federation.in_process.run_pooled`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedshift.schema.job import JobSpec, OptimizerSpec
from fedshift.schema.messages import Arrays, Weights
from fedshift.schema.policy import Kind
from fedshift.schema.seeding import generator
from fedshift.schema.strict import Strict

ConfigT = TypeVar("ConfigT", bound=Strict)

Owned = Literal["combine", "step"]
"""What only one method of a job may do."""

TrainsOn = Literal["site", "union", "every site"]
"""A site's own images; or, for a centralised reference, batches from the union of all sites' images, or batches that
hold equally many of every site, site after site."""


@dataclass(frozen=True)
class ArraySpec:
    """An array that travels: what the guard accepts and what the leaves-a-site table says.

    A word in ``shape`` stands for a size that the network does not fix: one of the task's sizes (``Task.sizes``),
    ``"sites"``, or any other word for what a site may choose, at most one for each of its samples. ``low`` and
    ``high`` bound every element, inclusive. ``reveals`` says in plain words what a reader of the array learns about
    the site. ``keep`` is False for arrays from the server that have no place in a model file.

    ``kind`` is what a site's policy allows or forbids. ``mean_of`` says of statistics that each element is a mean over
    the training images of one number an image: its mean ``intensities``, which the task bounds, their ``deviations``,
    or ``features``, which nothing bounds; only on such arrays a site's policy can put noise. ``reduce`` is ``sum``
    where the server needs only the sum over sites, so that a transport which encrypts may add what it cannot read.

    ``alike`` says how far an array may be from the other sites' arrays of its round: "norm", all
    that a method sends so is together no larger than ``federation.max_norm_ratio`` times the median, of this round or
    the largest of earlier ones; "elements", each of its numbers, which are positive, is within that factor of the
    sites' median. ``averaged`` is set where the server does nothing but take means over sites, of values or of changes,
    so that ``federation.robust`` acts on the array too (`fedshift.federation.server.robust`).
    """

    shape: tuple[int | str, ...]
    dtype: str = "float32"
    when: Literal["once", "round"] = "round"
    low: float = -np.inf
    high: float = np.inf
    reveals: str = ""
    keep: bool = True
    kind: Kind = "other"
    mean_of: Literal["intensities", "deviations", "features"] | None = None
    reduce: Literal["stack", "sum"] = "stack"
    alike: Literal["", "norm", "elements"] = ""
    averaged: Literal["", "values", "changes"] = ""

    def sized(self, sizes: Mapping[str, int]) -> ArraySpec:
        """With the words that are in ``sizes`` replaced by numbers."""
        shape = tuple(sizes.get(size, size) if isinstance(size, str) else size for size in self.shape)
        return replace(self, shape=shape)


class TrainingSamples(Protocol):
    """A site's training samples, as methods may read them."""

    @property
    def n_train(self) -> int:
        """Number of training samples."""
        ...

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Un-augmented training images (B, C, H, W) float32 and targets (see `Batch`), in order."""
        ...


class Normalise(Protocol):
    """What all methods' ``inputs`` do to images (B, C, H, W), as in training or as in evaluation."""

    def __call__(self, x: Tensor, *, training: bool) -> Tensor:
        """Images of the same shape."""
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
    objective: Callable[[Tensor, Tensor], Tensor]
    """The task's loss of (logits, targets), a scalar."""
    n_classes: int
    images_are_slices: bool = False
    """Whether the channels are neighbouring slices (segmentation) and not colours."""
    step: int = 0
    """Optimiser steps taken in this round."""
    replay: bool = False
    """Whether the present pass repeats an earlier one of the same step: nothing may be counted twice."""
    received: Weights = field(default_factory=dict)
    optimizer: torch.optim.Optimizer | None = None
    normalise: Normalise = lambda x, *, training: x
    """Images through every method's ``inputs``, for passes beside training."""
    generators: dict[str, torch.Generator] = field(default_factory=dict)
    stop: Callable[[], bool] = lambda: False

    @property
    def lr(self) -> float:
        """Learning rate of the local optimiser."""
        assert self.optimizer is not None
        return float(self.optimizer.param_groups[0]["lr"])

    def received_parameters(self) -> Iterator[tuple[str, nn.Parameter, Tensor]]:
        """Name, parameter and received value, on the parameter's device, of every trainable tensor."""
        for name, parameter in self.net.named_parameters():
            yield name, parameter, torch.from_numpy(self.received[name]).to(parameter)


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
    trains_on: ClassVar[TrainsOn] = "site"
    mixes_samples: ClassVar[bool] = False
    """Whether a sample of a batch comes out with parts of another, and its target with it."""

    def __init__(self, config: ConfigT) -> None:
        """``config`` is the method's own, checked settings."""
        self.config = config

    def check(self, job: JobSpec, net: nn.Module) -> None:
        """Refuse what the method cannot take, when the job is made.

        Raises:
            ConfigError: a task, optimiser, network or other method that does not fit, and why.
        """

    def up(self, net: nn.Module) -> dict[str, ArraySpec]:
        """Arrays that leave the site with this method, by name."""
        return {}

    def personal(self, net: nn.Module) -> frozenset[str]:
        """``state_dict`` keys that a site keeps for itself: what comes from outside does not overwrite them."""
        return frozenset()

    def withheld(self, net: nn.Module) -> frozenset[str]:
        """``state_dict`` keys that never leave the site; by default the personal ones."""
        return self.personal(net)

    def scores_own_model(self, net: nn.Module) -> bool:
        """Whether what a site scores is a model of its own; by default if it keeps anything for itself."""
        return bool(self.personal(net))

    def attach(self, net: nn.Module, ctx: Context) -> list[RemovableHandle]:
        """Insert layers at ``net.stages``; they never enter ``net.state_dict()``."""
        return []

    def statistics(self, data: TrainingSamples, ctx: Context) -> Arrays:
        """Once, before round 1: the arrays named in ``up`` with ``when="once"``."""
        return {}

    def receive(self, arrays: Arrays, ctx: Context) -> None:
        """This method's arrays of the broadcast; the network has the received weights and personal parts already."""

    def told(self, arrays: Arrays, number: int) -> dict[str, Tensor]:
        """What a site remembers of the statistics round, out of this method's arrays of a model file.

        For predictions in the name of a site: ``number`` counts those that answered that round, in site order.
        """
        return {}

    def newcomer(self, data: TrainingSamples, ctx: Context) -> None:
        """At a site that has never trained in this job, after ``receive``: it has no personal parts."""

    def begin(self, data: TrainingSamples, ctx: Context) -> None:
        """With the received model, before the first step."""

    def augment(self, batch: Batch, ctx: Context) -> Batch:
        """Change images as they come from the data, and masks with them. Training only."""
        return batch

    def inputs(self, x: Tensor, ctx: Context, *, training: bool) -> Tensor:
        """Change a batch of images (B, C, H, W), in training and in evaluation."""
        return x

    def batch(self, batch: Batch, ctx: Context) -> Batch:
        """Change inputs and targets together; soft targets are allowed. Training only."""
        return batch

    def loss(self, batch: Batch, logits: Tensor, loss: Tensor, ctx: Context) -> Tensor:
        """Add to the task's loss of this batch (a scalar); ``logits`` are the network's answer to it."""
        return loss

    def gradients(self, ctx: Context) -> None:
        """Change gradients after the backward pass."""

    def step(self, closure: Callable[[], Tensor], ctx: Context) -> Tensor:
        """Take the optimiser step (owners of "step" only) and return the loss.

        ``closure`` sets gradients and gives the loss of the batch. Called again it draws the same random numbers
        and moves no running statistics.
        """
        raise TypeError(f"{self.config.__class__.__name__}: owns no step")

    def end(self, data: TrainingSamples, ctx: Context) -> Arrays:
        """After the last step of the round: the arrays named in ``up`` with ``when="round"``."""
        return {}

    def fine_tune(self) -> int:
        """Local epochs by which a site trains the final model for itself; it is then scored a second time."""
        return 0


class SiteUpdate(Protocol):
    """An accepted update as a server half sees it; weights and arrays are read from disk one by one."""

    site: str
    n_samples: int
    n_steps: int
    metrics: Mapping[str, float]

    @property
    def arrays(self) -> Mapping[str, Mapping[str, np.ndarray]]:
        """Method to its arrays by name."""
        ...

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
    trainable: frozenset[str]
    """Keys of the network's parameters; its other keys are buffers."""
    optimizer: OptimizerSpec
    """The sites' optimiser."""
    seed: int = 0


class Server(Generic[ConfigT]):
    """The half at the server."""

    owns: ClassVar[frozenset[Owned]] = frozenset()
    tells_sites_apart: ClassVar[bool] = False
    """Whether ``combine`` gives each site's update a weight of its own for a reason beyond its sample count."""

    def __init__(self, config: ConfigT) -> None:
        """``config`` is the method's own, checked settings; ``state`` is all that it remembers."""
        self.config = config
        self.state: Arrays = {}

    def down(self, net: nn.Module) -> dict[str, ArraySpec]:
        """Arrays that every site receives with this method, by name."""
        return {}

    def start(self, net: nn.Module, ctx: ServerContext) -> None:
        """Before the statistics round."""

    def fault(self, arrays: Mapping[str, np.ndarray], n_samples: int) -> tuple[str, str] | None:
        """What no honest site sends, beyond what `ArraySpec` can say: an array's name and the reason, or None.

        ``arrays`` are those of one site in one round, each as its specification wants it.
        """
        return None

    def receive(self, updates: Sequence[SiteUpdate], ctx: ServerContext) -> None:
        """The accepted updates of a round, in site order (round 0: those of the statistics round)."""

    def factor(self, n_samples: int) -> int | None:
        """f_k of a site where ``combine`` is no more than Σ f_k w_k / Σ f_k, which also ciphertexts can be put to."""
        return None

    def combine(self, weights: Weights, updates: Sequence[SiteUpdate], ctx: ServerContext) -> Weights:
        """New global weights (owners of "combine" only)."""
        raise TypeError(f"{self.config.__class__.__name__}: owns no combine")

    def broadcast(self, ctx: ServerContext) -> Arrays:
        """The arrays named in ``down`` for the next round."""
        return {}
