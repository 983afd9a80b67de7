"""FedRoD: a common head that is trained as if all classes were equally frequent, and each site's own head on top of it.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification", ICLR 2022. With the
embedding z of an image, the common head g, site k's own head h_k, n_kc its training images of class c, and CE the
task's loss::

    balanced:  L(x, y) = CE(g(z) + γ log n_k, y)                         in body and g: the balanced softmax
    personal:  P(x, y) = CE([g(z)] + h_k([z]), y)                        in h_k alone; [·] has no gradient
    server:    body, g ← Σ c_k (body_k, g_k)                             (c from the method that combines)

A site is evaluated with g + h_k, which is one linear layer again; a held-out site, and one that has never trained, with
g. What the server has is trained as if there were no h_k, bit for bit, and with γ = 0 it is FedAvg. Where a site has as
many images of each class, γ changes nothing.

Deviations: h_k begins at 0, so that a site begins with the common model; in the code that was read it is a copy of the
common head, which doubles the logits. h_k has an optimiser of the task's type with the task's settings, whose state is
kept between rounds if that of the task's optimiser is; there it is plain SGD with the task's learning rate. The
hypernetwork that gives h_k for a new site (Fed-RoD with ``hyper``), and balanced losses other than this one, are not
offered. A class that a site lacks counts as e⁻³⁰ images, so that logarithms stay finite: its softmax is 0 in float32.

Choices: the reported training loss is L, with what other methods add, and not P. Classes are counted once, in a site's
first round, and the counts stay at the site. Soft targets (Mixup) enter both losses as they are. Segmentation is
refused: its classes are those of pixels, of which background has nearly all at every site, and Dice losses are balanced
already. FL-MedSegBench (arXiv:2603.11659) runs it there without the balanced loss, which is its idea.

Read: the losses and steps in code that has the method as a baseline (``client_fedrod`` in three repositories,
FL-MedSegBench's among them), and γ in copies of FL-bench. The authors' repository (hongyouc/Fed-RoD) has no code, and
the paper's text was not at hand.

When: sites differ in how frequent the classes are; the common model should not learn that, and each site's should.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor, nn

from fedshift.methods import base
from fedshift.methods.shared import search
from fedshift.methods.shared.auxiliary import like, optimizer_tensors, restore_optimizer, under
from fedshift.methods.shared.head import EmbeddingClient, head_of
from fedshift.schema.errors import DataError
from fedshift.schema.messages import Arrays
from fedshift.schema.strict import Strict
from fedshift.tasks.precision import precise

SEARCH = {"gamma": search.uniform(0.25, 1.5)}

PERSONAL = "own."
OPTIMIZER = "optimizer."
COUNTS = "counts"
LACKING = -30.0
"""The logarithm that stands for no image of a class."""


class Config(Strict):
    """Options of FedRoD.

    ``gamma``: γ; with 0 the common model is that of ``fedavg``.
    """

    gamma: float = Field(default=1.0, ge=0)


def class_counts(data: base.TrainingSamples, n_classes: int) -> Tensor:
    """A site's training images of each class, (K,) int64."""
    return sum((torch.bincount(y, minlength=n_classes) for _, y in data.chunks()), torch.zeros(n_classes).long())


class Client(EmbeddingClient[Config]):
    """Balances the loss and trains the site's own head. State: it under ``own.``, its optimiser, and ``counts``."""

    least_part = 1
    needs = (
        *EmbeddingClient.needs,
        base.Rule("a named head"),
        base.Rule("one class for each image"),
        base.Rule("cross-entropy as the task's loss", "it balances that loss", lambda case: case.config.gamma > 0),
    )
    clashes = (
        base.Rule("may keep the head at the site", "has a head of the site's own on top of a common one"),
        base.Rule("fine-tunes the final model", "decides which head a site is evaluated with"),
        base.Rule("sends a loss of the received model", "has the site's own head there"),
    )

    def scores_own_model(self, net: nn.Module) -> bool:
        return True

    @torch.no_grad()
    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        """Put g + h_k in place of g, to be evaluated."""
        personal = under(PERSONAL, ctx.state)
        for name, parameter in head_of(ctx.run.net).named_parameters() if personal else ():
            parameter.add_(personal[name].to(parameter))

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        """Put g back, set up h_k beside it, and count classes once."""
        run, head = ctx.run, head_of(ctx.run.net)
        assert run.optimizer is not None
        with torch.no_grad():
            trained = {id(parameter) for parameter in head.parameters()}
            for _, parameter, received in run.received_parameters():
                if id(parameter) in trained:
                    parameter.copy_(received)
        if COUNTS not in ctx.state:
            ctx.state[COUNTS] = class_counts(data, head.out_features)
        logarithms = ctx.state[COUNTS].double().log().clamp_min(LACKING)
        self._prior = (self.config.gamma * logarithms).float().to(run.device)
        personal = under(PERSONAL, ctx.state)
        values = {name: personal.get(name, torch.zeros_like(initial)) for name, initial in head.named_parameters()}
        self._personal_head = {name: value.to(run.device, copy=True).requires_grad_() for name, value in values.items()}
        self._optimizer = like(run.optimizer, list(self._personal_head.values()))
        if run.optimizer.state:  # it was restored, so the task keeps it
            restore_optimizer(self._optimizer, under(OPTIMIZER, ctx.state))

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        """The balanced loss; the other adds a gradient and no value."""
        objective, common = ctx.run.objective, precise(logits)
        if self.config.gamma > 0:
            loss = loss + objective(common + self._prior, batch.y) - objective(common, batch.y)
        personal_logits = nn.functional.linear(
            precise(self.embedding.detach()), self._personal_head["weight"], self._personal_head.get("bias")
        )
        personal = objective(common.detach() + personal_logits, batch.y)
        return loss + (personal - personal.detach())

    def gradients(self, ctx: base.Context) -> None:
        """Take the step of h_k, whose gradients came with the network's."""
        if not ctx.run.replay:
            if ctx.run.clip_norm is not None:
                nn.utils.clip_grad_norm_(self._personal_head.values(), ctx.run.clip_norm)
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def checkpoint(self, ctx: base.Context) -> dict[str, Tensor]:
        head = {PERSONAL + name: value.detach().cpu().clone() for name, value in self._personal_head.items()}
        return head | {OPTIMIZER + key: value for key, value in optimizer_tensors(self._optimizer).items()}

    @torch.no_grad()
    def restore(self, kept: Mapping[str, Tensor], ctx: base.Context) -> None:
        for name, value in under(PERSONAL, kept).items():
            self._personal_head[name].copy_(value)
        restore_optimizer(self._optimizer, under(OPTIMIZER, kept))

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        """Keep h_k at the site; sends nothing.

        Raises:
            DataError: it diverged.
        """
        held, counts = self.checkpoint(ctx), ctx.state[COUNTS]
        if not all(bool(value.isfinite().all()) for value in under(PERSONAL, held).values()):
            raise DataError(
                "not-finite",
                f"site {ctx.run.site}, round {ctx.round}: the site's own head is not finite after training: lower "
                "optimizer.lr",
            )
        ctx.state.clear()
        ctx.state.update(held | {COUNTS: counts})
        return {}
