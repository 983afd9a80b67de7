"""Which sites each FLARE client works for.

Normally a client is one site and has its name. In a job with ``federation.hosts``, which is for simulating many sites
on few cores, that many clients divide the sites among them; each does its sites' work one after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedshift.data.splits import about_counts
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import read_manifest

FORWARD = 1 / 3
"""Cost of scoring an image relative to training on it."""


def hosts(job: JobSpec) -> dict[str, tuple[str, ...]]:
    """FLARE client → its sites, in the job's order."""
    everyone, count = job.task.everyone, job.federation.hosts
    if count is None:
        return {site: (site,) for site in everyone}
    if job.federation.shares:
        return {f"host_{number}": share for number, share in enumerate(job.federation.shares, 1)}
    # Every count-th site to the same host, so that the sites drawn for a round are spread over the hosts.
    return {f"host_{number + 1}": everyone[number::count] for number in range(count)}


def balanced(work: Mapping[str, float], count: int) -> tuple[tuple[str, ...], ...]:
    """Divide the sites among ``count`` hosts with about equal work: largest first, each to the host with the least."""
    shares: list[list[str]] = [[] for _ in range(count)]
    for site in sorted(work, key=lambda site: -work[site]):
        min(shares, key=lambda share: (sum(work[other] for other in share), len(share))).append(site)
    order = list(work)
    return tuple(tuple(sorted(share, key=order.index)) for share in shares)


def work_of(job: JobSpec, data: Mapping[str, Path]) -> dict[str, float]:
    """Each site's approximate work in a round, in training images. ``data``: site → its folder."""
    schedule, work = job.task.schedule, {}
    for site in job.task.everyone:
        counts = about_counts(read_manifest(data[site]), job.task.data)
        steps = schedule.local_steps
        trained = schedule.local_epochs * counts["train"] if steps is None else steps * schedule.batch_size
        work[site] = FORWARD * counts["val"] + (0 if site in job.task.held_out else trained)
    return work
