"""FedProto: pull every embedding to the average embedding of its class over all sites.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022. With u = features(x)
(B, d), what the network's head sees::

    site:    loss + λ · mean over all B·d elements of (u − P_y)²         P the prototypes of the server
    site:    p_c = mean of u over the site's training images of class c
    server:  P_c = mean of p_c over the sites that have class c

A sample whose class has no prototype yet contributes 0, so there is no term in round 1. A class that no site of a
round has keeps its last prototype.

In the original only prototypes travel and every site keeps its own model, which it is scored with: that is the
default. ``average_weights: true`` averages the models as well, as in tables that compare one model.

``prototypes: last_epoch`` is what the authors' code does: p is the mean of what the round's last epoch was trained on,
each batch before its step, so it costs nothing but comes from weights that still change. (With
``schedule.local_steps`` an epoch that has only begun is put together with the one before it.) ``trained`` passes over
all training images once more, without augmentation, with the trained model in evaluation mode. With batch norm
that is another embedding than the one in training, which uses the batch's statistics, and far from it while running
statistics are still those of all sites together; hence ``last_epoch`` is the default.

Choices: a prototype of one image is that image's embedding, so a site sends none for a class of which the mean would
hold fewer than ``min_samples`` images (2; the original: 1): the class counts as one that the site does not have, and
the server refuses an answer that cannot be of such means. ``weights: samples`` weights the sites by their images of the
class; only then do class counts leave a site. A soft label (Mixup) is pulled to the prototype of its largest class.
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
    """(B,) int64; of soft targets (B, K) the largest class."""
    return y.argmax(1) if y.is_floating_point() else y


def prototype_loss(u: Tensor, classes: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Mean over all elements of (u − P_y)², 0 where the class is not ``known`` (K,) bool."""
    difference = (u - prototypes[classes]) * known[classes][:, None]
    return difference.square().mean()


class ClassMeans:
    """Sums of embeddings by class, float64."""

    def __init__(self, like: Tensor) -> None:
        """Nothing seen yet; ``like`` (K, d) has the sizes and the device."""
        self.sums = torch.zeros_like(like, dtype=torch.float64)
        self.counts = torch.zeros_like(self.sums[:, 0])

    def add(self, u: Tensor, classes: Tensor) -> None:
        """Embeddings (B, d) and their classes (B,)."""
        member = functional.one_hot(classes, len(self.counts)).double()
        self.sums += member.T @ u.detach().double()  # index_add_ would add in any order on a GPU
        self.counts += member.sum(0)

    def merge(self, other: ClassMeans) -> None:
        """Add what another has seen."""
        self.sums += other.sums
        self.counts += other.counts

    def means(self) -> Tensor:
        """(K, d), 0 for classes not seen."""
        return self.sums / self.counts.clamp(min=1)[:, None]


class Client(base.Client[Config]):
    """Pulls embeddings to the prototypes it received and sends its own."""

    def check(self, job: JobSpec, net: nn.Module) -> None:
        """A prototype needs one label an image and an embedding."""
        if job.task.kind != "classification":
            raise ConfigError(
                f"method fedproto: needs one label an image, and task {job.task.name} is {job.task.kind}, with a label "
                "for every pixel: choose a classification task or another method"
            )
        if not isinstance(getattr(net, "head", None), nn.Linear):
            raise ConfigError(
                f"method fedproto: needs a network with a linear head, and {job.task.network.name} has none: set "
                "network.name to one that has"
            )

    def up(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        """The site's prototypes, and which classes it has."""
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
        """The whole model, unless models are averaged."""
        return frozenset() if self.config.average_weights else frozenset(net.state_dict())

    def attach(self, net: nn.Module, ctx: base.Context) -> list[RemovableHandle]:
        """See what the head sees."""

        def see(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self._embedding = inputs[0]

        return [head_of(net).register_forward_pre_hook(see)]

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        """The prototypes of all sites together."""
        device = next(ctx.run.net.parameters()).device
        self._prototypes = torch.from_numpy(arrays["prototypes"]).to(device)
        self._known = torch.from_numpy(arrays["known"]).to(device) > 0
        self._pulls = bool(arrays["known"].any())

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        """Nothing is seen yet; the length of an epoch is known from the first batch on."""
        self._n_train = data.n_train
        self._seen = ClassMeans(self._prototypes)

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        """The loss with the pull added; embeddings are gathered on the way."""
        u = precise(self._embedding)
        classes = classes_of(batch.y)
        if self.config.prototypes == "last_epoch" and not ctx.run.replay:
            if ctx.run.step % self._epoch(len(u)) == 0:
                self._before, self._seen = self._seen, ClassMeans(self._prototypes)
            self._seen.add(u, classes)
            self._unfinished = (ctx.run.step + 1) % self._epoch(len(u)) > 0
        if not self._pulls:
            return loss
        return loss + self.config.weight * prototype_loss(u, classes, self._prototypes.to(u), self._known)

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        """The site's prototypes."""
        if self.config.prototypes == "trained":
            self._pass_over(data, ctx)
        images = self._seen.counts  # of different images, for an epoch has none twice
        if self.config.prototypes == "last_epoch" and self._unfinished:
            images = torch.maximum(images, self._before.counts)
            self._seen.merge(self._before)
        enough = (images >= self.config.min_samples).double()
        counts = self._seen.counts * enough if self.config.weights == "samples" else enough
        prototypes = self._seen.means() * enough[:, None]
        return {"prototypes": prototypes.float().cpu().numpy(), "counts": counts.float().cpu().numpy()}

    def _epoch(self, batch_size: int) -> int:
        """Steps in an epoch."""
        return max(1, self._n_train // batch_size)

    @torch.no_grad()
    def _pass_over(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        """Embeddings of all training images by the trained model."""
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
        """The prototypes of all sites together, and which classes have one."""
        head = head_of(net)
        return {
            "prototypes": base.ArraySpec((head.out_features, head.in_features), reveals="a mean over sites"),
            "known": base.ArraySpec((head.out_features,), reveals="which classes any site has had (1 or 0)"),
        }

    def start(self, net: nn.Module, ctx: base.ServerContext) -> None:
        """No class has one."""
        head = head_of(net)
        self.state["prototypes"] = np.zeros((head.out_features, head.in_features), np.float32)
        self.state["known"] = np.zeros(head.out_features, np.float32)

    def fault(self, arrays: Mapping[str, np.ndarray], n_samples: int) -> tuple[str, str] | None:
        """Counts that ``min_samples`` images a class cannot give, or a prototype of a class that is not counted."""
        counts, least = arrays["counts"].astype(np.float64), self.config.min_samples
        by_class = self.config.weights == "samples"
        allowed = (counts == 0) | ((counts >= least) & (counts == np.rint(counts)) if by_class else counts == 1)
        if not allowed.all():
            wanted = f"0 or a whole number from {least} on" if by_class else "0 or 1"
            return "counts", f"holds {counts[~allowed][0]:g} for a class, allowed is {wanted}"
        # The last epoch may be put together with the one before it.
        most, told = (2 * n_samples, counts.sum()) if by_class else (n_samples, least * counts.sum())
        if told > most:
            return "counts", f"tells of at least {told:g} images, and the site has {n_samples}"
        if (arrays["prototypes"] != 0)[counts == 0].any():
            return "prototypes", f"has one for a class that is not counted: a mean of fewer than {least} images"
        return None

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        """P_c over the sites that have class c. Without class counts every one of them counts as 1."""
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
        """The last prototypes."""
        return self.state
