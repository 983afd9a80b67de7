"""FedProx: hold local training near the received model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020. The local objective is::

    f_k(w) + μ/2 ‖w − w_g‖²          over trainable parameters, w_g what the round began with

Choices: for personal layers (FedBN) the received value is not the site's model; they are held near their own value
at the beginning of the round. Buffers are not parameters and move freely.

``variant: released`` is what the codes of FedFA and FedBN do: μ/2 ‖w − w_g‖, the norm and not its square, left out
in the first step of a round. It is a pull of constant length however far the model has gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedshift.methods import base
from fedshift.schema.strict import Strict


class Config(Strict):
    """Options of FedProx."""

    variant: Literal["paper", "released"] = "paper"
    mu: float = Field(default=0.01, ge=0)


def distance(weights: Sequence[Tensor], anchor: Sequence[Tensor], *, squared: bool) -> Tensor:
    """‖w − w_g‖² or ‖w − w_g‖ over all tensors together. The norm's gradient at 0 is 0."""
    difference = torch.cat([(w - a).flatten() for w, a in zip(weights, anchor, strict=True)])
    return difference.square().sum() if squared else torch.linalg.vector_norm(difference)


class Client(base.Client[Config]):
    """Adds the proximal term."""

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        """Forget where another training began."""
        ctx.scratch.pop("anchor", None)

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        """The loss with the term added."""
        if "anchor" not in ctx.scratch:  # the first step: nothing has moved since all methods have begun
            ctx.scratch["anchor"] = [p.detach().clone() for p in ctx.run.net.parameters()]
        released = self.config.variant == "released"
        if released and ctx.run.step == 0:
            return loss
        far = distance(list(ctx.run.net.parameters()), ctx.scratch["anchor"], squared=not released)
        return loss + self.config.mu / 2 * far
