"""The last layers of a network: its head, the embedding that is the head's input, and those that give the logits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedshift.methods.base import Client, ConfigT, Context, Rule
from fedshift.methods.shared.norms import module_keys
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.tasks import trial
from fedshift.tasks.stages import ClassifyingNetwork


class EmbeddingClient(Client[ConfigT]):
    """A client half that works on the embedding of an image: ``self.embedding``, the head's input of the last pass."""

    needs: ClassVar[tuple[Rule, ...]] = (Rule("one label for each image"), Rule("a linear head"))
    traits = (Rule("reads what a step's last pass computes"),)

    embedding: Tensor
    """(B, d), with its gradient."""

    def attach(self, net: nn.Module, ctx: Context) -> list[RemovableHandle]:
        def record(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self.embedding = inputs[0]

        return [head_of(net).register_forward_pre_hook(record)]


def head_of(net: nn.Module) -> nn.Linear:
    """The layer whose input is the embedding, in a network whose head is linear."""
    return cast(ClassifyingNetwork, net).head


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


def refuse_held_out(method: str, job: JobSpec) -> None:
    """Refuse held-out sites with a method that keeps heads at the sites (`ConfigError`)."""
    if job.task.held_out:
        raise ConfigError(
            "method-needs",
            f"method {method}: every site has a head of its own, and {', '.join(job.task.held_out)}, held out as it "
            "is, may not train one: leave held_out empty",
        )


# --- the layers that give a network's logits ----------------------------------------------------------

_FOUND: WeakKeyDictionary[nn.Module, tuple[nn.Module, ...]] = WeakKeyDictionary()
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
    if net not in _FOUND:
        both = (*_giving(net, training=False), *_giving(net, training=True))
        _FOUND[net] = tuple({id(layer): layer for layer in both}.values())
    return _FOUND[net]


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
    made: list[tuple[nn.Module, Tensor]] = []

    def note(module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            made.append((module, output))

    layers = [m for m in net.modules() if any(p.dim() > 1 for p in m.parameters(recurse=False))]
    with _without_hooks(net):
        for layer in layers:
            layer.register_forward_hook(note)
        given = trial.run(net, cast(Any, net).trial_size, training=training)
    outputs = [given] if isinstance(given, Tensor) else list(given)
    return [layer for output in outputs for layer, result in made if result is output] or [made[-1][0]]
