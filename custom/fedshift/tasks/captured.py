"""A network's training passes as CUDA graphs: a GPU is given all kernels of a pass at once, and not layer by layer.

Small networks keep a GPU waiting for Python, which launches some hundred kernels a step. A captured pass has the same
bits, and is used only after it has given them (`fedshift.federation.site.passes`). Layers that a method attached run as
before: the parts of the network without them are captured, each by itself. Whatever is not as it was at the capture,
such as a frozen parameter or another size of batch, goes layer by layer.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedshift.runtime.segmentation import uses_bf16
from fedshift.schema.errors import ConfigError
from fedshift.schema.task import Precision
from fedshift.tasks.losses import Logits
from fedshift.tasks.precision import autocast

log = logging.getLogger("fedshift")

SWITCH = "FEDSHIFT_CUDA_GRAPHS"
"""Environment variable: ``off`` has every pass go layer by layer, ``on`` is the default."""

MOST = 2
"""Sizes of batch, or other states of the network, whose passes are kept: a graph keeps all the memory that it needs."""

Graphed = Callable[..., Any]
MakeGraphs = Callable[..., Sequence[Graphed]]
"""`torch.cuda.make_graphed_callables` of modules and a tuple of arguments for each, in the order of their calls."""


class Captured:
    """The training passes of a network, captured for the last sizes of batch that `capture` was given."""

    def __init__(self, net: nn.Module, precision: Precision, *, make: MakeGraphs | None = None) -> None:
        """``net`` as its job made it, before any method attached layers to it."""
        self._net, self._precision = net, precision
        self._make = make or torch.cuda.make_graphed_callables
        self._modules, self._parameters = list(net.modules()), list(net.parameters())
        self._hooks = [_hooks(module) for module in self._modules]
        self._parts: dict[Hashable, list[_Part]] = {}

    def __call__(self, x: Tensor) -> Logits:
        """What the network gives for images (B, C, *spatial)."""
        parts = self._parts.get(self._state(x), []) if self._parts else []
        if len(parts) == 1 and parts[0].module is self._net:
            logits: Logits = parts[0](x)
            return logits
        with _replaced(parts):
            return self.layer_by_layer(x)

    def layer_by_layer(self, x: Tensor) -> Logits:
        """As by `__call__`, without what was captured."""
        with autocast(self._precision, x.device):
            logits: Logits = self._net(x)
        return logits

    def covers(self, x: Tensor) -> bool:
        """Whether `capture` was called for such images and for the network as it is now."""
        return self._state(x) in self._parts

    def capture(self, x: Tensor) -> None:
        """Capture the passes for images such as ``x``. Running statistics move, and random numbers are drawn.

        Nothing else may use the device meanwhile.
        """
        state = self._state(x)
        while len(self._parts) >= MOST:
            del self._parts[next(iter(self._parts))]
        self._parts[state] = []
        parts = self._find_parts(x)
        graphed = self._make(
            tuple(_InPrecision(part.module, self._precision) for part in parts),
            tuple(part.arguments for part in parts),
            allow_unused_input=True,
        )
        for part, module in zip(parts, graphed, strict=True):
            part.graphed = module
        self._parts[state] = parts

    @property
    def parts(self) -> list[nn.Module]:
        """The network, or its parts, that have been captured, for all sizes of batch together."""
        return [part.module for parts in self._parts.values() for part in parts]

    def release_gradients(self) -> None:
        """Give the gradients memory of their own: the next captured pass writes over what this one gave."""
        gradients = {parameter: parameter.grad for parameter in self._parameters if parameter.grad is not None}
        copies = torch._foreach_mul(list(gradients.values()), 1.0)  # all in one kernel
        for parameter, copy in zip(gradients, copies, strict=True):
            parameter.grad = copy

    def clear(self) -> None:
        """Give back the memory of all that was captured."""
        self._parts.clear()

    def drop(self, x: Tensor) -> None:
        """From now on, have images such as ``x`` go layer by layer."""
        self._parts[self._state(x)] = []

    def _state(self, x: Tensor) -> Hashable:
        """All that a captured pass takes for granted."""
        return (
            (x.shape, x.dtype, x.device, x.requires_grad),
            tuple((parameter.data_ptr(), parameter.requires_grad) for parameter in self._parameters),
            tuple((module.training, module.__dict__.get("forward")) for module in self._modules),
            self._attached(),
        )

    def _attached(self) -> tuple[int, ...]:
        """Numbers of the modules that have more hooks than the network came with."""
        return tuple(
            number
            for number, (module, hooks) in enumerate(zip(self._modules, self._hooks, strict=True))
            if _hooks(module) != hooks
        )

    def _find_parts(self, x: Tensor) -> list[_Part]:
        """The largest parts of the network without attached layers, in the order of their calls."""
        attached = {self._modules[number] for number in self._attached()}
        if not attached:
            return [_Part(self._net, (x,))]
        calls: dict[nn.Module, list[tuple[Any, ...]]] = {}
        order = list(_clean(self._net, attached))
        handles = [
            module.register_forward_pre_hook(lambda m, inputs: calls.setdefault(m, []).append(inputs))
            for _, _, module in order
        ]
        try:
            self.layer_by_layer(x)
        finally:
            for handle in handles:
                handle.remove()
        places = {module: (parent, name) for parent, name, module in order}
        chosen: set[nn.Module] = set()
        for _, _, module in order:  # a module comes before its parts
            if _once_with_tensors(calls.get(module, [])):
                inside = any(module is not other and module in set(other.modules()) for other in chosen)
                chosen |= set() if inside else {module}
        return [_Part(module, calls[module][0], places[module]) for module in calls if module in chosen]


@dataclass
class _Part:
    """A module of the network, what it was called with, and its parent and name there; the network has neither."""

    module: nn.Module
    arguments: tuple[Tensor, ...]
    place: tuple[nn.Module, str] | None = None
    graphed: Graphed | None = None

    def __post_init__(self) -> None:
        self.arguments = tuple(
            torch.empty_like(argument).copy_(argument).detach().requires_grad_(argument.requires_grad)
            for argument in self.arguments
        )

    def __call__(self, *arguments: Tensor) -> Any:
        assert self.graphed is not None
        return self.graphed(*arguments)


class _InPrecision(nn.Module):
    """A module under autocast that casts weights anew in each pass: a cast of an earlier pass is in no graph."""

    def __init__(self, module: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.module, self._precision = module, precision

    def forward(self, *arguments: Tensor) -> Any:
        device = arguments[0].device
        with torch.autocast(
            device.type, torch.bfloat16, enabled=uses_bf16(self._precision, device), cache_enabled=False
        ):
            return self.module(*arguments)


def make_captured(net: nn.Module, precision: Precision, device: torch.device) -> Captured | None:
    """`Captured` of a network on a GPU; None elsewhere, and where it is switched off.

    Raises:
        ConfigError: the switch is neither on nor off.
    """
    wanted = os.environ.get(SWITCH, "on")
    if wanted not in ("on", "off"):
        raise ConfigError("invalid-value", f"{SWITCH} must be on or off, not {wanted!r}")
    return Captured(net, precision) if wanted == "on" and device.type == "cuda" else None


def _hooks(module: nn.Module) -> tuple[int, int, int]:
    return len(module._forward_hooks), len(module._forward_pre_hooks), len(module._backward_hooks)


def _clean(module: nn.Module, attached: set[nn.Module]) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Parent, name and module of all that have several layers and no attached one, below ``module`` and before theirs.

    A graph of a single layer would be as many launches as the layer.
    """
    for name, child in module.named_children():
        if sum(bool(layer._parameters) for layer in child.modules()) > 1:
            if attached.isdisjoint(child.modules()):
                yield module, name, child
            yield from _clean(child, attached)


def _once_with_tensors(calls: Sequence[tuple[Any, ...]]) -> bool:
    return len(calls) == 1 and bool(calls[0]) and all(isinstance(argument, Tensor) for argument in calls[0])


@contextmanager
def _replaced(parts: Sequence[_Part]) -> Iterator[None]:
    """The network with its captured parts in their places."""
    places = [(part.place, part) for part in parts if part.place is not None]
    for (parent, name), part in places:
        parent._modules[name] = part.graphed  # type: ignore[assignment]
    try:
        yield
    finally:
        for (parent, name), part in places:
            parent._modules[name] = part.module
