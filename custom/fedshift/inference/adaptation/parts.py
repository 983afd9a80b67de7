"""Parts of a network that are trained while all the rest stays, bit for bit, as it was."""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from fedshift.methods.shared.norms import is_norm, module_keys, norm_keys
from fedshift.schema.adaptation import Part
from fedshift.schema.job import JobSpec
from fedshift.tasks import trial
from fedshift.tasks.kinds import build_task
from fedshift.tasks.stages import StagedNetwork


def keys_of(job: JobSpec, part: Part) -> frozenset[str]:
    """``state_dict`` keys of a part of a job's network; empty if the network has no such part."""
    task = build_task(job)
    with torch.device("meta"):
        net = task.network()
    parameters = {name for name, _ in net.named_parameters()}
    if part == "all":
        return frozenset(net.state_dict())
    keys = norm_keys(net, "all") if part == "norm" else _after_bottleneck(net, task.spatial)
    return keys if keys & parameters else frozenset()


def copied_weights(net: nn.Module) -> dict[str, Tensor]:
    """A network's ``state_dict``, which stays as it is while the network is trained."""
    return {key: value.clone() for key, value in net.state_dict().items()}


def _after_bottleneck(net: nn.Module, size: tuple[int, ...]) -> frozenset[str]:
    """Of the modules that begin when the bottleneck, the last of the network's stages, has ended."""
    stages = cast(StagedNetwork, net).stages
    if not stages:
        return frozenset()
    last, every = stages[-1], trial.calls(net, size)
    end = min(call.ended if last.where == "output" else call.began for call in every if call.module is last.module)
    before = {call.name for call in every if call.began <= end}
    after = {call.name for call in every} - before
    return frozenset(key for name, _, keys in module_keys(net) if name in after for key in keys)


@contextmanager
def trained(net: nn.Module, keys: Set[str]) -> Iterator[None]:
    """Only these arrays change: gradients of the parameters among them, and running statistics of their norm layers.

    All other modules are in evaluation mode, dropout too: there are few images and few steps.
    """
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name in keys)
    net.eval()
    for _, module, arrays in module_keys(net):
        if is_norm(module, "batch") and set(arrays) <= keys:
            module.train()
    try:
        yield
    finally:
        net.eval().requires_grad_(True)
        net.zero_grad(set_to_none=True)
