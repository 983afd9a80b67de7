"""FedSGD: one step a round, along the mean of all sites' gradients at the same weights.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, where it is
the baseline of FedAvg. Sites accumulate gradients at the received w without moving it. With g_b(w) the gradient of the
round's b-th batch::

    w_k = w − lr/B Σ_b g_b(w)        at site k
    w   ← Σ_k c_k w_k,    c_k = n_k / Σ n   (weights: samples)   or   1 / K   (weights: uniform)

This is one step of gradient descent on Σ_k c_k f_k.

Deviations from the paper:

- The paper takes the gradient over all of a site's samples. Here it is the mean over the round's augmented batches:
  with ``local_epochs: 1`` all samples except an incomplete last batch, with ``local_steps`` that many batches.
  ``local_steps: 1`` is FedAvg with one step.
- Batch norm normalises with batch statistics, and running statistics are updated with every batch, as in other
  training.

Choices: a site sends w_k, which reveals as much to the server as the gradient. Weight decay is part of the gradient at
w. Only plain SGD is allowed; for momentum use fedavgm, which applies it at the server.

When: a reference without client drift; it needs many more rounds than ``fedavg``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from torch import Tensor

from fedshift.methods import base
from fedshift.methods.shared.aggregation import average, site_fractions
from fedshift.schema.messages import Arrays, Weights
from fedshift.schema.strict import Strict


class Config(Strict):
    """Options of FedSGD.

    ``weights``: ``samples`` is n_k/n, ``uniform`` 1/K.
    """

    weights: Literal["samples", "uniform"] = "samples"


class Client(base.Client[Config]):
    """Accumulates gradients and takes one step at the end of the round."""

    in_ranks = frozenset({"step", "end"})
    owns = frozenset({"step"})
    waits = True
    needs = (
        base.Rule("SGD", "it is one step of it"),
        base.Rule(
            "SGD without momentum",
            "it takes one plain step a round; fedavgm with schedule.local_steps=1 has momentum at the server",
        ),
    )
    clashes = (
        base.Rule("trains parts of the network in turn", "takes the mean gradient over all of a round's batches"),
        base.Rule("fine-tunes the final model", "takes one step a round, with which nothing is fine-tuned"),
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._total: dict[str, Tensor] = {}

    def step(self, closure: Callable[[], Tensor], ctx: base.Context) -> Tensor:
        """Add the gradient of one more batch; the weights do not change."""
        loss = closure()
        for name, parameter in ctx.run.net.named_parameters():
            if parameter.grad is not None:
                self._total[name] = self._total[name] + parameter.grad if name in self._total else parameter.grad
        return loss

    def checkpoint(self, ctx: base.Context) -> dict[str, Tensor]:
        return self._total

    def restore(self, kept: Mapping[str, Tensor], ctx: base.Context) -> None:
        self._total = {name: total.to(ctx.run.device) for name, total in kept.items()}

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        """One optimiser step along the mean gradient."""
        assert ctx.run.optimizer is not None
        for name, parameter in ctx.run.net.named_parameters():
            parameter.grad = self._total[name] / ctx.run.step if name in self._total else None
        ctx.run.optimizer.step()
        return {}


class Server(base.Server[Config]):
    """Weighted mean of the sites' models."""

    owns = frozenset({"combine"})

    def combine(self, weights: Weights, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> Weights:
        return average(weights, updates, site_fractions(updates, self.config.weights))
