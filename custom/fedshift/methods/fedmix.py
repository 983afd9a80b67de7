"""FedMix: approximate Mixup between sites with averages of a few images each, sent once.

Yoon et al., "FedMix: Approximation of Mixup under Mean Augmented Federated Learning", ICLR 2021. Once, every site
averages its training images and one-hot targets in groups of M (``images``). In training one average (x̄, ȳ) of any
site is drawn for each batch, and Mixup with it is expanded to first order around (1−λ)x::

    loss = (1−λ) CE(f((1−λ)x), y) + λ CE(f((1−λ)x), ȳ) + λ ⟨∂[(1−λ) CE(f((1−λ)x), y)] / ∂((1−λ)x), x̄⟩

CE is the mean over the batch, so the inner product sums over samples; x̄ is normalised as the batch is. The third
term's gradient is a second derivative.

Deviations: the paper gives every site all averages; here the server sends a random ``per_round`` of them in each
round, the same to all sites, because they are as large as images. A group with fewer than M images is left out, since
an average of fewer images reveals more. In segmentation targets are averaged masks, and the task's loss is replaced by
cross-entropy: the expansion needs a loss that is linear in the target. Evaluation is left alone. The scaling by 1−λ
comes after every method's ``inputs`` and before what methods later by alphabet do to the batch. Nothing is sent for
the final evaluation, so fine-tuning there is without FedMix.

``variant: released`` is what both public re-implementations do (the authors published no code): the inner product is
averaged over samples, which makes the third term too small by the batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from fedshift.methods import base
from fedshift.methods.shared.mixing import soft
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Arrays
from fedshift.schema.seeding import generator
from fedshift.schema.strict import Strict
from fedshift.tasks.precision import precise
from fedshift.tasks.stages import StagedNetwork

LARGEST = 1e3
"""Of an image's intensities as they come from the data: at most 255, or in deviations from a mean."""


class Config(Strict):
    """Options of FedMix."""

    variant: Literal["paper", "released"] = "paper"
    lam: float = Field(default=0.1, ge=0, lt=1)
    images: int = Field(default=5, ge=2)
    per_round: int = Field(default=32, ge=1)


# --- at a site ----------------------------------------------------------------------------------------


def group_means(data: base.TrainingSamples, group: Tensor, *, n_classes: int) -> tuple[Tensor, Tensor]:
    """Averages of images and soft targets; ``group`` (n,) is each sample's group from 0, or -1 for none."""
    n_groups = int(group.max()) + 1
    size = int((group == 0).sum())
    sums: list[Tensor] = []
    start = 0
    for x, y in data.chunks():
        of = group[start : start + len(x)]
        start += len(x)
        for number, values in enumerate((x, soft(y, n_classes))):
            if len(sums) <= number:
                sums.append(torch.zeros(n_groups, *values.shape[1:]))
            sums[number].index_add_(0, of[of >= 0], values[of >= 0])
    return sums[0] / size, sums[1] / size


def terms(logits: Tensor, x: Tensor, y: Tensor, average: tuple[Tensor, Tensor], *, lam: float) -> tuple[Tensor, ...]:
    """CE(f, y), CE(f, ȳ) and ⟨∂[(1−λ) CE(f, y)]/∂x, x̄⟩; f are the answers to ``x``, scaled and with a gradient."""
    logits = precise(logits)
    mean_x, mean_y = average
    own = functional.cross_entropy(logits, y)
    theirs = functional.cross_entropy(logits, mean_y.to(logits).expand_as(logits))
    (slope,) = torch.autograd.grad((1 - lam) * own, x, create_graph=True)
    return own, theirs, (precise(slope) * mean_x.to(slope)).sum()


class Client(base.Client[Config]):
    """Sends its averages once; trains with everybody's."""

    def check(self, job: JobSpec, net: nn.Module) -> None:
        """The task's loss that is replaced must still be there in full."""
        released = job.methods.get("fraug", {}).get("variant") == "released"
        for other in (*(["fedirm"] if "fedirm" in job.methods else []), *(["fraug"] if released else [])):
            raise ConfigError(
                f"method fedmix: replaces the task's loss, which {other} divides, so they cannot be combined: leave "
                "one of them out"
            )

    def up(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        """Averaged images and targets."""
        channels = cast(StagedNetwork, net).in_channels
        head = getattr(net, "head", None)
        targets: tuple[int | str, ...] = ("groups", "classes", "rows", "columns")
        if isinstance(head, nn.Linear):
            targets = ("groups", head.out_features)
        of = f"{self.config.images} of the site's training images, drawn at random; every image is in at most one"
        return {
            "images": base.ArraySpec(
                ("groups", channels, "rows", "columns"),
                when="once",
                low=-LARGEST,
                high=LARGEST,
                reveals=f"averages of {of}: blurred pictures in which single images may be recognisable",
                kind="images",
            ),
            "targets": base.ArraySpec(
                targets, when="once", low=0, high=1, reveals=f"averages of the targets of {of}", kind="images"
            ),
        }

    def statistics(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        """Averages over random groups."""
        each = self.config.images
        if data.n_train < each:
            raise DataError(
                f"site {ctx.run.site}: has {data.n_train} training images and FedMix averages {each} at a time; lower "
                "fedmix.images or leave the site out"
            )
        order = torch.randperm(data.n_train, generator=ctx.rng("groups"))
        group = torch.full((data.n_train,), -1)
        used = data.n_train // each * each
        group[order[:used]] = torch.arange(used) // each
        images, targets = group_means(data, group, n_classes=ctx.run.n_classes)
        return {"images": images.numpy(), "targets": targets.numpy()}

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        """This round's averages."""
        self._averages = {name: torch.from_numpy(array) for name, array in arrays.items()}

    def attach(self, net: nn.Module, ctx: base.Context) -> list[RemovableHandle]:
        """The network's input in training must have a gradient; a leaf of its own in every pass of a step."""

        def watch(_net: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            if not net.training or not torch.is_grad_enabled() or "average" not in ctx.scratch:
                return None
            x = inputs[0] if inputs[0].requires_grad else inputs[0].detach().requires_grad_()
            ctx.scratch["x"] = x
            return (x, *inputs[1:])

        return [net.register_forward_pre_hook(watch)]

    def batch(self, batch: base.Batch, ctx: base.Context) -> base.Batch:
        """Draw an average and scale the images by 1−λ."""
        if not self._averages:
            return batch
        images, targets = self._averages["images"], self._averages["targets"]
        i = int(torch.randint(len(images), (), generator=ctx.rng("average")))
        ctx.scratch["average"] = ctx.run.normalise(images[i : i + 1].to(batch.x), training=True), targets[i : i + 1]
        return base.Batch((1 - self.config.lam) * batch.x, batch.y)

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        """FedMix's loss in place of the task's; what other methods have added stays."""
        if not self._averages:
            return loss
        lam = self.config.lam
        own, theirs, inner = terms(logits, ctx.scratch["x"], batch.y, ctx.scratch["average"], lam=lam)
        if self.config.variant == "released":
            inner = inner / len(batch.x)
        if ctx.run.images_are_slices:  # elsewhere the task's loss is `own`, bit for bit
            loss = loss + (own - ctx.run.objective(logits, batch.y))
        return loss + lam * (theirs - own + inner)


# --- at the server ------------------------------------------------------------------------------------


class Server(base.Server[Config]):
    """Keeps all averages and sends some of them every round."""

    def down(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        """This round's averages."""
        told = f"up to {self.config.per_round} of all sites' `{{}}`, drawn at random, without names"
        return {
            name: base.ArraySpec(spec.shape, spec.dtype, reveals=told.format(name), keep=False)
            for name, spec in Client(self.config).up(net).items()
        }

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        """Round 0: all sites' averages, one after another."""
        if ctx.round == 0:
            names = ("images", "targets")
            self.state = {name: np.concatenate([u.arrays["fedmix"][name] for u in updates]) for name in names}

    def broadcast(self, ctx: base.ServerContext) -> Arrays:
        """A random choice for the round; nothing when there is none to train for."""
        if not self.state or ctx.round > ctx.rounds:
            return {}
        rng = generator(ctx.seed, "server", ctx.round, "fedmix.averages")
        chosen = torch.randperm(len(self.state["images"]), generator=rng)[: self.config.per_round].numpy()
        return {name: array[chosen] for name, array in self.state.items()}
