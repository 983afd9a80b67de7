"""GroupDRO: train on all sites' images, and weigh those sites up on which the model is worst (centralised).

Sagawa et al., "Distributionally Robust Neural Networks for Group Shifts", ICLR 2020; a row of "Mitigating Data
Heterogeneity in Federated Learning with Data Augmentation", whose federated counterpart is AFL. A batch holds equally
many samples of every site i, with the losses f_i::

    q_i ← q_i exp(η f_i) / Σ_j q_j exp(η f_j),        q_i = 1/K at first
    minimise Σ_i q_i f_i                              q as a constant

A reference that needs all images in one place: `fedshift pooled groupdro`. q goes on from round to round.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from fedshift.methods import base
from fedshift.methods.shared.domains import check_alone, site_losses
from fedshift.schema.job import JobSpec
from fedshift.schema.strict import Strict


class Config(Strict):
    """Options of GroupDRO; ``eta`` is the step size of the weights q."""

    eta: float = Field(default=0.01, ge=0)


def reweigh(q: Tensor, losses: Tensor, *, eta: float) -> Tensor:
    """Multiply by exp(η f) and make the sum 1 again, (K,) -> (K,)."""
    return torch.softmax(q.log() + eta * losses.detach().to(q), 0)


class Client(base.Client[Config]):
    """Trains on every site's images at once."""

    trains_on = "every site"

    def check(self, job: JobSpec, net: nn.Module) -> None:
        """No other method may change the loss or train at one site."""
        check_alone("groupdro", job)

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        """Σ_i q_i f_i with the q of this batch."""
        losses = site_losses(batch, logits, ctx.run)
        q = ctx.state.get("q", torch.full((len(losses),), 1 / len(losses), dtype=torch.float64))
        if not ctx.run.replay:
            q = ctx.state["q"] = reweigh(q, losses.cpu(), eta=self.config.eta)
        return (q.to(losses) * losses).sum()
