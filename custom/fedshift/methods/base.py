"""The interface of a method: a client half, a server half, and what each of them can access.

A method is one file in this folder with three classes: ``Config`` (a ``Strict`` model), ``Client`` and ``Server``. The
file's name is the method's name. Every hook has a default and the defaults together are FedAvg, so a file contains only
what its method does differently.

Order of the client hooks in a round::

    attach → receive → begin → for each batch: augment → inputs → batch → loss → (backward) → gradients → step → end

``inputs`` also runs in evaluation. Halves must not keep anything in attributes between rounds. What must survive a
round goes into ``ctx.state`` at a site and ``self.state`` at the server. Both are written to disk: a site's state
before the site answers, the server's state at the end of the round. A half that keeps something else from one step to
the next gives it in ``checkpoint``, so that a site that is killed within a round can go on.

Images and features are (B, C, *spatial) with two spatial dimensions, or with three if the task is in 3D. A method's
formula "over H and W" is over all of them, so that a volume that repeats one slice gives the slice's numbers.

Centralised references are methods whose client half sets ``trains_on``, because they train on all sites' images in one
place. They run in one process only (`fedshift.federation.in_process.run_pooled`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Arrays, Weights
from fedshift.schema.optimizer import OptimizerSpec
from fedshift.schema.policy import ArrayKind
from fedshift.schema.regions import Regions
from fedshift.schema.seeding import derive_seed
from fedshift.schema.strict import Strict
from fedshift.tasks.captured import Captured
from fedshift.tasks.losses import Logits

ConfigT = TypeVar("ConfigT", bound=Strict)

Owned = Literal["combine", "step"]
"""What only one method of a job may do: combine the updates, or take the local optimiser step."""

TrainsOn = Literal["site", "union", "every site"]
"""``site``: a site's own images. For centralised references, ``union``: batches drawn from all sites' images together;
``every site``: batches with the same number of images from every site, in site order."""


@dataclass(frozen=True)
class ArraySpec:
    """An array that a method sends: what the server accepts, and how it is documented for sites.

    Attributes:
        shape: sizes of the dimensions. A word is a size that the network does not determine: one of the task's sizes
            (`fedshift.tasks.base.Task.sizes`; ``spatial`` stands for several), ``sites``, or any other word for a size
            that the site chooses, from 1 to its number of training samples.
        dtype: NumPy type name.
        when: sent once, in the statistics round, or in every training round.
        low: smallest allowed value of an element.
        high: largest allowed value of an element.
        reveals: what a reader of the array learns about the site, for ``docs/what-leaves-a-site.md``.
        keep: whether an array from the server goes with a final model, to sites and into model files; else only with
            rounds of training.
        kind: what a site's policy allows or forbids.
        mean_of: set if each element is the mean over the training images, or over the volumes, of one number of each:
            an intensity (``intensities``: that of an image's mean, or of a landmark) or the deviation of its
            intensities (``deviations``), both of which the task bounds, the former within ``low`` and ``high``, or
            ``features``, which have no bound. A site's policy can add noise to such arrays only.
        reduce: ``sum`` if the server needs only the sum over sites, so that the array can be encrypted.
        alike: how the array is compared with the other sites' arrays of the round. ``norm``: the joint norm of all
            arrays of the method marked so must be at most ``federation.max_norm_ratio`` times the median, the largest
            one of this and earlier rounds. ``elements``: every element, all of which are positive, must be within that
            factor of the sites' median.
        averaged: set if the server only averages the array over sites (``values``), or averages changes (``changes``);
            ``federation.robust`` then applies to it too (`fedshift.federation.server.robust`).
        sides: what ``spatial`` stands for if not for an image's own sides, made from these.
    """

    shape: tuple[int | str, ...]
    dtype: str = "float32"
    when: Literal["once", "round"] = "round"
    low: float = -np.inf
    high: float = np.inf
    reveals: str = ""
    keep: bool = True
    kind: ArrayKind = "other"
    mean_of: Literal["intensities", "deviations", "features"] | None = None
    reduce: Literal["stack", "sum"] = "stack"
    alike: Literal["", "norm", "elements"] = ""
    averaged: Literal["", "values", "changes"] = ""
    sides: Callable[[tuple[int, ...]], tuple[int, ...]] | None = None

    def sized(self, sizes: Mapping[str, tuple[int, ...]]) -> ArraySpec:
        """Return a copy with the words in ``shape`` that ``sizes`` has replaced by numbers."""
        shape: list[int | str] = []
        if self.sides is not None and "spatial" in sizes:
            sizes = {**sizes, "spatial": self.sides(sizes["spatial"])}
        for size in self.shape:
            shape += sizes.get(size, (size,)) if isinstance(size, str) else (size,)
        return replace(self, shape=tuple(shape))


class TrainingSamples(Protocol):
    """A site's training and validation samples, as far as methods may read them. Test samples are not among them."""

    @property
    def n_train(self) -> int:
        """Number of training samples."""

    def chunks(self, order: torch.Generator | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield training images (B, C, *spatial) float32 and targets (see `Batch`) without augmentation.

        Patches of volumes are drawn as in training, more often where there is something to segment.

        In order, class after class or case after case; where a batch's own statistics matter, shuffle by ``order``.
        """

    @property
    def n_images(self) -> int:
        """Number of images that `images_alone` gives."""

    @property
    def landmarks(self) -> np.ndarray | None:
        """The inner histogram landmarks of each training volume (volumes, sequences, 9) float64, between outer ones
        that are the same for all (`fedshift.runtime.grids.standard_landmarks`); None without ``normalise: landmarks``.
        """

    def images_alone(self, order: torch.Generator | None = None) -> Iterator[Tensor]:
        """Yield training images as evaluation passes them to the network: of volumes all windows side by side.

        For statistics of images. What `chunks` gives depends on the targets, which a site does not have for new scans.
        """

    def validation(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield validation images and targets, as `chunks` does and in order; nothing if the site has none.

        They select the best round and are not for training: a method may measure on them how good a model is.
        """


class Normalise(Protocol):
    """Apply every method's ``inputs`` to images (B, C, *spatial), as in training or as in evaluation."""

    def __call__(self, x: Tensor, *, training: bool) -> Tensor:
        """Return images of the same shape."""


@dataclass
class Run:
    """One site's round. All methods of the job share it."""

    seed: int
    site: str
    round: int
    rounds: int
    sites: tuple[str, ...]
    net: nn.Module
    objective: Callable[[Logits, Tensor], Tensor]
    """The task's loss as a function of (what the network gives, targets); a scalar."""
    n_classes: int
    dense: bool = False
    """Whether every pixel or voxel has a target (`fedshift.tasks.base.Task.dense`)."""
    findings: bool = False
    """Whether an image has several findings and not one class (`fedshift.tasks.base.Task.findings`)."""
    regions: Regions | None = None
    """Of the task, which the network's outputs are then, and not classes; targets are classes all the same."""
    marginal: bool = False
    """Whether the site's masks leave out some of the task's classes, which its background then may be."""
    n_domains: int = 0
    """Domains whose images are in equal parts of a centralised reference's batch; 0 for as many as sites."""
    step: int = 0
    """Optimiser steps taken in this round."""
    steps: int = 0
    """Optimiser steps that this round of training is to have; 0 before it has begun."""
    epoch: int = 0
    """The round's present pass over the training samples, from 0."""
    part: int | None = None
    """Most samples of a batch that go through the network at once; None for all (`fedshift.federation.site.parts`)."""
    replay: bool = False
    """Whether this pass repeats an earlier one of the same step, so that methods must not count it again."""
    received: Weights = field(default_factory=dict)
    optimizer: torch.optim.Optimizer | None = None
    rank: int = 0
    """Which of the site's devices this is that share each batch, from 0."""
    ranks: int = 1
    """How many they are."""
    share: float = 1.0
    """How large the share of this rank is in the present batch, of 1."""
    clip_norm: float | None = None
    """Largest L2 norm of a batch's gradient, over all parameters."""
    normalise: Normalise = lambda x, *, training: x
    """Every method's ``inputs``, for passes outside the training loop."""
    clip_gradients: Callable[[], None] = lambda: None
    """Clips the gradients of the parameters that ``net`` has now, by a method's rule: for steps of a second model."""
    captured: Captured | None = None
    """The network's passes as CUDA graphs; None where it goes layer by layer."""
    generators: dict[str, torch.Generator] = field(default_factory=dict)
    stop: Callable[[], bool] = lambda: False

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.net.parameters()).device

    @property
    def lr(self) -> float:
        """Learning rate of the local optimiser."""
        assert self.optimizer is not None
        return float(self.optimizer.param_groups[0]["lr"])

    def seed_of(self, purpose: str) -> int:
        """The seed of what this rank draws for a purpose in the round."""
        return derive_seed(self.seed, self.site, self.round, f"{purpose} at rank {self.rank}" if self.rank else purpose)

    def received_parameters(self) -> Iterator[tuple[str, nn.Parameter, Tensor]]:
        """Yield every parameter's name, the parameter, and its received value on the parameter's device."""
        for name, parameter in self.net.named_parameters():
            yield name, parameter, torch.from_numpy(self.received[name]).to(parameter)


class Context:
    """A method's view of its site's round: the run, the method's state, and its random numbers."""

    def __init__(self, run: Run, method: str, state: dict[str, Tensor]) -> None:
        """``state`` is the method's part of the site's state. ``scratch`` is discarded after the task."""
        self.run, self.method, self.state = run, method, state
        self.scratch: dict[str, Any] = {}

    @property
    def round(self) -> int:
        """Number of the round from 1; 0 is the statistics round."""
        return self.run.round

    def rng(self, purpose: str) -> torch.Generator:
        """The generator for (seed, site, round, method, purpose). Its state advances within the round.

        Where several devices share each batch, what is first drawn in `begin` or before is the same at each, and what
        is first drawn in a step is not.
        """
        name = f"{self.method}.{purpose}"
        if name not in self.run.generators:
            self.run.generators[name] = torch.Generator().manual_seed(self.run.seed_of(name))
        return self.run.generators[name]


@dataclass
class Batch:
    """Inputs (B, C, *spatial) float32 and targets: (B, *spatial) or (B,) int64, or soft targets (B, K, …) float32.

    Findings are (B, K) float32 too: 1, 0, shares of them where images are mixed, or NaN where they are unknown.
    Targets are classes also where the network gives regions. A voxel to ignore has the value `IGNORED`
    (`fedshift.runtime.regions`), or soft targets that lack a part.
    """

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Case:
    """What a rule is decided by: a method's options, the job, its network, and the other methods' client halves."""

    config: Any
    job: JobSpec
    net: nn.Module
    others: Mapping[str, Client[Any]]


@dataclass(frozen=True)
class Rule:
    """Something that a half declares; `fedshift.methods.traits` reads and checks it.

    Attributes:
        what: a need, a trait, or names of options.
        why: the end of a sentence, in which ``{case.config.…}`` and the like are filled in.
        when: in which cases it holds: values that options must have, or a function; by default always.
        remedy: an ``option=value`` that ends it.
    """

    what: str
    why: str = ""
    when: Mapping[str, object] | Callable[[Case], bool] = field(default_factory=dict)
    remedy: str = ""

    def holds(self, case: Case) -> bool:
        """Whether it holds in a case."""
        if callable(self.when):
            return self.when(case)
        return all(getattr(case.config, option) == value for option, value in self.when.items())


class Client(Generic[ConfigT]):
    """The half at a site. A new object is made for every task that a site is given."""

    owns: ClassVar[frozenset[Owned]] = frozenset()
    trains_on: ClassVar[TrainsOn] = "site"
    needs: ClassVar[tuple[Rule, ...]] = ()
    """Names in `fedshift.methods.traits.NEEDS`: what task, network and optimiser must have. ``why`` may say more."""
    traits: ClassVar[tuple[Rule, ...]] = ()
    """Names in `fedshift.methods.traits.TRAITS`: what the method does that another may not bear and no hook shows.
    ``remedy`` is the ``option=value`` that ends it."""
    clashes: ClassVar[tuple[Rule, ...]] = ()
    """The traits of other methods that this one does not bear, and why."""
    idle: ClassVar[tuple[Rule, ...]] = ()
    """Options, separated by spaces, that change nothing as things are, and why. A job in which one of them is set to
    something other than its default is refused. A strength of 0 turns a method off, and is not counted."""
    attached_to_predict: ClassVar[bool] = False
    """Whether `attach` changes what the network computes in evaluation, so that predictions and exports need it."""
    removes_norms: ClassVar[bool] = False
    """Whether the network's normalisation layers pass on what they get, so that a batch may be of one image."""
    takes_gradients: ClassVar[bool] = False
    """Whether `loss` takes gradients of the network's training pass itself, which a CUDA graph gives to the backward
    pass only (`fedshift.tasks.captured`)."""
    waits: ClassVar[bool] = False
    """Whether no weight moves before the end of a round."""
    adds_up_changes: ClassVar[bool] = False
    """Whether a site keeps the sum of the changes that it sent and the server their mean
    (`fedshift.methods.shared.tally`). What leaves no part of a single change, or adds noise to it, is refused."""
    per_sample: ClassVar[frozenset[str]] = frozenset()
    """Hooks of this half that change each sample by itself, and use nothing of the site's data but that sample and what
    has been released. DP-SGD at a site refuses methods with other hooks (`fedshift.federation.site.privacy.dp_sgd`)."""
    least_part: ClassVar[int] = 0
    """Fewest samples of a batch that `loss` and the layers of `attach` may be given at a time, where batches go through
    the network in parts (`fedshift.federation.site.parts`): 1 if the mean over parts is the whole batch's, 2 if layers
    compare samples and may compare those of a part, 0 if all samples of the batch are needed at once."""
    in_ranks: ClassVar[frozenset[str]] = frozenset()
    """Hooks of this half that fit several devices of a site that share each batch: what they make of a share, averaged
    over the shares, is what they make of the batch, and what they keep is the same at every device. Methods with other
    hooks are refused there (`fedshift.federation.site.ranks.refusals`)."""
    resumable: ClassVar[bool] = True
    """Whether `checkpoint` has all that a round's later steps need. If not, an interrupted round is begun anew."""
    option_for_sums: ClassVar[str] = ""
    """``option=value`` with which the server needs only sums of the method's arrays, as encryption requires."""

    def __init__(self, config: ConfigT) -> None:
        """``config`` holds the method's checked options."""
        self.config = config

    def check(self, job: JobSpec, net: nn.Module) -> None:
        """Refuse what the method alone cannot work with and no entry of `needs` says. Called when the job is made.

        Raises:
            ConfigError: a task, optimiser or network that does not fit, and why.
        """

    def perturbations(self) -> Mapping[str, Client[Any]]:
        """Return the ways in which the method perturbs images or features in training, each as a half of its own.

        A trial compares what the network answers with and without each (`fedshift.federation.effect`), and a job warns
        of one that normalisation takes away. A method that acts by its loss, its step or the server has none.

        Returns:
            What is perturbed, in the plural, to a half that does this alone, and in every batch.
        """
        return {}

    def up(self, net: nn.Module) -> dict[str, ArraySpec]:
        """Specs of the arrays that the method sends from a site, by name."""
        return {}

    def personal(self, net: nn.Module) -> frozenset[str]:
        """``state_dict`` keys that a site keeps for itself. Received values do not overwrite them."""
        return frozenset()

    def withheld(self, net: nn.Module) -> frozenset[str]:
        """``state_dict`` keys that never leave the site; by default the personal keys."""
        return self.personal(net)

    def keeps(self, net: nn.Module) -> frozenset[str]:
        """``state_dict`` keys with which a site may begin training as it left them; by default the personal keys."""
        return self.personal(net)

    def scores_own_model(self, net: nn.Module) -> bool:
        """Whether a site scores a model of its own; by default if it has personal keys."""
        return bool(self.personal(net))

    def attach(self, net: nn.Module, ctx: Context) -> list[RemovableHandle]:
        """Insert layers at ``net.stages`` with hooks, so that ``net.state_dict()`` does not change."""
        return []

    def statistics(self, data: TrainingSamples, ctx: Context) -> Arrays:
        """Return the arrays of ``up`` with ``when="once"``. Called once, before round 1."""
        return {}

    def receive(self, arrays: Arrays, ctx: Context) -> None:
        """Take the method's arrays of the broadcast. The network already has the received and the personal weights."""

    def state_from_model(self, arrays: Arrays, index: int) -> dict[str, Tensor]:
        """Rebuild a site's state after the statistics round from a model file, for predictions with its statistics.

        Args:
            arrays: this method's arrays in the model file.
            index: the site's position among the sites that answered the statistics round, in site order.
        """
        return {}

    def newcomer(self, data: TrainingSamples, ctx: Context) -> None:
        """Prepare a site that has never trained in this job: it has no personal weights. Called after ``receive``."""

    def begin(self, data: TrainingSamples, ctx: Context) -> None:
        """Start local training. Called with the received model, before the first step."""

    def augment(self, batch: Batch, ctx: Context) -> Batch:
        """Change images and masks as they come from the data. Training only."""
        return batch

    def inputs(self, x: Tensor, ctx: Context, *, training: bool) -> Tensor:
        """Change a batch of images (B, C, *spatial). Training and evaluation."""
        return x

    def batch(self, batch: Batch, ctx: Context) -> Batch:
        """Change inputs and targets after ``inputs``; targets may become soft. Training only."""
        return batch

    def loss(self, batch: Batch, logits: Tensor, loss: Tensor, ctx: Context) -> Tensor:
        """Return the loss of this batch (a scalar); ``loss`` is the task's, ``logits`` are the network's output."""
        return loss

    def gradients(self, ctx: Context) -> None:
        """Change gradients after the backward pass."""

    def step(self, closure: Callable[[], Tensor], ctx: Context) -> Tensor:
        """Take the optimiser step and return the loss. Only for methods that own "step".

        ``closure`` computes the gradients and returns the loss of the batch. Further calls draw the same random numbers
        and do not update running statistics.
        """
        raise TypeError(f"{self.config.__class__.__name__}: owns no step")

    def checkpoint(self, ctx: Context) -> dict[str, Tensor]:
        """Return what the steps so far have changed and later ones need: attributes and ``ctx.scratch``.

        Called between two steps. The network, its optimiser, ``ctx.state`` and the generators of ``ctx.rng`` are kept
        anyway, and `begin` has run again when `restore` is called.
        """
        return {}

    def restore(self, kept: Mapping[str, Tensor], ctx: Context) -> None:
        """Take what `checkpoint` gave, on the CPU, to go on with an interrupted round. Called after `begin`."""

    def end(self, data: TrainingSamples, ctx: Context) -> Arrays:
        """Return the arrays of ``up`` with ``when="round"``. Called after the last step of the round."""
        return {}

    def fine_tune(self) -> int:
        """Number of local epochs for which a site fine-tunes the final model, which is then scored a second time."""
        return 0


class SiteUpdate(Protocol):
    """An accepted update as a server half sees it. Each access to a weight or array reads it from disk."""

    site: str
    n_samples: int
    n_steps: int
    metrics: Mapping[str, float]
    scaled: Mapping[str, float]
    """The part that limits have left of its changes where they were too large: of those of the parameters
    (``weights``) and of the buffers (``buffers``), and of a method's arrays by its name."""

    @property
    def arrays(self) -> Mapping[str, Mapping[str, np.ndarray]]:
        """Method to its arrays by name."""

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        """Network keys to arrays."""


@dataclass(frozen=True)
class ServerContext:
    """A server half's view of a round."""

    round: int
    rounds: int
    sites: tuple[str, ...]
    trainable: frozenset[str]
    """Keys of the network's parameters; its other keys are buffers."""
    optimizer: OptimizerSpec
    """The sites' optimiser, with the round's learning rate."""
    seed: int = 0
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The options of all methods of the job, by method."""


class Server(Generic[ConfigT]):
    """The half at the server."""

    owns: ClassVar[frozenset[Owned]] = frozenset()
    tells_sites_apart: ClassVar[bool] = False
    """Whether ``combine`` weighs sites by anything other than their sample counts."""

    def __init__(self, config: ConfigT) -> None:
        """``config`` holds the method's checked options, ``state`` everything that it keeps between rounds."""
        self.config = config
        self.state: Arrays = {}

    def down(self, net: nn.Module) -> dict[str, ArraySpec]:
        """Specs of the arrays that every site receives with this method, by name."""
        return {}

    def start(self, net: nn.Module, ctx: ServerContext) -> None:
        """Set the initial state. Called before the statistics round."""

    def fault(self, arrays: Mapping[str, np.ndarray], n_samples: int) -> tuple[str, str] | None:
        """Check what `ArraySpec` cannot express. Returns the name of a wrong array and the reason, or None.

        ``arrays`` are those of one site in one round; each fits its spec.
        """
        return None

    def receive(self, updates: Sequence[SiteUpdate], ctx: ServerContext) -> None:
        """Take the accepted updates of a round (0 is the statistics round), in site order."""

    def factor(self, n_samples: int) -> int | None:
        """Return a site's f_k if ``combine`` is Σ f_k w_k / Σ f_k, which ciphertexts allow too; else None."""
        return None

    def combine(self, weights: Weights, updates: Sequence[SiteUpdate], ctx: ServerContext) -> Weights:
        """Return the new global weights. Only for methods that own "combine"."""
        raise TypeError(f"{self.config.__class__.__name__}: owns no combine")

    def contributions(self, ctx: ServerContext) -> Mapping[str, float]:
        """Return how much each site contributed to the round's model, if the method estimates it.

        Called after ``combine``, with the round that it combined.

        Returns:
            Shares by site, which sum to 1 over the round's sites; empty if the method estimates none.
        """
        return {}

    def broadcast(self, ctx: ServerContext) -> Arrays:
        """Return the arrays of ``down`` for the next round."""
        return {}
