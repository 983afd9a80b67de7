"""Fed-IRM: penalise a site's classifier for not being optimal on the site's own data.

Back de Luca et al., "Mitigating Data Heterogeneity in Federated Learning with Data Augmentation", 2022, Algorithm 3;
after Arjovsky et al., "Invariant Risk Minimization", 2019. At a site, on every batch::

    scalar:      f(θ) + β ‖∇_{s=1} f(s · logits)‖²        s a single number that scales all logits      (26)
    classifier:  f(θ) + β ‖∇_W f(θ)‖²                     W the weight matrix of the network's head

With plain SGD and one local step a round (``schedule.local_steps=1``), a round is a step of centralised IRM. The paper
reports that more local steps degrade the result.

Schedule of β, as in the code: β is 1 for the first ``warmup`` steps of a site, then ``weight``; at the change the
optimiser's state is reset. The objective is divided by β to keep the step length.

Deviations from the paper:

- The objective is divided by β only if β > 1.
- A ``weight`` of at most 1 applies from the first step, without a reset, so that ``weight=0`` is FedAvg.
- f is the task's loss alone. Terms that other methods add are not penalised. They are divided by β only if their method
  runs before this one (alphabetical order).

When: to reproduce the paper, which leaves it out of its main tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor

from fedshift.methods import base
from fedshift.methods.shared.domains import WarmedUp
from fedshift.schema.strict import Strict
from fedshift.tasks.precision import precise
from fedshift.tasks.stages import ClassifyingNetwork


class Config(Strict):
    """Options of Fed-IRM.

    ``penalty``: ``scalar`` is the paper's equation, ``classifier`` what its code uses by default. ``weight``: β; 0 is
    ``fedavg``. ``warmup``: steps of a site with β = 1, after which the optimiser's state is reset once.
    """

    penalty: Literal["scalar", "classifier"] = "scalar"
    weight: float = Field(default=100.0, ge=0)
    warmup: int = Field(default=500, ge=0)


LINEAR = base.Rule("a linear head", "of penalty classifier", {"penalty": "classifier"}, "{name}.penalty=scalar")


def scalar_penalty(logits: Tensor, y: Tensor, objective: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Eq. 26: squared derivative of the loss with respect to a factor on all logits, at 1."""
    logits = precise(logits)
    scale = torch.ones((), dtype=logits.dtype, device=logits.device, requires_grad=True)
    (gradient,) = torch.autograd.grad(objective(logits * scale, y), scale, create_graph=True)
    return gradient.square()


def classifier_penalty(loss: Tensor, weight: Tensor) -> Tensor:
    """Squared norm of the loss's gradient with respect to the classifier's weight matrix."""
    (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
    return gradient.square().sum()


class Client(WarmedUp[Config]):
    """Adds the penalty and counts the site's steps over all rounds."""

    takes_gradients = True
    needs = (LINEAR,)
    traits = (base.Rule("divides the task's loss"),)

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        """(loss + β penalty) / max(β, 1)."""
        weight = self.penalty_weight(ctx)
        if self.config.penalty == "scalar":
            penalty = scalar_penalty(logits, batch.y, ctx.run.objective)
        else:
            head = cast(ClassifyingNetwork, ctx.run.net).head
            penalty = classifier_penalty(ctx.run.objective(logits, batch.y), head.weight)
        return (loss + weight * penalty) / max(weight, 1.0)
