"""Losses of each site in a batch that holds equally many samples of all sites, for the centralised references."""

from __future__ import annotations

import torch
from torch import Tensor

from fedshift import methods
from fedshift.methods.base import Batch, Client, Context, Run
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec


def by_site(batch: Batch, logits: Tensor, run: Run) -> list[tuple[Tensor, Tensor]]:
    """Logits and targets of each site, in the order of ``run.sites``."""
    if len(logits) % len(run.sites):
        raise ValueError(f"a batch of {len(logits)} does not hold equally many samples of {len(run.sites)} sites")
    return list(zip(logits.chunk(len(run.sites)), batch.y.chunk(len(run.sites)), strict=True))


def site_losses(batch: Batch, logits: Tensor, run: Run) -> Tensor:
    """The task's loss of each site's samples, (K,)."""
    return torch.stack([run.objective(part, y) for part, y in by_site(batch, logits, run)])


def penalty_weight(ctx: Context, *, weight: float, warmup: int) -> float:
    """β of the present step: at most 1 in the first ``warmup`` steps, then ``weight``. Call it once a step.

    When β grows above 1 the optimiser forgets its state, which belongs to another objective.
    """
    # A pass that is repeated belongs to the step that has been counted.
    steps = int(ctx.state.get("steps", torch.tensor(0))) - int(ctx.run.replay)
    if not ctx.run.replay:
        ctx.state["steps"] = torch.tensor(steps + 1)
        if steps == warmup and weight > 1 and ctx.run.optimizer is not None:
            ctx.run.optimizer.state.clear()
    return weight if steps >= warmup else min(weight, 1.0)


def check_alone(method: str, job: JobSpec) -> None:
    """Refuse what an objective over all sites would leave nothing of, or cannot be computed with.

    Raises:
        ConfigError: another method changes the loss too, or trains at a single site.
    """
    for other in job.methods:
        half = getattr(methods.find(other), "Client", Client)
        if other == method:
            continue
        if half.loss is not Client.loss:
            raise ConfigError(
                f"{method} and {other} cannot be combined: both decide the loss of a batch; name one of them"
            )
        if half.mixes_samples:
            raise ConfigError(
                f"{method} and {other} cannot be combined: {other} mixes images of different sites, and {method} needs "
                "each site's own loss; name one of them"
            )
        if half.fine_tune is not Client.fine_tune:
            raise ConfigError(
                f"{method} and {other} cannot be combined: {other} trains at single sites, and the loss of {method} "
                "needs all of them; name one of them"
            )
