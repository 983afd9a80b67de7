"""FedIIR: pull the gradient of every site's classifier to the mean gradient of all sites.

Guo et al., "Out-of-Distribution Generalization of Federated Learning via Implicit Invariant Relationships", ICML 2023.
With φ the parameters of the classifier, f_k the loss of a batch at site k and f̄_k that of all of its training samples::

    site:    f_k + γ ‖∇_φ f_k − m‖²                     differentiated with respect to all parameters
    site:    G_k = ∇_φ f̄_k at the received model
    server:  m ← ema m + (1 − ema) Σ_k n_k G_k / Σ n,   m is 0 at first

The classifier is the network's head.

Deviations from the code:

- The code exchanges twice in a round: gradients at the received model go up and m comes down before training. Here
  they go up with the trained model, so m is that of the rounds before, and round 1 has no term.
- G_k is the gradient over all training samples, un-augmented; the code's is the mean over batches, so sites count by
  their number of batches.
- The code's classifier has three layers for most data sets. Here it is the last layer.

Choices: applies to segmentation too, where the head is the layer that gives the classes of a pixel or voxel. With soft
targets, and with networks of several outputs, f_k is the task's loss of the main output alone. ``gamma`` is γ, 0.001 as
the code has it for PACS (0.01 for rotated MNIST, 0.0005 for OfficeHome), ``ema`` the code's 0.95. As there, m is not
corrected for its start at 0, so that it is short in the first rounds.

Read: the authors' code (YamingGuo98/FedIIR, ``domainbed/algorithms.py`` and ``hparams_registry.py``). FL-bench agrees
but for m, which it does not keep between rounds. The paper's text was not available.

When: the model should work at sites that do not take part. Segmentation too: the head is then the layer that gives a
pixel's classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from fedshift.methods import base
from fedshift.methods.shared import search
from fedshift.methods.shared.head import head_keys
from fedshift.methods.shared.passes import gradient_over, gradient_specs
from fedshift.schema.messages import Arrays
from fedshift.schema.strict import Strict

SEARCH = {"gamma": search.log(1e-4, 1e-2), "ema": search.choice(0.9, 0.95, 0.99)}


class Config(Strict):
    """Options of FedIIR.

    ``gamma``: γ; 0 is ``fedavg``. ``ema``: how much of m stays in a round.
    """

    gamma: float = Field(default=1e-3, ge=0)
    ema: float = Field(default=0.95, ge=0, lt=1)


def head_parameters(net: nn.Module) -> dict[str, nn.Parameter]:
    """The classifier's parameters by network key."""
    keys = head_keys(net)
    return {name: parameter for name, parameter in net.named_parameters() if name in keys}


def misalignment(loss: Tensor, parameters: Sequence[Tensor], mean: Sequence[Tensor]) -> Tensor:
    """‖∇ loss − m‖² over all parameters together, with a gradient of its own."""
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    return torch.stack([(g - m).square().sum() for g, m in zip(gradients, mean, strict=True)]).sum()


class Client(base.Client[Config]):
    """Adds the penalty to the loss and sends the classifier's mean gradient."""

    takes_gradients = True
    needs = (base.Rule("a named head"),)
    clashes = (base.Rule("may keep the head at the site", "compares gradients of one classifier over sites"),)

    def up(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        what = "mean gradient of the last layer over the site's training samples, which hints at how often it has each"
        return gradient_specs(head_parameters(net), f"{what} class", averaged="values")

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        """The server's m. It is all 0 before any gradient has come, and does not come with a final model."""
        self._known = any(array.any() for array in arrays.values())
        names = head_parameters(ctx.run.net) if self._known else ()
        self._mean = [torch.from_numpy(arrays[name]).to(ctx.run.device) for name in names]

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        self._gradient = gradient_over(ctx.run, data, head_parameters(ctx.run.net), method="fediir")

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        """The loss plus γ times the squared distance of the gradients."""
        if not self._known:
            return loss
        parameters = list(head_parameters(ctx.run.net).values())
        return loss + self.config.gamma * misalignment(ctx.run.objective(logits, batch.y), parameters, self._mean)

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        return {name: gradient.cpu().numpy() for name, gradient in self._gradient.items()}


class Server(base.Server[Config]):
    """Averages the gradients over sites and over rounds."""

    def down(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        return gradient_specs(head_parameters(net), "moving average over rounds of the mean gradient over sites")

    def start(self, net: nn.Module, ctx: base.ServerContext) -> None:
        self.state = {name: np.zeros(tuple(p.shape), np.float32) for name, p in head_parameters(net).items()}

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        """Update m with the mean gradient, weighted by samples."""
        if ctx.round == 0:
            return
        total, ema = sum(update.n_samples for update in updates), self.config.ema
        for name, old in self.state.items():
            mean = sum(u.n_samples / total * u.arrays["fediir"][name].astype(np.float64) for u in updates)
            self.state[name] = np.asarray(ema * old.astype(np.float64) + (1 - ema) * mean, np.float32)

    def broadcast(self, ctx: base.ServerContext) -> Arrays:
        return self.state
