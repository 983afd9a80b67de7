"""GroupDRO: train on all sites' images, and weigh those domains up on which the model is worst (centralised).

Sagawa et al., "Distributionally Robust Neural Networks for Group Shifts", ICLR 2020; a row of "Mitigating Data
Heterogeneity in Federated Learning with Data Augmentation", whose federated counterpart is AFL. A batch holds equally
many samples of every domain i (each site is one, unless the task's ``domains`` put several together), with the losses
f_i::

    q_i ← q_i exp(η f_i) / Σ_j q_j exp(η f_j),        q_i = 1/K at first
    minimise Σ_i q_i f_i                              q as a constant

q goes on from round to round. It is kept as log q: the q of a domain whose loss stays far below the others' would
underflow to 0, and 0 exp(η f) is 0 for ever.

When: the centralised counterpart of AFL; the worst site's score matters. Run it with ``fedshift pooled groupdro
<task>``.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor

from fedshift.methods import base
from fedshift.methods.shared.domains import ByDomain, site_losses
from fedshift.schema.strict import Strict


class Config(Strict):
    """Options of GroupDRO.

    ``eta``: step size of the weights q; 0 is the mean over sites.
    """

    eta: float = Field(default=0.01, ge=0)


def reweigh(log_q: Tensor, losses: Tensor, *, eta: float) -> Tensor:
    """Add η f to log q and normalise so that Σ q = 1, (K,) -> (K,)."""
    return torch.log_softmax(log_q + eta * losses.detach().to(log_q), 0)


class Client(ByDomain[Config]):
    """Trains on every site's images at once."""

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        """Σ_i q_i f_i with the q of this batch."""
        losses = site_losses(batch, logits, ctx.run)
        log_q = ctx.state.get("log_q", torch.full((len(losses),), -math.log(len(losses)), dtype=torch.float64))
        if not ctx.run.replay:
            log_q = ctx.state["log_q"] = reweigh(log_q, losses.cpu(), eta=self.config.eta)
        return (log_q.exp().to(losses) * losses).sum()
