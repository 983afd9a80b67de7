"""Fed-IRM: penalise a site's classifier for not being optimal on the site's own data.

Back de Luca et al., "Mitigating Data Heterogeneity in Federated Learning with Data Augmentation", 2022, Algorithm 3;
after Arjovsky et al., "Invariant Risk Minimization", 2019. At a site, on every batch::

    scalar:      f(θ) + β ‖∇_{s=1} f(s · logits)‖²        s a single number that scales all logits      (26)
    classifier:  f(θ) + β ‖∇_W f(θ)‖²                     W the weight matrix of the network's head

With one local step a round (``schedule.local_steps=1``) and plain SGD a round is a step of centralised IRM; the paper
finds that it degrades with more.

``penalty: scalar`` is the paper's equation, ``classifier`` what its code uses by default. As in the code β is 1 for
the first ``warmup`` steps of a site, then ``weight``, when the optimiser's state is also forgotten; the objective is
divided by β, so that the length of a step stays, here only if β is above 1. f is the task's loss alone: what other
methods add to it is neither penalised nor, if they come later by alphabet, divided. Deviation: a ``weight`` up to 1
counts from the first step and nothing is forgotten, so 0 is FedAvg.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from fedshift.methods import base
from fedshift.methods.shared.domains import penalty_weight
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.strict import Strict
from fedshift.tasks.precision import precise
from fedshift.tasks.stages import ClassifyingNetwork


class Config(Strict):
    """Options of Fed-IRM."""

    penalty: Literal["scalar", "classifier"] = "scalar"
    weight: float = Field(default=100.0, ge=0)
    warmup: int = Field(default=500, ge=0)


def scalar_penalty(logits: Tensor, y: Tensor, objective: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Eq. 26: squared derivative of the loss with respect to a factor of all logits, at 1."""
    logits = precise(logits)
    scale = torch.ones((), dtype=logits.dtype, device=logits.device, requires_grad=True)
    (gradient,) = torch.autograd.grad(objective(logits * scale, y), scale, create_graph=True)
    return gradient.square()


def classifier_penalty(loss: Tensor, weight: Tensor) -> Tensor:
    """Squared norm of the gradient of the loss with respect to the classifier's weight matrix."""
    (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
    return gradient.square().sum()


class Client(base.Client[Config]):
    """Adds the penalty; remembers how many steps the site has taken."""

    def check(self, job: JobSpec, net: nn.Module) -> None:
        """The classifier's penalty needs a classifier."""
        if self.config.penalty == "classifier" and not isinstance(getattr(net, "head", None), nn.Linear):
            raise ConfigError(
                f"method fedirm: penalty classifier needs a network with a linear head, and {job.task.network.name} "
                "has none: use --set fedirm.penalty=scalar"
            )

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        """(loss + β penalty) / max(β, 1)."""
        weight = penalty_weight(ctx, weight=self.config.weight, warmup=self.config.warmup)
        if self.config.penalty == "scalar":
            penalty = scalar_penalty(logits, batch.y, ctx.run.objective)
        else:
            head = cast(ClassifyingNetwork, ctx.run.net).head
            penalty = classifier_penalty(ctx.run.objective(logits, batch.y), head.weight)
        return (loss + weight * penalty) / max(weight, 1.0)
