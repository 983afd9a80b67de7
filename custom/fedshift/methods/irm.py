"""IRM: train on all sites' images a classifier that is optimal in every domain at once (centralised).

Arjovsky et al., "Invariant Risk Minimization", 2019; also in "Mitigating Data Heterogeneity in Federated Learning with
Data Augmentation" (26), whose federated counterpart is Fed-IRM. A batch holds equally many samples of each of K
domains (each site is one, unless the task's ``domains`` put several together), with the losses f_i::

    minimise mean_i f_i + β mean_i P_i
    scalar:      P_i = ‖∇_{s=1} f_i(s · logits)‖²     s a single number that scales all logits
    classifier:  P_i = ‖∇_W f_i‖²                     W the weight matrix of the network's head

Variants, the schedule of β and its division are those of ``fedirm``; ``weight=0`` is the mean over domains.

Deviations: the code uses the penalty of the last domain only, divided by K. (26) sums penalties over sites; here their
mean is used, which makes β independent of K. DomainBed estimates the penalty from two halves of a batch; here it is
computed on all of a domain's samples.

When: the centralised counterpart of Fed-IRM. Run it with ``fedshift pooled irm <task>``.
"""

from __future__ import annotations

from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor

from fedshift.methods import base
from fedshift.methods.fedirm import LINEAR, classifier_penalty, scalar_penalty
from fedshift.methods.shared.domains import ByDomain, WarmedUp, by_site, site_losses
from fedshift.schema.strict import Strict
from fedshift.tasks.stages import ClassifyingNetwork


class Config(Strict):
    """Options of IRM.

    ``penalty``: the paper's scalar, or the classifier's gradient. ``weight``: β after the warm-up. ``warmup``: steps
    with β at most 1, after which the optimiser's state is reset.
    """

    penalty: Literal["scalar", "classifier"] = "scalar"
    weight: float = Field(default=100.0, ge=0)
    warmup: int = Field(default=500, ge=0)


def penalised(losses: Tensor, penalties: Tensor, *, weight: float) -> Tensor:
    """Mean loss plus ``weight`` times the mean penalty, divided by max(``weight``, 1): 2 x (K,) -> ()."""
    return (losses.mean() + weight * penalties.mean()) / max(weight, 1.0)


class Client(WarmedUp[Config], ByDomain[Config]):
    """Trains on batches with images of every site and counts its steps."""

    needs = (LINEAR,)

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        """(mean loss + β mean penalty) / max(β, 1)."""
        weight = self.penalty_weight(ctx)
        losses = site_losses(batch, logits, ctx.run)
        if self.config.penalty == "scalar":
            penalties = [scalar_penalty(part, y, ctx.run.objective) for part, y in by_site(batch, logits, ctx.run)]
        else:
            head = cast(ClassifyingNetwork, ctx.run.net).head
            penalties = [classifier_penalty(domain_loss, head.weight) for domain_loss in losses]
        return penalised(losses, torch.stack(penalties), weight=weight)
