"""Normalisation layers of a network: their keys, and their running statistics from a site's own images."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedshift.methods.base import Run, TrainingSamples
from fedshift.schema.seeding import generator
from fedshift.tasks.norms import Norms as Norms
from fedshift.tasks.norms import is_norm as is_norm


class Replaced(RemovableHandle):
    """Another ``forward`` of a module, until it is removed."""

    def __init__(self, module: Any, forward: Callable[..., Tensor]) -> None:
        """``forward`` takes the module and what its own takes."""
        super().__init__(OrderedDict())
        self._module = module
        module.forward = MethodType(forward, module)

    def remove(self) -> None:
        self._module.__dict__.pop("forward", None)


def module_keys(net: nn.Module) -> Iterator[tuple[str, nn.Module, tuple[str, ...]]]:
    """Name, module and ``state_dict`` keys of every module that holds parameters or buffers itself."""
    stored = net.state_dict().keys()
    for name, module in net.named_modules(remove_duplicate=False):
        prefix = f"{name}." if name else ""
        names = [key for key, _ in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))]
        keys = tuple(prefix + key for key in names if prefix + key in stored)
        if keys:
            yield name, module, keys


def norm_keys(net: nn.Module, norms: Norms) -> frozenset[str]:
    """``state_dict`` keys of normalisation layers."""
    return frozenset(key for _, module, keys in module_keys(net) if is_norm(module, norms) for key in keys)


def trainable(chunks: Iterable[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, ...]]:
    """Chunks without a last one of one sample where others are larger; images come first in each.

    One image has no variance after pooling, and batch norm refuses it. Chunks of large patches have one sample each,
    whose voxels are enough.
    """
    largest = 0
    for chunk in chunks:
        size = len(chunk[0])
        largest = max(largest, size)
        if size > 1 or largest == 1:
            yield chunk


@torch.no_grad()
def re_estimate(net: nn.Module, data: TrainingSamples, run: Run) -> None:
    """Set running statistics to the mean of the batches' statistics over the site's training images, shuffled by seed.

    Only normalisation layers are in training mode. Dropout and other methods' layers stay in evaluation mode.
    """
    # Frozen ones (`fedshift.tasks.adapters`) are in no state_dict.
    norms: list[Any] = [m for _, m, _ in module_keys(net) if is_norm(m, "batch") and hasattr(m, "momentum")]
    if not norms:
        return
    momenta, was_training = [m.momentum for m in norms], net.training
    device = next(net.parameters()).device
    net.eval()
    for norm in norms:
        norm.train()
    n_images = 0
    try:
        order = generator(run.seed, run.site, run.round, "running statistics")
        for (x,) in trainable((x,) for x in data.images_alone(order)):
            n_images += len(x)
            for norm in norms:
                norm.momentum = len(x) / n_images  # a mean over images so far; the first chunk replaces what was there
            net(run.normalise(x.to(device), training=False))
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        net.train(was_training)
