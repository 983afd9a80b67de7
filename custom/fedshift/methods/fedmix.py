"""FedMix: approximate Mixup between sites with averages of a few images each, sent once.

Yoon et al., "FedMix: Approximation of Mixup under Mean Augmented Federated Learning", ICLR 2021. Before training, every
site averages its training images and one-hot targets in groups of M (option ``images``). For each batch in training,
one average (x̄, ȳ) of any site is drawn. Mixup with it (λ is ``lam``) is expanded to first order around (1−λ)x::

    loss = (1−λ) CE(f((1−λ)x), y) + λ CE(f((1−λ)x), ȳ) + λ ⟨∂[(1−λ) CE(f((1−λ)x), y)] / ∂((1−λ)x), x̄⟩

CE is the mean over the batch, so the inner product sums over samples; x̄ is normalised like the batch. The gradient of
the third term is a second derivative.

Deviations from the paper:

- The paper sends all averages to every site. Because averages are as large as images, the server here sends a random
  ``per_round`` of them each round, the same to all sites.
- A group with fewer than M images is left out, because an average of fewer images reveals more. The groups do not
  depend on the job's seed, so that several jobs on the same images reveal what one does.
- In segmentation, targets are averaged masks, and cross-entropy replaces the task's loss: the expansion needs a loss
  that is linear in the target.
- Images are scaled by 1−λ after every method's ``inputs`` and before the ``batch`` hooks of methods later in the
  alphabet. Evaluation is unchanged. No averages are sent for the final evaluation, so fine-tuning there runs without
  FedMix.

Variants: ``variant: released`` follows both public re-implementations; the authors published no code.

When: to reproduce the papers' tables, and where sites may share averaged images. It reveals more than any other method:
averages of ``images`` training images, in which single images may be recognisable. They pass through the server to
every site; model files do not contain them, but the server's ``server_state.pt`` does. Several jobs on other choices of
a site's images give single ones away.
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
from fedshift.methods.shared.features import soft
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Arrays
from fedshift.schema.seeding import generator
from fedshift.schema.strict import Strict
from fedshift.tasks import trial
from fedshift.tasks.kinds import build_task
from fedshift.tasks.precision import precise
from fedshift.tasks.stages import StagedNetwork

LARGEST = 1e3
"""Bound on the intensities of images before ``inputs``: at most 255, or standardised values."""


GROUPS_SEED = 3
"""Of the groups at every site, in place of the job's: from averages over other groups single images could be solved."""

SEARCH = {"per_round": None}


class Config(Strict):
    """Options of FedMix.

    ``lam``: λ. ``images``: per average. ``per_round``: averages that the server sends each round. ``variant``:
    ``released`` divides the inner product by the batch size, as both public re-implementations do; the third term is
    then too small by that factor.
    """

    variant: Literal["paper", "released"] = "paper"
    lam: float = Field(default=0.1, ge=0, lt=1)
    images: int = Field(default=5, ge=2)
    per_round: int = Field(default=32, ge=1)


# --- at a site ----------------------------------------------------------------------------------------


def group_means(data: base.TrainingSamples, group: Tensor, *, n_classes: int) -> tuple[Tensor, Tensor]:
    """Means of images and soft targets by group; ``group`` (n,) holds each sample's group from 0, or -1 for none."""
    n_groups = int(group.max()) + 1
    size = int((group == 0).sum())
    sums: list[Tensor] = []
    start = 0
    for x, y in data.chunks():
        numbers = group[start : start + len(x)]
        start += len(x)
        for number, values in enumerate((x, soft(y, n_classes))):
            if len(sums) <= number:
                sums.append(torch.zeros(n_groups, *values.shape[1:]))
            sums[number].index_add_(0, numbers[numbers >= 0], values[numbers >= 0])
    return sums[0] / size, sums[1] / size


def terms(logits: Tensor, x: Tensor, y: Tensor, average: tuple[Tensor, Tensor], *, lam: float) -> tuple[Tensor, ...]:
    """CE(f, y), CE(f, ȳ) and ⟨∂[(1−λ) CE(f, y)]/∂x, x̄⟩; f are the logits of ``x`` (scaled, requires a gradient)."""
    logits = precise(logits)
    mean_x, mean_y = average
    hard = functional.cross_entropy(logits, y)
    soft_loss = functional.cross_entropy(logits, mean_y.to(logits).expand_as(logits))
    (slope,) = torch.autograd.grad((1 - lam) * hard, x, create_graph=True)
    return hard, soft_loss, (precise(slope) * mean_x.to(slope)).sum()


class Client(base.Client[Config]):
    """Sends its averages once and trains with those of all sites."""

    takes_gradients = True
    least_part = 1
    needs = (
        base.Rule("one class for each image", "it averages targets, and unknown ones have no average"),
        base.Rule("cross-entropy as the task's loss", "it expands that loss"),
        base.Rule("classes that exclude each other", "its loss is a cross-entropy over them"),
        base.Rule("masks without voxels to ignore", "it averages masks"),
    )
    traits = (base.Rule("reads what a step's last pass computes"),)
    clashes = (base.Rule("divides the task's loss", "replaces that loss"),)

    def check(self, job: JobSpec, net: nn.Module) -> None:
        task = build_task(job)
        if task.dense and not isinstance(trial.run(net, task.spatial, training=True), Tensor):
            raise ConfigError(
                "method-needs",
                "method fedmix: replaces the loss of one output, and the network has several (deep supervision): turn "
                "it off in network.options",
            )

    def up(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        channels = cast(StagedNetwork, net).in_channels
        head = getattr(net, "head", None)
        targets: tuple[int | str, ...] = ("groups", "classes", "spatial")
        if isinstance(head, nn.Linear):
            targets = ("groups", head.out_features)
        average = f"{self.config.images} of the site's training images, drawn at random; every image is in at most one"
        several = (
            "jobs with the same training images send the same averages, and jobs with others, or with another "
            "fedmix.images, together give single images away"
        )
        return {
            "images": base.ArraySpec(
                ("groups", channels, "spatial"),
                when="once",
                low=-LARGEST,
                high=LARGEST,
                reveals=f"averages of {average}: blurred images in which single ones may be recognisable; {several}",
                kind="images",
            ),
            "targets": base.ArraySpec(
                targets,
                when="once",
                low=0,
                high=1,
                reveals=f"averages of the targets of {average}; {several}",
                kind="images",
            ),
        }

    def statistics(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        """Averages over random groups of M training images, the same in every job on these images."""
        each = self.config.images
        if ctx.run.marginal:
            raise DataError(
                "masks-partial",
                f"site {ctx.run.site}: its masks leave out some of the task's classes, and FedMix averages masks: "
                "leave the site or the method out",
            )
        if data.n_train < each:
            raise DataError(
                "too-few-images",
                f"site {ctx.run.site}: has {data.n_train} training images, and FedMix averages groups of {each}: lower "
                "fedmix.images or leave the site out",
            )
        order = torch.randperm(data.n_train, generator=generator(GROUPS_SEED, ctx.run.site, 0, "fedmix.groups"))
        group = torch.full((data.n_train,), -1)
        used = data.n_train // each * each
        group[order[:used]] = torch.arange(used) // each
        images, targets = group_means(data, group, n_classes=ctx.run.n_classes)
        return {"images": images.numpy(), "targets": targets.numpy()}

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        self._averages = {name: torch.from_numpy(array) for name, array in arrays.items()}

    def attach(self, net: nn.Module, ctx: base.Context) -> list[RemovableHandle]:
        """Make the network's input require a gradient in training, as a new leaf in every pass of a step."""

        def watch(_net: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            if not net.training or not torch.is_grad_enabled() or "average" not in ctx.scratch:
                return None
            x = inputs[0] if inputs[0].requires_grad else inputs[0].detach().requires_grad_()
            ctx.scratch["x"] = x
            return (x, *inputs[1:])

        return [net.register_forward_pre_hook(watch)]

    def batch(self, batch: base.Batch, ctx: base.Context) -> base.Batch:
        if not self._averages:
            return batch
        images, targets = self._averages["images"], self._averages["targets"]
        i = int(torch.randint(len(images), (), generator=ctx.rng("average")))
        ctx.scratch["size"] = len(batch.x)
        ctx.scratch["average"] = ctx.run.normalise(images[i : i + 1].to(batch.x), training=True), targets[i : i + 1]
        return base.Batch((1 - self.config.lam) * batch.x, batch.y)

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        """Replace the task's loss by FedMix's; terms added by other methods stay."""
        if not self._averages:
            return loss
        lam = self.config.lam
        hard, soft_loss, inner = terms(logits, ctx.scratch["x"], batch.y, ctx.scratch["average"], lam=lam)
        if self.config.variant == "released":
            inner = inner / ctx.scratch["size"]
        if ctx.run.dense:  # in classification the task's loss equals `own` bit for bit
            loss = loss + (hard - ctx.run.objective(logits, batch.y))
        return loss + lam * (soft_loss - hard + inner)


# --- at the server ------------------------------------------------------------------------------------


class Server(base.Server[Config]):
    """Keeps all averages and sends a random selection every round."""

    def down(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        reveals = f"up to {self.config.per_round} of all sites' `{{}}`, drawn at random, without names"
        return {
            name: base.ArraySpec(spec.shape, spec.dtype, reveals=reveals.format(name), keep=False)
            for name, spec in Client(self.config).up(net).items()
        }

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        if ctx.round == 0:
            names = ("images", "targets")
            self.state = {name: np.concatenate([u.arrays["fedmix"][name] for u in updates]) for name in names}

    def broadcast(self, ctx: base.ServerContext) -> Arrays:
        if not self.state:
            return {}
        rng = generator(ctx.seed, "server", ctx.round, "fedmix.averages")
        chosen = torch.randperm(len(self.state["images"]), generator=rng)[: self.config.per_round].numpy()
        return {name: array[chosen] for name, array in self.state.items()}
