"""FedDyn: a linear term at every site moves its local optimum to the optimum of all sites.

Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, Algorithm 1. At site k, with the received
w and its state g_k, which is 0 at first; at the server, with S the m_S sites that answered of all m sites::

    w_k = argmin f_k(θ) − ⟨g_k, θ⟩ + α/2 ‖θ − w‖²            by local training
    g_k ← g_k − α (w_k − w)                                   the gradient of f_k at w_k, if that is its minimum
    h ← h − α 1/m Σ_S (w_k − w),     w ← 1/m_S Σ_S w_k − h / α

Where local models agree, w_k = w, and their gradients g_k sum to zero: w is an optimum of the mean of all f_k. What is
kept here is l_k = −g_k / α, the sum of all w_k − w, and −h / α, the mean of all l_k, as in the authors' code: the
gradient at a site is ∇f_k + α (θ − w + l_k). The mean is over all m sites, also those that have never answered.

Variants: ``variant: released`` is the code's weighting by amount of data: with n_k of on average n̄ training samples, α
is divided by n_k / n̄, so that w tends to the optimum of Σ n_k f_k.

Deviations from the paper:

- The paper trains with plain SGD. f_k − ⟨g_k, ·⟩ + … is an objective, so the task's optimiser is used, whichever it is.
- h acts on trainable parameters. Running statistics are the mean over sites: the paper's networks have none.
- The code reports scores of the mean of the w_k. Here those of w are reported, the model that is sent.
- The code clips gradients to norm 10: ``--set optimizer.clip_norm=10``.

Choices:

- An update may be lost, and the server's limits (``federation.clip_norm_ratio``) may leave a part of w_k − w only. The
  server tells each site what it has used, so that l_k is what h contains (`fedshift.methods.shared.tally`). Rules and
  noise that leave no such part are refused.
- The linear term covers every parameter, so methods that keep parameters at the site, or fine-tune them there, are
  refused.
- α = 0.01, that of the code's CIFAR-10 example.

Read: the authors' code (alpemreacar/FedDyn, ``utils_methods.py`` and ``utils_general.py``), with which FL-bench agrees;
it has the signs, m and m_S of the formulas above, with equal amounts of data. The paper's text was not at hand for a
second reading.

When: many local steps and sites whose optima differ. As in every round the server moves farther than the mean of the
models, it is quick and less stable than FedAvg: watch the validation scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import nn

from fedshift.methods import base
from fedshift.methods.shared import search, tally
from fedshift.methods.shared.aggregation import average, site_fractions
from fedshift.schema.messages import Arrays, Weights
from fedshift.schema.strict import Strict

SEARCH = {"alpha": search.log(0.001, 0.1)}


class Config(Strict):
    """Options of FedDyn.

    ``alpha``: α. The paper tunes it between 0.001 and 0.1. ``variant``: with ``released`` sites count by samples and
    not equally; they are told the mean number.
    """

    variant: Literal["paper", "released"] = "paper"
    alpha: float = Field(default=0.01, gt=0)


class Client(base.Client[Config]):
    """Adds the linear and the proximal term to every gradient.

    State: l_k, by `tally`.
    """

    in_ranks = frozenset({"begin", "gradients", "end"})
    adds_up_changes = True
    clashes = (
        base.Rule("keeps a model, or parts of it, at the site", "needs every site's change of all parameters"),
        base.Rule("fine-tunes the final model", "would pull it back towards the other sites"),
    )

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        self._arrays = arrays

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        self._alpha = self.config.alpha
        if self.config.variant == "released":
            self._alpha *= float(self._arrays["mean_samples"]) / data.n_train
        self._received = {name: received for name, _, received in ctx.run.received_parameters()}
        self._moved = tally.value_at_site(self._arrays, ctx)

    @torch.no_grad()
    def gradients(self, ctx: base.Context) -> None:
        """Add α (θ − w + l_k) to every gradient."""
        for name, parameter in ctx.run.net.named_parameters():
            if parameter.grad is not None:
                parameter.grad += self._alpha * (parameter - self._received[name] + self._moved[name])

    @torch.no_grad()
    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        """Keep l_k + w_k − w; sends nothing, since the server computes it from the models."""
        parameters = ctx.run.net.named_parameters()
        moved = {name: self._moved[name] + parameter - self._received[name] for name, parameter in parameters}
        tally.keep(self._moved, moved, ctx)
        return {}


class Server(base.Server[Config]):
    """Adds the mean of all sites' past changes to the mean of the models.

    State: ``moved.<parameter>`` is −h / α in float64; the arrays of `tally`, and with ``released`` ``mean_samples``.
    """

    owns = frozenset({"combine"})

    def down(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        if self.config.variant == "paper":
            return tally.specs()
        mean = base.ArraySpec((), "float64", low=0, reveals="mean number of training samples over sites", keep=False)
        return {**tally.specs(), "mean_samples": mean}

    def start(self, net: nn.Module, ctx: base.ServerContext) -> None:
        self.state = {f"moved.{name}": np.zeros(tuple(p.shape)) for name, p in net.named_parameters()}
        self.state |= tally.start(ctx.sites)
        if self.config.variant == "released":
            self.state["mean_samples"] = np.zeros(())

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        """Record what is used; in the statistics round the mean number of samples."""
        if ctx.round == 0:
            if self.config.variant == "released":
                self.state["mean_samples"] = np.asarray(np.mean([update.n_samples for update in updates]))
            return
        self.state |= tally.note(self.state, updates, ctx, change="weights")

    def combine(self, weights: Weights, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> Weights:
        """Return 1/m_S Σ_S w_k − h / α for parameters; buffers are averaged."""
        result = average(weights, updates, site_fractions(updates, "uniform"))
        share = len(updates) / len(ctx.sites)
        for name in sorted(ctx.trainable):
            mean = result[name].astype(np.float64)
            self.state[f"moved.{name}"] = self.state[f"moved.{name}"] + share * (mean - weights[name])
            result[name] = np.asarray(mean + self.state[f"moved.{name}"], weights[name].dtype)
        return result

    def broadcast(self, ctx: base.ServerContext) -> Arrays:
        return {name: array for name, array in self.state.items() if not name.startswith("moved.")}
