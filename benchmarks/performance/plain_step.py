"""A training step that is written by hand: forward, loss, backward, optimiser."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedshift.schema.task import Precision
from fedshift.tasks.base import Task
from fedshift.tasks.losses import Logits
from fedshift.tasks.precision import autocast


def plain_step(
    task: Task,
    forward: Callable[[Tensor], Logits],
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    *,
    precision: Precision = "bf16",
) -> Callable[[], None]:
    """A step of a network on one batch, again and again."""

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast(precision, x.device):
            logits = forward(x)
        task.loss(logits, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step
