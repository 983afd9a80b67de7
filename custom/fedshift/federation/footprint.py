"""How much memory a network's training takes, seen on a few images."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import cast

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from fedshift.data.locate import read_settings
from fedshift.federation.memory import Measured
from fedshift.schema.job import JobSpec
from fedshift.schema.task import Precision
from fedshift.tasks.base import Task
from fedshift.tasks.device import choose_device
from fedshift.tasks.kinds import build_task
from fedshift.tasks.precision import autocast, prepare, settled
from fedshift.tasks.stages import StagedNetwork

CPU = torch.device("cpu")
FEW = 2
"""Images; batch norms need more than one."""


def measure(job: JobSpec, *, several: bool = False) -> Measured:
    """What a run of the job on this machine depends on. It uses the GPUs, so a process that is to be forked may not.

    ``several``: whether the run's processes are dealt to all GPUs, where none was named.
    """
    asked = read_settings(None).device
    device = choose_device(asked)
    measured = footprint(job, precision=settled(job.task.schedule.precision, device))
    if device.type != "cuda":
        return measured
    used = range(torch.cuda.device_count()) if several and asked == "auto" else (device,)
    return replace(measured, gpus=tuple(torch.cuda.mem_get_info(number)[0] for number in used))


def footprint(job: JobSpec, *, precision: Precision | None = None) -> Measured:
    """A forward pass of the job's network on noise, on the CPU; ``precision`` in place of the job's."""
    built, precision = build_task(job), precision or job.task.schedule.precision
    net = prepare(built.network(), precision, CPU).train()
    few, more = (_kept(net, built, precision, n) for n in (FEW, FEW + 1))
    return Measured(
        activations=max(more - few, 1),  # without what is kept once, such as weights in bf16
        network=sum(value.nbytes for value in (*net.parameters(), *net.buffers())),
        evaluation=evaluation_of(built),
    )


def evaluation_of(built: Task) -> int:
    """Bytes that evaluation holds at once, of float32."""
    return 4 * prod(built.spatial) * built.evaluated


def _kept(net: nn.Module, built: Task, precision: Precision, n: int) -> int:
    """Bytes that a forward pass of ``n`` images leaves."""
    x, y = noise(net, built, n)
    saved: dict[int, int] = {}

    def keep(value: torch.Tensor) -> torch.Tensor:
        saved[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value.detach()  # an output that is kept by what made it would never be freed

    with saved_tensors_hooks(keep, lambda value: value):
        with autocast(precision, CPU):
            logits = net(x)
        loss = built.loss(logits, y)
    del loss  # it held all that was kept, so that no two had one address
    return sum(saved.values())


def noise(net: nn.Module, built: Task, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``n`` images of the task's shape and targets that mean nothing."""
    x = torch.rand(n, cast(StagedNetwork, net).in_channels, *built.spatial)
    if built.findings:
        return x, torch.randint(2, (n, *built.sizes["classes"])).float()
    shape = (n, *built.spatial) if built.dense else (n,)
    return x, torch.randint(built.sizes["classes"][0], shape)
