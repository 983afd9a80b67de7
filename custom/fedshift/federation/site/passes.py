"""The forward and backward pass of a training batch, with the hooks of the methods that act on loss and gradients."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedshift.data.samples import Samples
from fedshift.federation import footprint
from fedshift.federation.tensors import first_words
from fedshift.methods.base import Batch, Run
from fedshift.methods.chain import ClientChain
from fedshift.methods.shared.passes import extra_pass, frozen_statistics
from fedshift.schema.task import ScheduleSpec
from fedshift.tasks.base import Task
from fedshift.tasks.losses import Logits, main
from fedshift.tasks.precision import autocast

if TYPE_CHECKING:
    from fedshift.federation.site.ranks.group import Group

log = logging.getLogger("fedshift")


@dataclass
class Passes:
    """The passes of a round's batches through the network, in parts of at most ``run.part`` samples.

    ``group``: the ranks that share each batch, if several do.
    """

    task: Task
    chain: ClientChain
    run: Run
    schedule: ScheduleSpec
    group: Group | None = None

    def gradients(self, batch: Batch) -> Tensor:
        """Set the gradients of a batch (images as the methods' ``batch`` gave them). Returns its loss, a scalar."""
        run = self.run
        assert run.optimizer is not None
        run.optimizer.zero_grad(set_to_none=True)
        if run.part is None or len(batch.x) <= run.part:
            loss = self._forward_and_backward(batch)
        else:
            loss = self._in_parts(split(batch, run.part), len(batch.x))
        if self.group is not None:
            loss = self.group.mean(run.net, loss, share=run.share)
        self.chain.gradients()
        if run.clip_norm is not None:
            nn.utils.clip_grad_norm_(run.net.parameters(), run.clip_norm)
        return loss

    def _in_parts(self, parts: list[Batch], size: int) -> Tensor:
        """Add up the parts' gradients. The norms' running statistics move once, with the first."""
        losses = []
        for number, part in enumerate(parts):
            with frozen_statistics(self.run.net) if number else nullcontext():
                losses.append(self._forward_and_backward(part, share=len(part.x) / size))
        return torch.stack(losses).sum()

    def _forward_and_backward(self, batch: Batch, share: float = 1.0) -> Tensor:
        captured = None if self.run.replay else self.run.captured
        if captured is None:
            with autocast(self.schedule.precision, batch.x.device):
                logits = self.run.net(batch.x)
        else:
            logits = captured(batch.x)
        loss = self.chain.loss(batch, main(logits), self.task.loss(logits, batch.y))
        if share != 1:
            loss = share * loss
        loss.backward()  # type: ignore[no-untyped-call]
        if captured is not None:
            captured.release_gradients()
        return loss.detach()

    def capture(self, data: Samples) -> None:
        """Capture the passes of a whole batch, if there is a GPU for it (`Run.captured`) and they have the same bits.

        Called before anything of the round is on its way to the GPU. Nothing of the run is changed by it.
        """
        run, captured = self.run, self.run.captured
        if captured is not None and run.part is not None:
            captured.clear()  # memory is short, and a graph keeps all that its passes need
        if captured is None or self.chain.takes_gradients or run.part is not None:
            run.captured = None
            return
        schedule = self.schedule
        each = data.epoch(batch_size=schedule.batch_size, order=torch.Generator(), drop_last=schedule.drop_last)
        with self._nothing_changed():
            size = max(1, math.ceil((len(next(each)) - run.rank) / run.ranks))  # of this rank's share
            x = footprint.noise(run.net, self.task, size)[0].to(run.device)
        if captured.covers(x):
            return
        try:
            with self._nothing_changed():
                captured.capture(x)
            differs = not all(map(_equal, self._answer(captured, x), self._answer(captured.layer_by_layer, x)))
            reason = "a captured pass gave other values" if differs else ""
        except (RuntimeError, AssertionError, TypeError) as error:
            reason = first_words(error)
        if reason:
            captured.drop(x)
            log.warning("site %s: training goes layer by layer, without CUDA graphs (%s)", run.site, reason)

    def _answer(self, forward: Callable[[Tensor], Logits], x: Tensor) -> list[Tensor | None]:
        """Logits and gradients of the parameters."""
        with self._nothing_changed():
            logits = forward(x)
            heads = [logits] if isinstance(logits, Tensor) else logits
            total = torch.stack([head.float().square().mean() for head in heads]).sum()
            parameters = [parameter for parameter in self.run.net.parameters() if parameter.requires_grad]
            gradients = torch.autograd.grad(total, parameters, allow_unused=True)
            return [None if tensor is None else tensor.detach().clone() for tensor in (*heads, *gradients)]

    @contextmanager
    def _nothing_changed(self) -> Iterator[None]:
        """Passes that leave running statistics and random numbers as they were, and that methods do not count."""
        buffers = list(self.run.net.buffers())
        before = [buffer.clone() for buffer in buffers]
        try:
            with extra_pass(self.run, self.run.device):
                yield
        finally:
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b)


def split(batch: Batch, most: int) -> list[Batch]:
    """Parts of at most ``most`` samples, in order and of nearly the same size.

    Parts of two and more leave no rest of one sample, which batch norm may refuse: three samples then stay together.
    """
    size = len(batch.x)
    number = math.ceil(size / most) if most == 1 else max(1, min(math.ceil(size / most), size // 2))
    pairs = zip(batch.x.tensor_split(number), batch.y.tensor_split(number), strict=True)
    return [Batch(x, y) for x, y in pairs]
