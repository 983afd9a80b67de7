"""FRAug: train the classifier's head on synthetic embeddings that a shared generator makes and each site adapts.

Chen et al., "FRAug: Tackling Federated Learning with Non-IID Features via Representation Augmentation", arXiv 2022
(equation numbers are the paper's). u = f(x) is the embedding, h the linear head; the generator g is averaged at the
server, the RTNet m never leaves its site. At every step of site k::

    û = u + λ_syn m(g(z, y)),   û_c = ū_c + λ_syn m(g(z', c)),   z, z' ~ N(0, I)                      (3)
    ū_c ← (1 − λ_c) ū_c + λ_c mean of u over the batch's images of class c                            (4)
    model:      CE(h(u), y) + CE(h(û), y) + Σ_c CE(h(û_c), c)        û, û_c move only the head        (1, 2)
    generator:  CE(h(û), y) − α MMD(û, u)                                                             (5)
    RTNet:      −H(h(û)) − Σ_c H(h(û_c)) + β (MMD(û, u) + Σ_c MMD(û_c, ū_c))                          (6)
    λ_syn = exp(γ (r − R)),  r = 0 … R − 1;   λ_c = λ exp(−5 (1 − min(r / T, 1))²);   server: g ← 1/K Σ_k g_k

MMD: see `fedshift.methods.shared.mmd`. g and m are MLPs of two layers with batch norm, as released. Where the paper is
silent the released code decides: g is trained before m; whichever of them is not being trained is in eval mode, and
so is the updated classifier that gives u for (5) and (6), in one more forward pass a step.

Deviations from the paper: the class means of absent classes stay, while the formula as printed pulls them to 0
(``absent: decay``). The first images of a class set its mean, and a class not seen yet is left out. Σ_c MMD is the
MMD between the sets {û_c} and {ū_c}, times their number: with bandwidths that adapt to the points, that of two points
would not depend on their distance. The paper does not give λ, T and γ: λ = .3 and γ = 3 / R are the released code's
(γ = .01 in 300 rounds), T is Laine and Aila's 80 of 300 rounds. The network itself is averaged by ``fedavg``;
``fedavg.weights: uniform`` is the paper's.

``variant: released`` (the authors' code for OfficeHome) differs in: z is uniform in [0, 1) and drawn anew for every
use; m also sees the label; the model's loss is (1 − w) CE(h(u), y) + w mean(CE of û, CE of û_c), w = min(.5, λ_syn);
the prototypes are as many as the batch, of all classes in turn, and means replace Σ_c; (5) takes the generator's raw
output v = g(z, c) in place of û, and (6) takes λ_syn = 1; ū_c starts at 0 and λ_c is fixed; g is averaged by sample
count; only running statistics stay local, not batch norm's scale and shift (``bn: statistics``). Its further settings:
OfficeHome ``share_generator_bn: false``; PACS ``rtnet_distance: l2``; Digits ``generator_distance: l2`` (the
released form compares v with ū_c), ``interpolate: false`` (λ_syn = 1 in û, refused in the paper's variant, where λ_syn
has no other use) and ``gamma_syn: 0.002`` in 300 rounds, with which w is .5 in every round.

Table 3's columns are ``rtnet`` (û), ``moving_average`` (û_c) and ``schedule`` (λ_syn, else 1); without the first two
the generator's output v itself is the synthetic embedding.

When: classification with few images per site and few classes missing at a site. λ_syn grows to nearly 1 at the end,
where the paper's unweighted losses can destabilise the head: use the best round, not the last, or ``variant=released``,
which gives synthetic embeddings at most half the weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from fedshift.methods import base
from fedshift.methods.shared.aggregation import site_fractions
from fedshift.methods.shared.auxiliary import AuxiliaryNetwork, Mlp
from fedshift.methods.shared.features import soft
from fedshift.methods.shared.head import head_of
from fedshift.methods.shared.mmd import mmd
from fedshift.methods.shared.norms import norm_keys, re_estimate
from fedshift.methods.shared.passes import evaluating, same_precision
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.messages import Arrays
from fedshift.schema.seeding import derive_seed, seeded_global
from fedshift.schema.strict import Strict

EPS = 1e-8
GAMMA_ROUNDS = 3.0
"""γ R: the released .01 in 300 rounds, so that λ_syn begins at exp(−3) in a job of any length."""
RELEASED: Mapping[str, object] = {"noise": "uniform", "bn": "statistics", "weights": "samples", "ramp_up": 0.0}

Distance = Literal["mmd", "l2"]
SourceKind = Literal["prototype", "real", "agnostic"]
"""What a synthetic embedding starts from: a class mean, an image's embedding, or the generator alone."""


class Config(Strict):
    """Options of FRAug.

    ``variant``: ``released`` is the authors' code for OfficeHome and changes the defaults named in `RELEASED`.
    ``alpha``: α, weight of the generator's distance. ``beta``: β, weight of the RTNet's distance.
    ``generator_distance``: of the generator's loss; ``l2`` is unbounded. ``rtnet_distance``: of the RTNet's loss.
    ``latent``: numbers in z; null for half the embedding. ``gamma_syn``: γ; null for 3 / rounds. ``interpolate``:
    whether λ_syn scales the residuals. ``lambda_c``: λ. ``ramp_up``: T as a part of the rounds; 0 for a fixed λ_c.
    ``absent``: class means of classes missing from a batch; ``decay`` is the formula as printed. ``noise``:
    distribution of z. ``lr_generator``: of its SGD. ``lr_rtnet``: of its SGD. ``momentum``: of both. ``bn``: batch
    norms stay at the site, or with ``statistics`` only their running statistics. ``weights``: of the generator's
    average. ``share_generator_bn``: whether its batch norms are averaged. ``rtnet``: Table 3's switch of û.
    ``moving_average``: Table 3's switch of û_c. ``schedule``: Table 3's switch of λ_syn, else 1.
    """

    variant: Literal["paper", "released"] = "paper"
    latent: int | None = Field(default=None, ge=1)
    alpha: float = Field(default=1.0, ge=0)
    beta: float = Field(default=1.0, ge=0)
    generator_distance: Distance = "mmd"
    rtnet_distance: Distance = "mmd"
    gamma_syn: float | None = Field(default=None, ge=0)
    interpolate: bool = True
    lambda_c: float = Field(default=0.3, gt=0, le=1)
    ramp_up: float = Field(default=80 / 300, ge=0, le=1)
    absent: Literal["keep", "decay"] = "keep"
    noise: Literal["normal", "uniform"] = "normal"
    lr_generator: float = Field(default=0.05, gt=0)
    lr_rtnet: float = Field(default=0.025, gt=0)
    momentum: float = Field(default=0.5, ge=0, lt=1)
    bn: Literal["local", "statistics"] = "local"
    weights: Literal["uniform", "samples"] = "uniform"
    share_generator_bn: bool = True
    rtnet: bool = True
    moving_average: bool = True
    schedule: bool = True

    @model_validator(mode="before")
    @classmethod
    def _variant_defaults(cls, raw: Any) -> Any:
        released = isinstance(raw, Mapping) and raw.get("variant") == "released"
        return {**RELEASED, **raw} if released else raw

    @model_validator(mode="after")
    def _interpolates_in_the_paper(self) -> Self:
        if self.variant == "paper" and not self.interpolate:
            raise ConfigError(
                "options-clash",
                "method fraug: interpolate=false is a setting of the released code, and in the paper λ_syn has no "
                "other use: set fraug.schedule=false for λ_syn = 1, or fraug.variant=released",
            )
        return self

    @property
    def personalises(self) -> bool:
        """Whether an RTNet is used at all."""
        return self.rtnet or self.moving_average

    @property
    def uses_class_means(self) -> bool:
        """Whether class means are used; as released, l2 measures the generator's output against them."""
        return self.moving_average or (self.variant == "released" and self.generator_distance == "l2")


# --- formulas -----------------------------------------------------------------------------------------


def smoothing(gamma: float, round_: int, rounds: int) -> float:
    """λ_syn of a round, ``round_`` from 1."""
    return math.exp(gamma * (round_ - 1 - rounds))


def ramp(time: float, length: float) -> float:
    """Laine and Aila's ramp-up, from exp(−5) at 0 to 1 at ``length``."""
    part = min(time / length, 1.0) if length > 0 else 1.0
    return math.exp(-5 * (1 - part) ** 2)


def class_means(old: Tensor, embedding: Tensor, labels: Tensor, rate: Tensor | float, *, absent: str) -> Tensor:
    """Eq. 4: (C, d) from (C, d), embeddings (B, d) and class shares (B, C); ``rate`` is λ_c, one or (C, 1)."""
    count = labels.sum(0)[:, None]
    total = labels.T @ embedding
    if absent == "decay":
        return (1 - rate) * old + rate * total / (count + EPS)
    return torch.where(count > 0, (1 - rate) * old + rate * total / count.clamp_min(EPS), old)


def entropy(logits: Tensor) -> Tensor:
    """Mean entropy of the predicted classes, (B, C) -> scalar."""
    logs = functional.log_softmax(logits, 1)
    return -(logs.exp() * logs).sum(1).mean()


DISTANCES: Mapping[Distance, Callable[[Tensor, Tensor], Tensor]] = {"mmd": mmd, "l2": functional.mse_loss}


# --- generator and RTNet ------------------------------------------------------------------------------


def latent_size(head: nn.Linear, config: Config) -> int:
    return config.latent or max(1, head.in_features // 2)


def make_generator(head: nn.Linear, config: Config) -> Mlp:
    """Make g: (B, latent) noise and (B, C) labels -> (B, d), not negative."""
    d = head.in_features
    return Mlp(latent_size(head, config) + head.out_features, d, d, positive=True)


def make_rtnet(head: nn.Linear, config: Config) -> Mlp:
    """Make m: (B, d), and as released (B, C) labels -> (B, d)."""
    d, labels = head.in_features, head.out_features if config.variant == "released" else 0
    return Mlp(d + labels, latent_size(head, config), d, positive=False)


def shared_tensors(generator: nn.Module, config: Config) -> dict[str, Tensor]:
    """The generator's tensors that the server averages, by name; without batch counters, which it does not use."""
    return {
        name: tensor
        for name, tensor in generator.state_dict().items()
        if tensor.is_floating_point() and (config.share_generator_bn or not name.startswith("bn"))
    }


def shared_specs(net: nn.Module, config: Config, reveals: str) -> dict[str, base.ArraySpec]:
    with torch.device("meta"):
        tensors = shared_tensors(make_generator(head_of(net), config), config)
    return {
        name: base.ArraySpec(
            tuple(tensor.shape),
            low=0.0 if name.endswith("running_var") else -np.inf,
            alike="norm",
            averaged="values",
            reveals=reveals,
            keep=False,
            kind="generator",
        )
        for name, tensor in tensors.items()
    }


# --- at a site ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """Embeddings (n, d) from which synthetic ones are made, and their class shares (n, C)."""

    kind: SourceKind
    embedding: Tensor
    labels: Tensor


class Client(base.Client[Config]):
    """At every step trains the classifier, then the generator, then the RTNet."""

    owns = frozenset({"step"})
    needs = (
        base.Rule("one label for each image"),
        base.Rule("one class for each image", "it makes images of a class"),
        base.Rule("a linear head"),
        base.Rule("features before a head"),
        base.Rule("batches of two images", "its batch norms do"),
    )
    traits = (
        base.Rule("reads what a step's last pass computes"),
        base.Rule("divides the task's loss", when={"variant": "released"}, remedy="fraug.variant=paper"),
    )
    clashes = (base.Rule("fine-tunes the final model", "trains with a generator, and a final model has none"),)
    idle = (
        base.Rule("gamma_syn", "schedule is false, so λ_syn is 1", {"schedule": False}),
        base.Rule(
            "beta lr_rtnet rtnet_distance", "without rtnet and moving_average no RTNet is used", {"personalises": False}
        ),
        base.Rule(  # the paper has λ_syn in (3) only, the released code also as a weight in the model's loss
            "gamma_syn schedule",
            "without rtnet and moving_average no RTNet is used",
            {"personalises": False, "variant": "paper"},
        ),
        base.Rule(
            "interpolate",
            "without rtnet and moving_average no RTNet is used",
            {"personalises": False, "variant": "released"},
        ),
        base.Rule(
            "lambda_c ramp_up absent", "without moving_average class means are not used", {"uses_class_means": False}
        ),
    )

    def up(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        reveals = (
            "weights of a generator of embeddings, trained on the site's images: whoever has them can make embeddings "
            "like those of the site's images of each class"
        )
        return shared_specs(net, self.config, reveals)

    def personal(self, net: nn.Module) -> frozenset[str]:
        """Batch norms, or only their running statistics."""
        norms = norm_keys(net, "batch")
        return norms if self.config.bn == "local" else norms & {name for name, _ in net.named_buffers()}

    def newcomer(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        """Estimate running statistics from the site's own images, as FedBN does."""
        re_estimate(ctx.run.net, data, ctx.run)

    def attach(self, net: nn.Module, ctx: base.Context) -> list[RemovableHandle]:
        """Record the embedding of every training batch."""

        def record(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if net.training:
                self._embedding = inputs[0].detach()

        return [head_of(net).register_forward_pre_hook(record)]

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        self._received = {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        """Set up the received generator with the site's RTNet, momentum and class means."""
        config, run, head = self.config, ctx.run, head_of(ctx.run.net)
        self._head = head
        with seeded_global(derive_seed(run.seed, run.site, 0, "fraug.rtnet")):
            nets = make_rtnet(head, config), make_generator(head, config)
        device = head.weight.device
        self._rtnet, self._generator = (
            AuxiliaryNetwork(name, net.to(device), lr=lr, momentum=config.momentum)
            for name, net, lr in zip(("rtnet", "generator"), nets, (config.lr_rtnet, config.lr_generator), strict=True)
        )
        self._rtnet.restore(ctx.state)
        self._generator.restore(ctx.state)
        if not self._received:
            raise DataError(
                "array-missing", f"site {run.site}: the generator did not come with the model: start the run anew"
            )
        self._generator.load(self._received)
        means = ctx.state.get("prototypes", torch.zeros(head.out_features, head.in_features))
        # As released, classes that no image has shown yet have prototypes too: 0.
        seen = ctx.state.get("seen", torch.full((head.out_features,), config.variant == "released"))
        self._means, self._seen = means.to(device), seen.to(device)
        gamma = GAMMA_ROUNDS / run.rounds if config.gamma_syn is None else config.gamma_syn
        self._lambda_syn = smoothing(gamma, run.round, run.rounds) if config.schedule else 1.0
        self._lambda_c = config.lambda_c * ramp(run.round - 1, config.ramp_up * run.rounds)

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        """Eq. 1, 2: the loss of real images and of synthetic embeddings."""
        embedding = self._embedding.float()
        labels = soft(batch.y, self._head.out_features).to(embedding)
        if not ctx.run.replay:
            self._move_means(embedding, labels)
        self._batch = batch.x, labels
        self._noise: dict[SourceKind, Tensor] = {}
        self._generator.net.eval()
        self._rtnet.net.eval()
        scale = self._lambda_syn if self.config.interpolate else 1.0
        values = {}
        for source in self._sources(embedding, labels):
            with torch.no_grad():
                synthetic = self._synthesise(source, scale, ctx)
            values[source.kind] = ctx.run.objective(self._classify(synthetic), source.labels)
        added = self._total(values)
        if self.config.variant == "paper":
            return loss + added
        share = min(0.5, self._lambda_syn)
        return (1 - share) * loss + share * added

    def step(self, closure: Callable[[], Tensor], ctx: base.Context) -> Tensor:
        """The model's step, then the generator's, then the RTNet's."""
        loss = closure()
        assert ctx.run.optimizer is not None
        ctx.run.optimizer.step()
        images, labels = self._batch
        if len(images) > 1:  # batch norm needs two images
            embedding = self._embed(ctx.run.net, images)
            self._train_generator(embedding, labels, ctx)
            if self.config.personalises:
                self._train_rtnet(embedding, labels, ctx)
        return loss

    def checkpoint(self, ctx: base.Context) -> dict[str, Tensor]:
        return self._kept(self._generator.net.state_dict())

    def restore(self, kept: Mapping[str, Tensor], ctx: base.Context) -> None:
        self._rtnet.restore(kept)
        self._generator.restore(kept)
        self._means, self._seen = kept["prototypes"].to(self._means), kept["seen"].to(self._seen)

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        """Save the site's own part and send the generator."""
        shared = shared_tensors(self._generator.net, self.config)
        local = [key for key in self._generator.net.state_dict() if key not in shared]
        ctx.state.clear()
        ctx.state.update(self._kept(local))
        arrays = {name: tensor.detach().cpu().numpy().copy() for name, tensor in shared.items()}
        if not all(torch.isfinite(t).all() for t in ctx.state.values()) or not all(
            np.isfinite(a).all() for a in arrays.values()
        ):
            raise DataError(
                "not-finite",
                f"site {ctx.run.site}, round {ctx.round}: the generator or the RTNet is not finite after training; "
                "lower fraug.lr_generator, fraug.lr_rtnet or fraug.alpha",
            )
        return arrays

    # --- inside -----------------------------------------------------------------------------------

    def _kept(self, keys: Iterable[str]) -> dict[str, Tensor]:
        """Copies of RTNet, the generator's ``keys``, both momenta, and class means."""
        return {
            **self._rtnet.remember(keys=self._rtnet.net.state_dict()),
            **self._generator.remember(keys=keys),
            "prototypes": self._means.cpu().clone(),
            "seen": self._seen.cpu().clone(),
        }

    def _move_means(self, embedding: Tensor, labels: Tensor) -> None:
        """Eq. 4; the first images of a class set its mean."""
        rate = torch.where(self._seen, self._lambda_c, 1.0)[:, None]
        self._means = class_means(self._means, embedding, labels, rate, absent=self.config.absent)
        self._seen = self._seen | (labels.sum(0) > 0)

    def _sources(self, embedding: Tensor, labels: Tensor) -> list[Source]:
        """The sources of synthetic embeddings in this step."""
        sources = []
        if self.config.moving_average:
            sources.append(Source("prototype", *self._prototypes(len(labels))))
        if self.config.rtnet:
            sources.append(Source("real", embedding, labels))
        return sources or [Source("agnostic", embedding, labels)]

    def _prototypes(self, batch_size: int) -> tuple[Tensor, Tensor]:
        """Class means and their labels: every seen class once, or as released all classes in turn."""
        n_classes = len(self._means)
        if self.config.variant == "released":
            chosen = torch.arange(batch_size, device=self._means.device) % n_classes
        else:
            chosen = self._seen.nonzero()[:, 0]
        return self._means[chosen], functional.one_hot(chosen, n_classes).to(self._means)

    def _draw(self, kind: SourceKind, rows: int, ctx: base.Context) -> Tensor:
        """Draw z, (rows, latent): once per step and kind, or as released anew for every use."""
        if self.config.variant == "released" or kind not in self._noise:
            shape = rows, latent_size(self._head, self.config)
            draw = torch.randn if self.config.noise == "normal" else torch.rand
            self._noise[kind] = draw(shape, generator=ctx.rng(f"noise.{kind}")).to(self._means)
        return self._noise[kind]

    def _synthesise(self, source: Source, scale: float, ctx: base.Context) -> Tensor:
        """Eq. 3: û or û_c, (n, d); the generator's own output for the agnostic kind."""
        embeddings: Tensor = self._generator.net(self._draw(source.kind, len(source.labels), ctx), source.labels)
        if source.kind == "agnostic":
            return embeddings
        condition = (source.labels,) if self.config.variant == "released" else ()
        residual: Tensor = self._rtnet.net(embeddings, *condition)
        return source.embedding + scale * residual

    def _total(self, values: Mapping[SourceKind, Tensor]) -> Tensor:
        """Combine the means of the kinds: real ones plus the sum over classes, or as released their mean."""
        if self.config.variant == "released":
            return torch.stack(list(values.values())).mean()
        counts = {"prototype": self._seen.sum()}
        return torch.stack([counts.get(kind, 1) * value for kind, value in values.items()]).sum()

    def _classify(self, embedding: Tensor) -> Tensor:
        """Apply the head without its hooks, which record embeddings of images only."""
        weight, bias = self._head.weight, self._head.bias
        return functional.linear(embedding.to(weight), weight, bias)

    @torch.no_grad()
    def _embed(self, net: nn.Module, images: Tensor) -> Tensor:
        """Embeddings by the updated classifier, in the precision of the forward pass."""
        with evaluating(net), same_precision(self._embedding):
            embedding: Tensor = cast(Any, net).embed(images)
        return embedding.float()

    def _train_generator(self, embedding: Tensor, labels: Tensor, ctx: base.Context) -> None:
        if self.config.variant == "released":
            means, labels = self._prototypes(len(labels))
            target = means if self.config.generator_distance == "l2" else embedding
            source = Source("agnostic", embedding, labels)
        else:
            target = embedding
            source = Source("real" if self.config.personalises else "agnostic", embedding, labels)
        self._generator.net.train()
        self._rtnet.net.eval()
        synthetic = self._synthesise(source, self._scale(), ctx)
        distance = DISTANCES[self.config.generator_distance](synthetic, target)
        self._generator.descend(ctx.run.objective(self._classify(synthetic), labels) - self.config.alpha * distance)

    def _train_rtnet(self, embedding: Tensor, labels: Tensor, ctx: base.Context) -> None:
        self._generator.net.eval()
        self._rtnet.net.train()
        values = {}
        for source in self._sources(embedding, labels):
            if len(source.labels) > 1:
                synthetic = self._synthesise(source, self._scale(), ctx)
                distance = DISTANCES[self.config.rtnet_distance](synthetic, source.embedding)
                values[source.kind] = self.config.beta * distance - entropy(self._classify(synthetic))
        if values:
            self._rtnet.descend(self._total(values))

    def _scale(self) -> float:
        fixed = self.config.variant == "released" or not self.config.interpolate
        return 1.0 if fixed else self._lambda_syn


# --- at the server ------------------------------------------------------------------------------------


class Server(base.Server[Config]):
    """Averages the generators."""

    def down(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        return shared_specs(net, self.config, "weights of a generator of embeddings, averaged over sites")

    def start(self, net: nn.Module, ctx: base.ServerContext) -> None:
        with seeded_global(derive_seed(ctx.seed, "server", 0, "fraug.generator")):
            generator = make_generator(head_of(net), self.config)
        self.state = {name: t.detach().numpy().copy() for name, t in shared_tensors(generator, self.config).items()}

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        """Σ_k c_k g_k; a convex average, so variances stay positive."""
        if ctx.round == 0:
            return
        shares = site_fractions(updates, self.config.weights)
        for name, old in self.state.items():
            parts = zip(shares, updates, strict=True)
            total = sum((c * u.arrays["fraug"][name].astype(np.float64) for c, u in parts), np.zeros(old.shape))
            self.state[name] = np.asarray(total, old.dtype)

    def broadcast(self, ctx: base.ServerContext) -> Arrays:
        return self.state
