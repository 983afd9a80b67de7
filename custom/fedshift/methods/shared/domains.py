"""Losses of each domain in a batch with equally many samples of all domains, for the centralised references.

A domain is a site, unless the job says that several sites are parts of one (`fedshift.schema.job.TaskSpec.domains`).
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from fedshift.methods.base import Batch, Client, Context, Run
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import ScheduleSpec

log = logging.getLogger("fedshift")


def by_site(batch: Batch, logits: Tensor, run: Run) -> list[tuple[Tensor, Tensor]]:
    """Logits and targets of each domain, in the order of their first sites in ``run.sites``."""
    domains = run.n_domains or len(run.sites)
    if len(logits) % domains:
        raise ValueError(f"a batch of {len(logits)} does not hold equally many samples of {domains} sites")
    return list(zip(logits.chunk(domains), batch.y.chunk(domains), strict=True))


def site_losses(batch: Batch, logits: Tensor, run: Run) -> Tensor:
    """The task's loss of each domain's samples, (K,)."""
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


def idle_warmup(weight: float, warmup: int, schedule: ScheduleSpec) -> dict[str, str]:
    """``warmup`` has no effect on a ``weight`` of at most 1, nor ``weight`` in a job that ends within the warm-up."""
    if weight <= 1:
        return {"warmup": f"a weight of at most 1 (here {weight:g}) applies from the first step"}
    if schedule.local_steps is not None and (steps := schedule.local_steps * schedule.rounds) <= warmup:
        return {"weight": f"the job ends after {steps} steps, within its warm-up of {warmup}: set warmup={steps // 5}"}
    return {}


def warn_of_warmup(ctx: Context, *, method: str, weight: float, warmup: int) -> None:
    """Say after a job's last round if it ended within the warm-up. Epochs have as many steps as a site has batches."""
    steps = int(ctx.state.get("steps", torch.tensor(0)))
    if ctx.run.round == ctx.run.rounds and weight > 1 and steps <= warmup:
        log.warning(
            "%s: the job ended after %d steps, within the warm-up of %d, so weight=%g was never used: set %s.warmup=%d",
            *(ctx.run.site, steps, warmup, weight, method, steps // 5),
        )


def check_beside(method: str, name: str, other: Client[Any]) -> None:
    """Refuse a second method that would change the loss over all sites, or make it impossible to compute.

    Args:
        method: the centralised reference.
        name: another method of the job.
        other: its client half.

    Raises:
        ConfigError: the other method changes the loss too, mixes samples of different sites, or trains at one site.
    """
    half = type(other)
    if half.loss is not Client.loss:
        raise ConfigError(f"{method} and {name} cannot be combined: both decide the loss of a batch; name one of them")
    if half.mixes_samples:
        raise ConfigError(
            f"{method} and {name} cannot be combined: {name} mixes images of different sites, and {method} needs "
            "each site's own loss; name one of them"
        )
    if half.fine_tune is not Client.fine_tune:
        raise ConfigError(
            f"{method} and {name} cannot be combined: {name} trains at single sites, and the loss of {method} "
            "needs all of them; name one of them"
        )
