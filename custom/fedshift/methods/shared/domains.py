"""Losses of each domain in a batch with equally many samples of all domains, for the centralised references.

A domain is a site, unless the job says that several sites are parts of one (`fedshift.schema.task.TaskSpec.domains`).
"""

from __future__ import annotations

import logging
import math
from typing import Any

import torch
from torch import Tensor

from fedshift.methods.base import Batch, Client, ConfigT, Context, Rule, Run, TrainingSamples
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Arrays

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


class ByDomain(Client[ConfigT]):
    """Trains on batches with images of every site: the client half of a centralised reference."""

    trains_on = "every site"
    clashes = (
        Rule("changes the loss", "decides the loss of a batch too"),
        Rule("mixes images and their targets", "needs each site's own loss"),
        Rule("fine-tunes the final model", "needs the losses of all sites"),
    )


def _steps(job: JobSpec) -> float:
    """Steps of a job, unknown where a site's number of images decides."""
    schedule = job.task.schedule
    return math.inf if schedule.local_steps is None else schedule.local_steps * schedule.rounds


class WarmedUp(Client[ConfigT]):
    """A loss with a penalty times β, which is at most 1 in the first ``warmup`` steps of a site, then ``weight``.

    State: ``steps``, over all rounds.
    """

    idle = (
        Rule(
            "warmup",
            "a weight of at most 1 (here {case.config.weight:g}) applies from the first step",
            lambda case: case.config.weight <= 1,
        ),
        Rule(
            "weight",
            "the job ends within its warm-up of {case.config.warmup} steps: set a shorter warmup",
            lambda case: case.config.weight > 1 and _steps(case.job) <= case.config.warmup,
        ),
    )

    def penalty_weight(self, ctx: Context) -> float:
        """β of the present step. Call it once a step.

        When β grows above 1 the optimiser forgets its state, which belongs to another objective.
        """
        weight, warmup = self._options()
        # A pass that is repeated belongs to the step that has been counted.
        steps = int(ctx.state.get("steps", torch.tensor(0))) - int(ctx.run.replay)
        if not ctx.run.replay:
            ctx.state["steps"] = torch.tensor(steps + 1)
            if steps == warmup and weight > 1 and ctx.run.optimizer is not None:
                ctx.run.optimizer.state.clear()
        return weight if steps >= warmup else min(weight, 1.0)

    def end(self, data: TrainingSamples, ctx: Context) -> Arrays:
        """Say after a job's last round if it ended within the warm-up; sends nothing."""
        weight, warmup = self._options()
        steps = int(ctx.state.get("steps", torch.tensor(0)))
        if ctx.run.round == ctx.run.rounds and weight > 1 and steps <= warmup:
            log.warning(
                "%s: the job ended after %d steps, within the warm-up of %d, so weight=%g was never used: set "
                "%s.warmup=%d",
                *(ctx.run.site, steps, warmup, weight, ctx.method, steps // 5),
            )
        return {}

    def _options(self) -> tuple[float, int]:
        config: Any = self.config
        return config.weight, config.warmup
