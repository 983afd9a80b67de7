"""The head of a network, and the embedding that is its input. `fedshift.tasks.last_layers` finds other last layers."""

from __future__ import annotations

from typing import ClassVar, cast

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedshift.methods.base import Client, ConfigT, Context, Rule
from fedshift.methods.shared.norms import module_keys
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
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
