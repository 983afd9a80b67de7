"""SCAFFOLD: correct each local step by the difference between all sites' mean gradient and the site's own.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020. Control variates c
(server) and c_i (site i) estimate the mean gradient of all sites and of site i; both start at zero. At site i, K local
steps of size lr lead from the received x to y_i::

    y ← y − lr (g_i(y) + c − c_i)
    c_i⁺ = g_i(x), the gradient over all training samples                     (option I)
    c_i⁺ = c_i − c + (x − y_i) / (K lr)                                       (option II)

At the server, with S the sites that answered and N all sites::

    x ← x + η mean_S (y_i − x),    c ← c + 1/N Σ_S (c_i⁺ − c_i)

Deviations from the paper:

- The paper uses plain SGD. Momentum is allowed here if it starts at zero in each round. K is then the sum of the
  steps' weights, a (`effective_steps`): x − y_i = lr Σ_k a_k (g_k + c − c_i) with Σ_k a_k = a, so option II still
  yields a mean gradient.
- Batch-norm statistics are averaged. The benchmark NIID-Bench averages by sample count (``weights: samples``) and
  corrects batch-norm statistics too.

Choices:

- An update may be lost, and the server's limits (``federation.clip_norm_ratio``) may leave a part of c_i⁺ − c_i only.
  The server tells each site what it has used, so that c_i is what c contains (`fedshift.methods.shared.tally`). Rules
  and noise that leave no such part are refused.
- Option I computes the gradient over un-augmented samples in training mode, with running statistics frozen.
- The corrections cover every parameter, so methods that keep parameters at the site, or fine-tune them there, are
  refused; so is clipping (``optimizer.clip_norm``, ``fedwon.clip``), after which the change is no mean gradient.

When: many local steps and sites whose optima differ. Option I needs short rounds: with many steps and unequal
curvatures it can diverge where II does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from fedshift.methods import base
from fedshift.methods.shared import search, tally
from fedshift.methods.shared.aggregation import effective_steps, move, site_fractions
from fedshift.methods.shared.passes import gradient_over, gradient_specs
from fedshift.schema.messages import Arrays, Weights
from fedshift.schema.strict import Strict

CHANGE = "it derives the mean gradient from the change of the weights"
SEARCH = {"server_lr": search.log(0.3, 3)}


class Config(Strict):
    """Options of SCAFFOLD.

    ``option``: how c_i is updated. ``weights``: ``uniform`` as the paper, or ``samples`` n_k/n as NIID-Bench.
    ``server_lr``: η.
    """

    option: Literal["I", "II"] = "II"
    weights: Literal["uniform", "samples"] = "uniform"
    server_lr: float = Field(default=1.0, gt=0)


def mean_gradient(ctx: base.Context, data: base.TrainingSamples) -> dict[str, Tensor]:
    """Gradient of the task's loss over the training samples, by parameter name; the network is left unchanged."""
    return gradient_over(ctx.run, data, dict(ctx.run.net.named_parameters()), method="scaffold")


class Client(base.Client[Config]):
    """Corrects gradients and sends the change of its control variate.

    State: c_i, by `tally`.
    """

    in_ranks = frozenset({"begin", "gradients", "end"})
    adds_up_changes = True
    needs = (
        base.Rule("SGD"),
        base.Rule("momentum that begins at zero in each round", CHANGE),
        base.Rule("SGD with plain momentum", CHANGE),
        base.Rule("gradients that nothing clips", CHANGE),
    )
    clashes = (
        base.Rule("keeps a model, or parts of it, at the site", "corrects and sends the gradients of all parameters"),
        base.Rule("clips gradients", "derives the mean gradient from the change of the weights"),
        base.Rule("fine-tunes the final model", "would pull it back towards the other sites"),
    )

    def up(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        what = "change of the site's mean gradient since its last update"
        return gradient_specs(dict(net.named_parameters()), what, averaged="changes")

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        self._arrays = arrays

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        """Choose the c_i that the server's c contains, compute c − c_i, and for option I the gradient at x."""
        self._controls = tally.value_at_site(self._arrays, ctx)
        self._correction = {
            name: torch.from_numpy(self._arrays[name]).to(control) - control for name, control in self._controls.items()
        }
        self._gradient = mean_gradient(ctx, data) if self.config.option == "I" else {}

    @torch.no_grad()
    def gradients(self, ctx: base.Context) -> None:
        for name, parameter in ctx.run.net.named_parameters():
            if parameter.grad is not None:
                parameter.grad += self._correction[name]

    @torch.no_grad()
    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        optimizer = ctx.run.optimizer
        assert optimizer is not None
        steps = effective_steps(ctx.run.step, float(optimizer.param_groups[0]["momentum"]))
        arrays: Arrays = {}
        sent = {}
        for name, parameter, x in ctx.run.received_parameters():
            if self.config.option == "I":
                sent[name] = self._gradient[name]
            else:
                sent[name] = (x - parameter) / (steps * ctx.run.lr) - self._correction[name]
            arrays[name] = (sent[name] - self._controls[name]).cpu().numpy().copy()
        tally.keep(self._controls, sent, ctx)
        return arrays


class Server(base.Server[Config]):
    """Applies the mean change of the models, updates c, and records which part of each site's change it used."""

    owns = frozenset({"combine"})

    def down(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        return {**gradient_specs(dict(net.named_parameters()), "the mean gradient over all sites"), **tally.specs()}

    def start(self, net: nn.Module, ctx: base.ServerContext) -> None:
        self.state = {name: np.zeros_like(p.detach().cpu().numpy()) for name, p in net.named_parameters()}
        self.state |= tally.start(ctx.sites)

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        """Add 1/N Σ (c_i⁺ − c_i) to c; sites that did not answer contribute nothing."""
        if ctx.round == 0:
            return
        for name in sorted(ctx.trainable):
            change = sum(update.arrays["scaffold"][name].astype(np.float64) for update in updates)
            self.state[name] = np.asarray(self.state[name] + change / len(ctx.sites), self.state[name].dtype)
        self.state |= tally.note(self.state, updates, ctx, change="scaffold")

    def combine(self, weights: Weights, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> Weights:
        """Return x + η mean (y_i − x); buffers are averaged."""
        fractions = site_fractions(updates, self.config.weights)
        moves = [self.config.server_lr * fraction for fraction in fractions]
        return move(weights, updates, moves, trainable=ctx.trainable, buffers=fractions)

    def broadcast(self, ctx: base.ServerContext) -> Arrays:
        return self.state
