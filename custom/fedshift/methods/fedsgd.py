"""FedSGD: one step a round, along the mean of all sites' gradients at the same weights.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, where it is
the baseline of FedAvg. From the received w, with g_b the gradient at w of the round's b-th batch::

    w_k = w − lr/B Σ_b g_b(w)        at site k
    w   ← Σ_k c_k w_k,    c_k = n_k / Σ n   (weights: samples)   or   1 / K   (weights: uniform)

which is one step of gradient descent on Σ_k c_k f_k.

Deviations: the paper's gradient is over all of a site's samples; here it is the mean over the round's batches, with
their augmentation: all samples but a last partial batch with ``local_epochs: 1``, so many batches with ``local_steps``
(with ``local_steps: 1`` it is FedAvg with one step). Batch norms normalise by batch and their running statistics move
with each, as in other training.

Choices: a site sends w_k, which tells the server as much as the gradient. Weight decay is part of the gradient at w.
Plain SGD only: for momentum use fedavgm, which has it at the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from fedshift.methods import base
from fedshift.methods.shared.aggregation import average, site_fractions
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Arrays, Weights
from fedshift.schema.strict import Strict


class Config(Strict):
    """Options of FedSGD."""

    weights: Literal["samples", "uniform"] = "samples"


class Client(base.Client[Config]):
    """Adds up gradients and takes one step at the end of the round."""

    owns = frozenset({"step"})

    def __init__(self, config: Config) -> None:
        """Nothing added up yet."""
        super().__init__(config)
        self._total: dict[str, Tensor] = {}

    def check(self, job: JobSpec, net: nn.Module) -> None:
        """Plain SGD; nothing that trains a site's model on."""
        optimizer = job.task.optimizer
        if optimizer.name != "sgd":
            raise ConfigError(
                f"method fedsgd: is one step of SGD, not {optimizer.name}: use --set optimizer.name=sgd optimizer.lr=…"
            )
        if optimizer.momentum > 0:
            raise ConfigError(
                "method fedsgd: takes one plain step a round; for momentum, which belongs to the server then, use "
                "--set optimizer.momentum=0 or method fedavgm with schedule.local_steps=1"
            )

    def check_beside(self, name: str, other: base.Client[Any], net: nn.Module) -> None:
        """Refuse fine-tuning, which needs steps at one site."""
        if other.fine_tune():
            raise ConfigError(
                f"method fedsgd: takes one step a round and so cannot do {name}'s fine-tuning: leave one of them out"
            )

    def step(self, closure: Callable[[], Tensor], ctx: base.Context) -> Tensor:
        """The gradient of one more batch; the network stays where it is."""
        loss = closure()
        for name, parameter in ctx.run.net.named_parameters():
            if parameter.grad is not None:
                self._total[name] = self._total[name] + parameter.grad if name in self._total else parameter.grad
        return loss

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        """One step along the mean."""
        assert ctx.run.optimizer is not None
        for name, parameter in ctx.run.net.named_parameters():
            parameter.grad = self._total[name] / ctx.run.step if name in self._total else None
        ctx.run.optimizer.step()
        return {}


class Server(base.Server[Config]):
    """The weighted mean."""

    owns = frozenset({"combine"})

    def combine(self, weights: Weights, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> Weights:
        """Σ_k c_k w_k, tensor by tensor."""
        return average(weights, updates, site_fractions(updates, self.config.weights))
