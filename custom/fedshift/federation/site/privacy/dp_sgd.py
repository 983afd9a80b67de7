"""DP-SGD at a site: the gradient of each training subject is clipped, and noise is added to every step.

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016. With N training subjects, clip C and noise multiplier
σ, a step is::

    each subject takes part with probability q, on its own (Poisson sampling)
    g_i = gradient of the loss of one image of subject i, drawn at random, alone
    g   = ( Σ_i g_i · min(1, C / ‖g_i‖) + N(0, σ²C²) ) / (q N)

and the job's optimiser goes along g. q is ``batch_size`` / N, at most 1, and a round has as many steps as without
DP-SGD, so that a step sees as many images as a batch on average. The unit of protection is the subject (a patient with
all scans, as far as their names say so: `fedshift.data.splits.subject_of`; or a picture), as in all of the policy,
though per-sample gradients are of single images: a subject that takes part does so with one image.

σ follows from (ε, δ) for all steps of all rounds: by Opacus' PRV accountant (Gopi, Lee & Wutschitz, NeurIPS 2021), or
exactly if q = 1. Both count a subject as one that is there or whose gradient is zero. N, q and the number of steps do
not depend on whether it is, and are public. The accountant assumes Poisson sampling, so batches are drawn like that and
not from shuffled epochs: they differ in size, and may be empty, which is a step of noise alone. Who takes part and the
noise come from the site's secret, since the server knows the job's seed and the assumption is that it cannot tell.

Per-sample gradients, clipping and virtual batches (a drawn batch goes through the network in parts of `PART` images)
are Opacus'. Each image is augmented, and its loss is computed, alone: a Dice loss over a batch would mix its images.
Training is in float32 whatever the job's precision.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from fedshift.data.samples import epoch_starts
from fedshift.federation import footprint
from fedshift.federation.site.checkpoint import Loop
from fedshift.federation.site.privacy.accounting import Mechanism, noise_multiplier
from fedshift.methods import base
from fedshift.methods.base import Batch, Run
from fedshift.methods.chain import ClientChain
from fedshift.methods.method_set import MethodSet
from fedshift.schema.errors import ConfigError, Stopped
from fedshift.schema.policy import DpSgd
from fedshift.schema.seeding import derive_seed, seeded_global
from fedshift.schema.task import ScheduleSpec
from fedshift.tasks.base import ClassifyingTask, SiteData, Task
from fedshift.tasks.losses import Logits
from fedshift.tasks.out_of_memory import batch_out_of_memory, is_out_of_memory

log = logging.getLogger("fedshift")

PART = 8
"""Images that go through the network at once: each has its own gradient of all parameters in memory."""
TOLERANCE = 0.01
"""Of ε, to which the accountant finds and computes it; a hundredth of an ε below 1."""
LEAST_ERROR = 1e-3
"""Smallest error in ε that the accountant is asked for: its time and memory grow with the inverse."""
HOOKS = ("attach", "begin", "augment", "inputs", "batch", "loss", "gradients", "step", "end")
"""Of a method's client half: where it could mix samples, or use the site's data beside the clipped gradients."""
Draw = Callable[[str, tuple[int, ...]], np.ndarray]
"""Random numbers of the site's own for a purpose and a shape."""


@dataclass(frozen=True)
class Plan:
    """The noise and the steps of a job at a site; ``steps`` are those of a round."""

    clip: float
    multiplier: float
    sampling_rate: float
    steps: int

    def mechanism(self, rounds: int = 1) -> Mechanism:
        """For the account."""
        return Mechanism(self.multiplier, self.sampling_rate, self.steps * rounds)


def make_plan(noise: DpSgd, schedule: ScheduleSpec, *, images: int, subjects: int) -> Plan:
    """Work out the noise of a policy for a job at a site with so many training images, of so many subjects.

    Raises:
        ConfigError: Opacus is not installed, or no noise is enough.
    """
    epoch = epoch_starts(images, batch_size=schedule.batch_size, drop_last=schedule.drop_last)
    steps = schedule.steps(len(epoch))
    rate = min(1.0, schedule.batch_size / subjects)
    return Plan(noise.clip, _multiplier(noise.epsilon, noise.delta, rate, steps * schedule.rounds), rate, steps)


@lru_cache
def _multiplier(epsilon: float, delta: float, rate: float, steps: int) -> float:
    if rate == 1:
        return noise_multiplier(epsilon, delta, steps)
    _opacus()
    from opacus.accountants.utils import get_noise_multiplier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            multiplier = get_noise_multiplier(
                target_epsilon=epsilon,
                target_delta=delta,
                sample_rate=rate,
                steps=steps,
                accountant="prv",
                epsilon_tolerance=min(TOLERANCE, epsilon / 100),
                eps_error=min(TOLERANCE, max(epsilon / 100, LEAST_ERROR)),
            )
        except ValueError:
            raise ConfigError(
                "no-such-noise",
                f"privacy.dp_sgd.epsilon: no noise gives {epsilon:g} at delta {delta:g} over {steps} steps: set a "
                "larger one at the site",
            ) from None
    return float(multiplier)


def refusal(methods: MethodSet, task: Task) -> str:
    """Why DP-SGD cannot protect a job, as the end of a sentence; empty if it can."""
    for name, module in methods.net.named_modules():
        if isinstance(module, _BatchNorm):
            return (
                f"layer {name} is batch norm, which mixes the samples of a batch: choose a network with instance or "
                "group norm"
            )
        if isinstance(module, _InstanceNorm) and module.track_running_stats:
            return f"layer {name} keeps running statistics of the images: choose a network without"
    for method in methods:
        half = method.client()
        for hook in HOOKS:
            changed = getattr(type(half), hook) is not getattr(base.Client, hook)
            if changed and hook not in half.per_sample:
                return (
                    f"method {method.name} changes training ({hook}) in a way that the clipped gradients of single "
                    "cases do not cover: choose a method that only aggregates differently, such as fedavg, fedbn or "
                    "fedavgm"
                )
    if not task.dense and (setting := cast(ClassifyingTask, task).measures_labels):
        return f"{setting} makes the training of a case depend on the labels of others: leave it out, or give weights"
    return _try_gradients(methods, task)


def _try_gradients(methods: MethodSet, task: Task) -> str:
    """Why Opacus gives no gradients of single samples in a job's network; empty if it does."""
    net = copy.deepcopy(methods.net).train()
    device = next(net.parameters()).device
    try:
        with seeded_global(0), _sample_gradients(net):
            x, y = footprint.noise(net, task, 1)
            _backward(task, net, Batch(x.to(device), y.to(device)))
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        log.debug("one step of DP-SGD on noise failed", exc_info=True)
        return (
            f"Opacus gives no gradients of single cases in {methods.job.task.network.name}: choose another network, "
            "such as monai.BasicUNet or monai.UNet"
        )
    return ""


@dataclass(frozen=True)
class PrivateTraining:
    """DP-SGD in place of a round's ordinary training (`fedshift.federation.site.local_training.train`)."""

    plan: Plan
    normal: Draw
    chances: Draw

    def train(
        self, task: Task, data: SiteData, chain: ClientChain, run: Run, loop: Loop | None = None
    ) -> tuple[int, float]:
        """Train for one round. Returns the number of optimiser steps and the mean loss, which must not leave the site.

        ``loop`` is as in `local_training.train`, and so is the error if memory runs out, where `PART` is the batch.
        Noise and draws of a step are the same whenever it is made.
        """
        net, plan = run.net, self.plan
        subjects, subject_of = np.unique(data.subjects_of(data.cases("train")), return_inverse=True)
        members = [np.flatnonzero(subject_of == subject) for subject in range(len(subjects))]
        device = next(net.parameters()).device
        loop = loop or Loop()
        most = PART if run.part is None else run.part
        run.steps = plan.steps
        net.train()
        with seeded_global(derive_seed(run.seed, run.site, run.round, "layers")), _sample_gradients(net):
            losses: list[float] = loop.resume(run, chain).get("losses", [])
            optimizer = self._optimizer(run, expected=plan.sampling_rate * len(subjects))
            for step in range(run.step, plan.steps):
                if run.stop():
                    raise Stopped("stopped", f"site {run.site}, round {run.round}: stopped before it was done")
                takes_part = self.chances(f"cases of step {step}", (len(subjects),)) < plan.sampling_rate
                image, seed = self.chances(f"images of step {step}", (2, len(subjects)))
                drawn = [(members[k][int(image[k] * len(members[k]))], seed[k]) for k in np.flatnonzero(takes_part)]
                parts = [drawn[start : start + most] for start in range(0, len(drawn), most)] or [[]]
                optimizer.zero_grad(set_to_none=True)
                for number, part in enumerate(parts, start=1):
                    with batch_out_of_memory(run.site, run.round):
                        if part:
                            index, seeds = (np.array(column) for column in zip(*part, strict=True))
                            x, y = data.train_batch(index, seeds=torch.from_numpy((seeds * 2**53).astype(np.int64)))
                            batch = chain.batch(Batch(x.to(device), y.to(device)))
                            losses += _backward(task, net, batch)
                        _complete(net, len(part))
                        optimizer.signal_skip_step(number < len(parts))
                        optimizer.step()
                        optimizer.zero_grad(set_to_none=True)
                run.step += 1
                loop.keep(run, chain, {"losses": losses})
        return run.step, float(np.mean(losses)) if losses else 0.0

    def _optimizer(self, run: Run, *, expected: float) -> Any:
        """Opacus' optimiser around the round's, with noise from the site's secret."""
        from opacus.optimizers import DPOptimizer

        names = {parameter: name for name, parameter in run.net.named_parameters()}
        normal = self.normal

        class Optimizer(DPOptimizer):  # type: ignore[misc]
            def add_noise(self) -> None:
                for parameter in self.params:
                    drawn = normal(f"step {run.step}: {names[parameter]}", tuple(parameter.shape))
                    noise = torch.from_numpy(self.noise_multiplier * self.max_grad_norm * drawn)
                    parameter.grad = (parameter.summed_grad + noise.to(parameter)).view_as(parameter)

        optimizer = Optimizer(
            run.optimizer,
            noise_multiplier=self.plan.multiplier,
            max_grad_norm=self.plan.clip,
            expected_batch_size=expected,
        )
        if run.clip_norm is not None:
            norm = run.clip_norm
            optimizer.attach_step_hook(lambda _: nn.utils.clip_grad_norm_(run.net.parameters(), norm))
        return optimizer


def _backward(task: Task, net: nn.Module, batch: Batch) -> list[float]:
    """Set every parameter's gradient for each sample. Returns the samples' losses."""
    logits: Logits = net(batch.x)
    losses = torch.stack([task.loss(_sample(logits, i), batch.y[i : i + 1]) for i in range(len(batch.x))])
    losses.sum().backward()  # type: ignore[no-untyped-call]
    values: list[float] = losses.detach().tolist()
    return values


def _sample(logits: Logits, i: int) -> Logits:
    return logits[i : i + 1] if isinstance(logits, Tensor) else [part[i : i + 1] for part in logits]


def _complete(net: nn.Module, samples: int) -> None:
    """Zeros for parameters that took no part: of an empty batch, or of an output that the loss does not use."""
    for parameter in net.parameters():
        if getattr(parameter, "grad_sample", None) is None:
            parameter.grad_sample = parameter.new_zeros((samples, *parameter.shape))  # type: ignore[attr-defined]


@contextmanager
def _sample_gradients(net: nn.Module) -> Iterator[None]:
    """Have every backward pass keep each sample's gradients, and leave no trace afterwards."""
    opacus = _opacus()
    # Opacus looks at what layers give; activations that overwrite it are in the way.
    overwriting = [module for module in net.modules() if getattr(module, "inplace", False) is True]
    for module in overwriting:
        module.inplace = False  # type: ignore[assignment]
    # It reads the input of a convolution as if it were contiguous, and would be wrong without a word.
    ordered = [module.register_forward_pre_hook(_contiguous) for module in net.modules() if isinstance(module, _ConvNd)]
    hooks = opacus.GradSampleHooks(net, loss_reduction="sum")
    try:
        with warnings.catch_warnings():
            # The first layer's gradient with respect to the images is not needed.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            yield
    finally:
        hooks.cleanup()
        for handle in ordered:
            handle.remove()
        for parameter in net.parameters():
            parameter.grad = None
            for name in ("grad_sample", "summed_grad", "_forward_counter", "_current_grad_sample"):
                if hasattr(parameter, name):
                    delattr(parameter, name)
        for module in net.modules():
            for name in ("activations", "max_batch_len"):
                if hasattr(module, name):
                    delattr(module, name)
        for module in overwriting:
            module.inplace = True  # type: ignore[assignment]


def _contiguous(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.contiguous() for x in inputs)


def _opacus() -> ModuleType:
    try:
        from opacus.grad_sample import grad_sample_module
    except ImportError:
        raise ConfigError(
            "not-installed",
            "privacy.dp_sgd needs Opacus, which is not installed here: pip install 'fedshift[dp]' at the site",
        ) from None
    return grad_sample_module  # type: ignore[no-any-return]
