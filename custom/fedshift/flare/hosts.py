"""Which FLARE client speaks for which sites.

A client is a site, and has its name. Only where a job has ``federation.hosts``, for simulations of many sites on few
machines, so many clients share the sites out: each does its sites' work one after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedshift.data.counts import about_counts
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import read_manifest

FORWARD = 1 / 3
"""What it takes to score an image, where training on it takes one."""


def hosts(job: JobSpec) -> dict[str, tuple[str, ...]]:
    """Sites of each FLARE client, in the job's order."""
    everyone, count = job.task.everyone, job.federation.hosts
    if count is None:
        return {site: (site,) for site in everyone}
    if job.federation.shares:
        return {f"host_{number}": share for number, share in enumerate(job.federation.shares, 1)}
    # Dealt out in turn, so that the sites drawn for a round are spread over the hosts.
    return {f"host_{number + 1}": everyone[number::count] for number in range(count)}


def balanced(work: Mapping[str, float], count: int) -> tuple[tuple[str, ...], ...]:
    """Sites shared out among ``count`` hosts that have about as much to do: the largest first, to whoever has least."""
    shares: list[list[str]] = [[] for _ in range(count)]
    for site in sorted(work, key=lambda site: -work[site]):
        min(shares, key=lambda share: (sum(work[other] for other in share), len(share))).append(site)
    order = list(work)
    return tuple(tuple(sorted(share, key=order.index)) for share in shares)


def work_of(job: JobSpec, data: Mapping[str, Path]) -> dict[str, float]:
    """About what each site has to do in a round, in images; ``data`` are the sites' folders."""
    schedule, work = job.task.schedule, {}
    for site in job.task.everyone:
        counts = about_counts(read_manifest(data[site]), job.task.data)
        steps = schedule.local_steps
        trained = schedule.local_epochs * counts["train"] if steps is None else steps * schedule.batch_size
        work[site] = FORWARD * counts["val"] + (0 if site in job.task.held_out else trained)
    return work
