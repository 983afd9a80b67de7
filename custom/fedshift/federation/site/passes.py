"""The forward and backward pass of a training batch, with the hooks of the methods that act on loss and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from fedshift.methods.base import Batch, Run
from fedshift.methods.chain import ClientChain
from fedshift.schema.job import ScheduleSpec
from fedshift.tasks.base import Task
from fedshift.tasks.losses import main
from fedshift.tasks.precision import autocast

if TYPE_CHECKING:
    from fedshift.federation.site.ranks.group import Group


@dataclass
class Passes:
    """The passes of a round's batches through the network; ``group``: the ranks that share each batch, if several."""

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
        loss = self._forward_and_backward(batch)
        if self.group is not None:
            loss = self.group.mean(run.net, loss, part=run.part)
        self.chain.gradients()
        if run.clip_norm is not None:
            nn.utils.clip_grad_norm_(run.net.parameters(), run.clip_norm)
        return loss

    def _forward_and_backward(self, batch: Batch) -> Tensor:
        with autocast(self.schedule.precision, batch.x.device):
            logits = self.run.net(batch.x)
        loss = self.chain.loss(batch, main(logits), self.task.loss(logits, batch.y))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()
