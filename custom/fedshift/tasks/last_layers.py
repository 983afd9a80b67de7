"""The layers of a network that give its logits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from fedshift.tasks import trial

_LAST_LAYERS: WeakKeyDictionary[nn.Module, tuple[nn.Module, ...]] = WeakKeyDictionary()
"""Of networks that were tried: a trial takes up to a second."""


def last_layers(net: nn.Module) -> tuple[nn.Module, ...]:
    """The layers with weights whose results are what the network gives; the one of its main logits is the first.

    It is ``net.head`` where the network has one. Otherwise layers are found by a trial (`fedshift.tasks.trial`), as for
    MONAI's networks: with deep supervision there are several. Where nothing is given as a layer made it, because the
    network ends with a sum, it is the layer that is called last. No layer of a method takes part in the trial.
    """
    head = getattr(net, "head", None)
    if isinstance(head, nn.Module):
        return (head,)
    if net not in _LAST_LAYERS:
        both = (*_giving(net, training=False), *_giving(net, training=True))
        _LAST_LAYERS[net] = tuple({id(layer): layer for layer in both}.values())
    return _LAST_LAYERS[net]


@contextmanager
def _without_hooks(net: nn.Module) -> Iterator[None]:
    """The network's modules alone: methods' hooks draw random numbers and hold tensors with values.

    The hooks of networks themselves (`fedshift.tasks`) change no values, so that a trial does without them.
    """
    before = [(module, module._forward_pre_hooks, module._forward_hooks) for module in net.modules()]
    try:
        for module, _, _ in before:
            module._forward_pre_hooks, module._forward_hooks = OrderedDict(), OrderedDict()
        yield
    finally:
        for module, pre_hooks, hooks in before:
            module._forward_pre_hooks, module._forward_hooks = pre_hooks, hooks


def _giving(net: nn.Module, *, training: bool) -> list[nn.Module]:
    results: list[tuple[nn.Module, Tensor]] = []

    def note(module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            results.append((module, output))

    # Frozen weights (`fedshift.tasks.adapters`) are buffers.
    layers = [m for m in net.modules() if any(w.dim() > 1 for w in (*m.parameters(False), *m.buffers(False)))]
    with _without_hooks(net):
        for layer in layers:
            layer.register_forward_hook(note)
        logits = trial.run(net, cast(Any, net).trial_size, training=training)
    outputs = [logits] if isinstance(logits, Tensor) else list(logits)
    return [layer for output in outputs for layer, result in results if result is output] or [results[-1][0]]
