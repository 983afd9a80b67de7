"""PN: batch norms normalise by statistics that are trained, not measured in batches.

Wang et al., "Population Normalization for Federated Learning", CVPR 2025. Batch norm normalises by the mean and
variance of a batch in training and by running statistics in evaluation, and both differ between sites and with the
batch. Here μ_c and v_c of each channel c are parameters, trained by the loss like scale γ_c and shift β_c::

    y_c = γ_c (x_c − μ_c) / √(v_c + ε) + β_c          in training and evaluation, at every site
    (w, γ, β, μ, v) ← one optimiser step of the task's loss
    server:  μ, v ← Σ c_k (μ_k, v_k)                  (c_k: the sites' shares of the samples)

Nothing in a pass compares samples, so that a batch of one image trains. What is trained lies where batch norm has its
running statistics: the model's keys stay, and a prediction needs nothing of PN. Random weights begin with μ = 0 and
v = 1; weights from a file with the statistics that they come with.

Deviations: v stays at `LEAST` or above after each step, as a square root needs and the server demands; in the code that
was read nothing keeps it positive. μ and v have an optimiser of the task's type with its settings but for weight decay,
which would pull v to 0; its state is kept between rounds if that of the task's optimiser is. The noise that the paper
adds with large batches, to mimic that of batches' statistics, is left out: its form is not in what was read.

Read: the paper's abstract, and FL-MedSegBench's reading of it (arXiv:2603.11659), whose layer has these parameters. The
paper's text was not at hand.

When: batches are small, or batch norm's statistics differ so much between sites that the averaged ones suit none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from fedshift.methods import base
from fedshift.methods.shared.auxiliary import like, optimizer_tensors, restore_optimizer, under
from fedshift.methods.shared.norms import Replaced
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Arrays
from fedshift.schema.strict import Strict

LEAST = 1e-5
"""The smallest variance."""
OPTIMIZER = "optimizer."


class Config(Strict):
    """No options."""


def batch_norms(net: nn.Module) -> list[_BatchNorm]:
    """Those with running statistics, in the network's order."""
    return [m for m in net.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]


def normalised(x: Tensor, norm: _BatchNorm, mean: Tensor, variance: Tensor) -> Tensor:
    """Features (B, C, *spatial) normalised, in their dtype; ``mean`` and ``variance`` are (C,)."""
    scale = (variance + norm.eps).rsqrt()
    if norm.affine:
        scale = scale * norm.weight
    shift = -mean * scale
    if norm.affine:
        shift = shift + norm.bias
    scale, shift = (each.to(x.dtype).reshape(-1, *[1] * (x.dim() - 2)) for each in (scale, shift))
    return x * scale + shift


class Client(base.Client[Config]):
    """Trains running statistics. State: their optimiser, under ``optimizer.``."""

    needs = (base.Rule("norms that are trained"),)
    least_part = 1
    removes_norms = True
    takes_gradients = True  # of the statistics, which are no parameters of the network that a graph would know
    traits = (base.Rule("replaces normalisation layers"),)
    clashes = (
        base.Rule("may keep norms, and not the rest, at the site", "trains the same statistics for all sites"),
        base.Rule("replaces normalisation layers", "replaces them in another way"),
    )

    def check(self, job: JobSpec, net: nn.Module) -> None:
        if not batch_norms(net):
            raise ConfigError(
                "method-needs",
                f"method pn: trains batch norms' running statistics, and network {job.task.network.name} has none: "
                "choose a network with batch norm, or leave pn out",
            )

    def attach(self, net: nn.Module, ctx: base.Context) -> list[RemovableHandle]:
        """Normalise by the statistics in training too."""
        self._trained: dict[int, tuple[Tensor, Tensor]] = {}

        def normalise(norm: Any, x: Tensor) -> Tensor:
            if not norm.training:
                return cast(Tensor, type(norm).forward(norm, x))
            return normalised(x, norm, *self._trained.get(id(norm), (norm.running_mean, norm.running_var)))

        return [Replaced(norm, normalise) for norm in batch_norms(net)]

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        """Train the statistics where they lie: the parameters share the buffers' memory."""
        assert ctx.run.optimizer is not None
        self._norms = batch_norms(ctx.run.net)
        for norm in self._norms:
            mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
            self._trained[id(norm)] = mean.detach().requires_grad_(), variance.detach().requires_grad_()
        self._parameters = [tensor for norm in self._norms for tensor in self._trained[id(norm)]]
        self._optimizer = like(ctx.run.optimizer, self._parameters)
        self._optimizer.param_groups[0]["weight_decay"] = 0.0
        if ctx.run.optimizer.state:  # it was restored, so the task keeps it
            restore_optimizer(self._optimizer, under(OPTIMIZER, ctx.state))

    @torch.no_grad()
    def gradients(self, ctx: base.Context) -> None:
        """Take the step of the statistics, whose gradients came with the network's."""
        if not ctx.run.replay:
            if ctx.run.clip_norm is not None:
                nn.utils.clip_grad_norm_(self._parameters, ctx.run.clip_norm)
            self._optimizer.step()
            for norm in self._norms:
                cast(Tensor, norm.running_var).clamp_min_(LEAST)
        self._optimizer.zero_grad(set_to_none=True)

    def checkpoint(self, ctx: base.Context) -> dict[str, Tensor]:
        return {OPTIMIZER + key: value for key, value in optimizer_tensors(self._optimizer).items()}

    def restore(self, kept: Mapping[str, Tensor], ctx: base.Context) -> None:
        restore_optimizer(self._optimizer, under(OPTIMIZER, kept))

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        """Keep the optimiser's state at the site; sends nothing."""
        ctx.state.clear()
        ctx.state.update(self.checkpoint(ctx))
        return {}
