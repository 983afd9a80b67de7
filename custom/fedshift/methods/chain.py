"""The client halves of a job, called one after another at a site."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedshift.methods.base import Batch, Client, Context, Run, TrainingSamples
from fedshift.methods.method_set import Method
from fedshift.schema.messages import MethodArrays


class ClientChain:
    """The client halves of a job at one site in one round, in the order of `fedshift.methods.method_set.load`."""

    def __init__(self, methods: Iterable[Method], run: Run, state: dict[str, dict[str, Tensor]]) -> None:
        """Make the halves. They change ``state``, the ``methods`` part of the site's state, in place."""
        self._halves = [(m.client(), Context(run, m.name, state.setdefault(m.name, {}))) for m in methods]
        self._owner = next((pair for pair in self._halves if "step" in pair[0].owns), None)
        # A chain holds its run, so the run must not hold the chain: Python would free a cycle, with a round's optimiser
        # and weights in it, only when it next looks for cycles.
        chain = weakref.proxy(self)
        run.normalise = lambda x, *, training: chain.inputs(x, training=training)

    @property
    def changing_predictions(self) -> tuple[str, ...]:
        """Names of the methods that transform what the network gets, or add layers to it, when it predicts."""
        return tuple(
            ctx.method
            for half, ctx in self._halves
            if half.attached_to_predict or type(half).inputs is not Client.inputs
        )

    @property
    def takes_gradients(self) -> bool:
        """Whether a method takes gradients of the training pass by itself."""
        return any(half.takes_gradients for half, _ in self._halves)

    def attach(self, net: nn.Module) -> list[RemovableHandle]:
        """Insert every method's layers. The caller removes the handles after the task."""
        handles: list[RemovableHandle] = []
        try:
            for half, ctx in self._halves:
                handles += half.attach(net, ctx)
        except BaseException:
            # Another site may use this network next, so remove the layers that were inserted already.
            for handle in handles:
                handle.remove()
            raise
        return handles

    def statistics(self, data: TrainingSamples) -> MethodArrays:
        return _non_empty({ctx.method: half.statistics(data, ctx) for half, ctx in self._halves})

    def receive(self, arrays: MethodArrays) -> None:
        for half, ctx in self._halves:
            half.receive(arrays.get(ctx.method, {}), ctx)

    def newcomer(self, data: TrainingSamples) -> None:
        for half, ctx in self._halves:
            half.newcomer(data, ctx)

    def begin(self, data: TrainingSamples) -> None:
        for half, ctx in self._halves:
            half.begin(data, ctx)

    def inputs(self, x: Tensor, *, training: bool) -> Tensor:
        for half, ctx in self._halves:
            x = half.inputs(x, ctx, training=training)
        return x

    def batch(self, batch: Batch) -> Batch:
        """Apply every method's ``augment``, ``inputs`` and ``batch`` to a training batch, in that order."""
        for half, ctx in self._halves:
            batch = half.augment(batch, ctx)
        batch = Batch(self.inputs(batch.x, training=True), batch.y)
        for half, ctx in self._halves:
            batch = half.batch(batch, ctx)
        return batch

    def loss(self, batch: Batch, logits: Tensor, loss: Tensor) -> Tensor:
        for half, ctx in self._halves:
            loss = half.loss(batch, logits, loss, ctx)
        return loss

    def step(self, closure: Callable[[], Tensor], optimizer_step: Callable[[], None]) -> Tensor:
        """Take one optimiser step, by the method that owns "step" if there is one. Returns the loss."""
        if self._owner is not None:
            half, ctx = self._owner
            return half.step(closure, ctx)
        loss = closure()
        optimizer_step()
        return loss

    def gradients(self) -> None:
        for half, ctx in self._halves:
            half.gradients(ctx)

    def checkpoint(self) -> dict[str, dict[str, dict[str, Tensor]]]:
        """What every method has in the middle of a round: its state, and what else the steps have changed."""
        return {ctx.method: {"state": ctx.state, "kept": half.checkpoint(ctx)} for half, ctx in self._halves}

    def restore(self, kept: Mapping[str, Mapping[str, Mapping[str, Tensor]]]) -> None:
        """Set every method to what `checkpoint` gave. Called after `begin`."""
        for half, ctx in self._halves:
            ctx.state.clear()
            ctx.state.update(kept[ctx.method]["state"])
            half.restore(kept[ctx.method]["kept"], ctx)

    def end(self, data: TrainingSamples) -> MethodArrays:
        return _non_empty({ctx.method: half.end(data, ctx) for half, ctx in self._halves})


def _non_empty(arrays: MethodArrays) -> MethodArrays:
    return {name: named for name, named in arrays.items() if named}
