"""The forward and backward pass of a training batch, with the hooks of the methods that act on loss and gradients."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedshift.methods.base import Batch, Run
from fedshift.methods.chain import ClientChain
from fedshift.methods.shared.passes import frozen_statistics
from fedshift.schema.job import ScheduleSpec
from fedshift.tasks.base import Task
from fedshift.tasks.losses import main
from fedshift.tasks.precision import autocast


@dataclass
class Passes:
    """The passes of a round's batches through the network, in parts of at most ``run.part`` samples."""

    task: Task
    chain: ClientChain
    run: Run
    schedule: ScheduleSpec

    def gradients(self, batch: Batch) -> Tensor:
        """Set the gradients of a batch (images as the methods' ``batch`` gave them). Returns its loss, a scalar."""
        run = self.run
        assert run.optimizer is not None
        run.optimizer.zero_grad(set_to_none=True)
        if run.part is None or len(batch.x) <= run.part:
            loss = self._forward_and_backward(batch)
        else:
            loss = self._in_parts(split(batch, run.part), len(batch.x))
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
        with autocast(self.schedule.precision, batch.x.device):
            logits = self.run.net(batch.x)
        loss = self.chain.loss(batch, main(logits), self.task.loss(logits, batch.y))
        if share != 1:
            loss = share * loss
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


def split(batch: Batch, most: int) -> list[Batch]:
    """Parts of at most ``most`` samples, in order and of nearly the same size.

    Parts of two and more leave no rest of one sample, which batch norm may refuse: three samples then stay together.
    """
    size = len(batch.x)
    number = math.ceil(size / most) if most == 1 else max(1, min(math.ceil(size / most), size // 2))
    pairs = zip(batch.x.tensor_split(number), batch.y.tensor_split(number), strict=True)
    return [Batch(x, y) for x, y in pairs]
