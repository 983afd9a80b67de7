"""FedProto: pull every embedding to the average embedding of its class over all sites.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022. With u = features(x)
(B, d), the input of the network's head::

    site:    loss + λ · mean over all B·d elements of (u − P_y)²         P the server's prototypes
    site:    p_c = mean of u over the site's training images of class c
    server:  P_c = mean of p_c over the sites that have class c

A sample whose class has no prototype yet contributes 0, so round 1 has no extra term. A class that no site has in a
round keeps its last prototype.

Variants:

- Only prototypes travel by default, as in the paper: every site keeps its own model and is evaluated with it.
  ``average_weights: true`` also averages the models, as in benchmarks that compare a single global model.
- ``prototypes: last_epoch`` (default) follows the authors' code: p is the mean over the round's last epoch of training,
  each batch embedded before its step. It needs no extra pass, but mixes embeddings of changing weights. (With
  ``schedule.local_steps``, an unfinished epoch is merged with the one before it. An image may then be in both, so the
  larger count of a class in one of them counts as its number of images.)
- ``prototypes: trained`` makes one more pass over all training images, un-augmented, with the trained model in
  evaluation mode. With batch norm these embeddings differ from those in training, which use batch statistics. The
  difference is large while running statistics are still averages over all sites, hence the default ``last_epoch``.
- ``weights: samples`` weights the sites by their number of images of the class. Only then do class counts leave a site.

Deviations from the paper:

- The prototype of a single image is that image's embedding. A site therefore sends no prototype for a class with fewer
  than ``min_samples`` images (2; the paper: 1) and reports the class as absent. The server rejects updates that
  contradict this rule.
- A soft label (Mixup) uses the prototype of its largest class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from fedshift.methods import base
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Arrays
from fedshift.schema.strict import Strict
from fedshift.tasks.precision import precise
from fedshift.tasks.stages import ClassifyingNetwork

LARGEST = 1e6


class Config(Strict):
    """Options of FedProto. ``weight`` is λ."""

    prototypes: Literal["last_epoch", "trained"] = "last_epoch"
    weight: float = Field(default=1.0, ge=0)
    weights: Literal["uniform", "samples"] = "uniform"
    average_weights: bool = False
    min_samples: int = Field(default=2, ge=1)


def head_of(net: nn.Module) -> nn.Linear:
    """The layer whose input is the embedding."""
    return cast(ClassifyingNetwork, net).head


def classes_of(y: Tensor) -> Tensor:
    """Class indices (B,) int64; the class with the largest share for soft targets (B, K)."""
    return y.argmax(1) if y.is_floating_point() else y


def prototype_loss(u: Tensor, classes: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Mean over all elements of (u − P_y)²; samples whose class is not in ``known`` (K,) bool contribute 0."""
    difference = (u - prototypes[classes]) * known[classes][:, None]
    return difference.square().mean()


class ClassMeans:
    """Sums and counts of embeddings by class, in float64."""

    def __init__(self, like: Tensor) -> None:
        """All zero; ``like`` (K, d) gives the shape and the device."""
        self.sums = torch.zeros_like(like, dtype=torch.float64)
        self.counts = torch.zeros_like(self.sums[:, 0])

    def add(self, u: Tensor, classes: Tensor) -> None:
        """Add embeddings (B, d) of the classes (B,)."""
        member = functional.one_hot(classes, len(self.counts)).double()
        self.sums += member.T @ u.detach().double()  # index_add_ is not deterministic on a GPU
        self.counts += member.sum(0)

    def merge(self, other: ClassMeans) -> None:
        """Add the sums and counts of ``other``."""
        self.sums += other.sums
        self.counts += other.counts

    def means(self) -> Tensor:
        """Means (K, d), 0 for classes without embeddings."""
        return self.sums / self.counts.clamp(min=1)[:, None]


class Client(base.Client[Config]):
    """Pulls embeddings to the received prototypes and sends the site's own."""

    def check(self, job: JobSpec, net: nn.Module) -> None:
        """Require a classification task and a network with a linear head."""
        if job.task.kind != "classification":
            raise ConfigError(
                f"method fedproto: needs one label for each image, and task {job.task.name} is {job.task.kind}, with a "
                "label for every pixel: choose a classification task or another method"
            )
        if not isinstance(getattr(net, "head", None), nn.Linear):
            raise ConfigError(
                f"method fedproto: needs a network with a linear head, and {job.task.network.name} has none: set "
                "network.name to one with a linear head"
            )

    def up(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        """Prototypes (K, d) and counts (K,): class counts with ``weights: samples``, otherwise 0 or 1."""
        head = head_of(net)
        counted = "the site's training images of each class"
        which = f"number of {counted}" if self.config.weights == "samples" else "which classes the site has (1 or 0)"
        return {
            "prototypes": base.ArraySpec(
                (head.out_features, head.in_features),
                low=-LARGEST,
                high=LARGEST,
                reveals=f"average embedding of {counted}"
                + (
                    f", if there are at least {self.config.min_samples}"
                    if self.config.min_samples > 1
                    else " (of its only image, if there is one)"
                ),
                kind="prototypes",
                alike="norm",
            ),
            "counts": base.ArraySpec((head.out_features,), low=0, high=1e9, reveals=which, kind="prototypes"),
        }

    def personal(self, net: nn.Module) -> frozenset[str]:
        """All keys, unless models are averaged."""
        return frozenset() if self.config.average_weights else frozenset(net.state_dict())

    def attach(self, net: nn.Module, ctx: base.Context) -> list[RemovableHandle]:
        """Record the input of the head."""

        def see(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self._embedding = inputs[0]

        return [head_of(net).register_forward_pre_hook(see)]

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        """The server's prototypes and which classes have one."""
        device = next(ctx.run.net.parameters()).device
        self._prototypes = torch.from_numpy(arrays["prototypes"]).to(device)
        self._known = torch.from_numpy(arrays["known"]).to(device) > 0
        self._pulls = bool(arrays["known"].any())

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        """Start with empty class means."""
        self._seen, self._before = ClassMeans(self._prototypes), ClassMeans(self._prototypes)
        self._epoch = ctx.run.epoch

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        """The loss plus λ times the prototype loss; embeddings are collected for ``last_epoch``."""
        u = precise(self._embedding)
        classes = classes_of(batch.y)
        if self.config.prototypes == "last_epoch" and not ctx.run.replay:
            if ctx.run.epoch != self._epoch:
                self._before, self._seen = self._seen, ClassMeans(self._prototypes)
                self._epoch = ctx.run.epoch
            self._seen.add(u, classes)
        if not self._pulls:
            return loss
        return loss + self.config.weight * prototype_loss(u, classes, self._prototypes.to(u), self._known)

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        """The site's prototypes, without classes that have fewer than ``min_samples`` images."""
        if self.config.prototypes == "trained":
            self._pass_over(data, ctx)
        images = self._seen.counts.clone()  # no image occurs twice in an epoch, so this counts distinct images
        if images.sum() < self._before.counts.sum():  # unfinished: every epoch shows as many images
            images = torch.maximum(images, self._before.counts)
            self._seen.merge(self._before)
        enough = (images >= self.config.min_samples).double()
        counts = images * enough if self.config.weights == "samples" else enough
        prototypes = self._seen.means() * enough[:, None]
        return {"prototypes": prototypes.float().cpu().numpy(), "counts": counts.float().cpu().numpy()}

    @torch.no_grad()
    def _pass_over(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        """Add the trained model's embeddings of all training images."""
        net = ctx.run.net
        training = net.training
        net.eval()
        try:
            for x, y in data.chunks():
                net(ctx.run.normalise(x.to(self._prototypes.device), training=False))
                self._seen.add(self._embedding, y.to(self._prototypes.device))
        finally:
            net.train(training)


class Server(base.Server[Config]):
    """Averages prototypes class by class."""

    def down(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        """The averaged prototypes (K, d) and which classes have one (K,)."""
        head = head_of(net)
        return {
            "prototypes": base.ArraySpec((head.out_features, head.in_features), reveals="a mean over sites"),
            "known": base.ArraySpec((head.out_features,), reveals="which classes any site has had (1 or 0)"),
        }

    def start(self, net: nn.Module, ctx: base.ServerContext) -> None:
        """No class has a prototype."""
        head = head_of(net)
        self.state["prototypes"] = np.zeros((head.out_features, head.in_features), np.float32)
        self.state["known"] = np.zeros(head.out_features, np.float32)

    def fault(self, arrays: Mapping[str, np.ndarray], n_samples: int) -> tuple[str, str] | None:
        """Reject impossible counts and prototypes of classes whose count is 0."""
        counts, least = arrays["counts"].astype(np.float64), self.config.min_samples
        by_class = self.config.weights == "samples"
        allowed = (counts == 0) | ((counts >= least) & (counts == np.rint(counts)) if by_class else counts == 1)
        if not allowed.all():
            wanted = f"0 or an integer of at least {least}" if by_class else "0 or 1"
            return "counts", f"is {counts[~allowed][0]:g} for a class, must be {wanted}"
        claimed = counts.sum() if by_class else least * counts.sum()
        if claimed > n_samples:
            return "counts", f"implies at least {claimed:g} images, and the site has {n_samples}"
        if (arrays["prototypes"] != 0)[counts == 0].any():
            return "prototypes", f"holds a prototype of a class whose count is 0: a mean of fewer than {least} images"
        return None

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        """Update P_c, the mean over the sites that have class c, weighted by their counts."""
        if ctx.round == 0:
            return
        counts = np.stack([update.arrays["fedproto"]["counts"] for update in updates]).astype(np.float64)
        stack = np.stack([update.arrays["fedproto"]["prototypes"] for update in updates]).astype(np.float64)
        total = counts.sum(0)
        mean = (counts[..., None] * stack).sum(0) / np.maximum(total, 1)[:, None]
        has = total > 0
        self.state["prototypes"] = np.where(has[:, None], mean, self.state["prototypes"]).astype(np.float32)
        self.state["known"] = np.maximum(self.state["known"], has).astype(np.float32)

    def broadcast(self, ctx: base.ServerContext) -> Arrays:
        """The current prototypes."""
        return self.state
