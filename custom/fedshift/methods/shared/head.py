"""The last layer of a network (its head), and the embedding of an image, which is the head's input."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedshift.methods.base import Rule
from fedshift.methods.shared.norms import module_keys
from fedshift.tasks.stages import ClassifyingNetwork

EMBEDDING = (Rule("one label for each image"), Rule("a linear head"))
"""What methods need that work on the embedding of an image."""


def head_of(net: nn.Module) -> nn.Linear:
    """The layer whose input is the embedding, in a network that has `EMBEDDING`."""
    return cast(ClassifyingNetwork, net).head


def on_embedding(net: nn.Module, see: Callable[[Tensor], None]) -> RemovableHandle:
    """Call ``see`` with the head's input (B, d) in every forward pass, before the head."""

    def hook(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        see(inputs[0])

    return head_of(net).register_forward_pre_hook(hook)


def has_linear_head(net: nn.Module) -> bool:
    """Whether the network has a head whose input can serve as an embedding."""
    return isinstance(getattr(net, "head", None), nn.Linear)


def classes_of(y: Tensor) -> Tensor:
    """Class indices (B,) int64; the class with the largest share for soft targets (B, K)."""
    return y.argmax(1) if y.is_floating_point() else y


def head_keys(net: nn.Module) -> frozenset[str]:
    """``state_dict`` keys of the head, whatever kind of layer it is; none in a network that names no head."""
    head = getattr(net, "head", None)
    inside = {id(module) for module in head.modules()} if isinstance(head, nn.Module) else set()
    return frozenset(key for _, module, keys in module_keys(net) if id(module) in inside for key in keys)
