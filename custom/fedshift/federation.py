"""All sites in one process: the oracle for tests, the limit for benchmarks, the fast path for sweeps.

The same `Site` and `Coordinator` run under FLARE (``fedshift.flare``); nothing here computes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from fedshift.coordinator import Coordinator
from fedshift.errors import FedshiftError
from fedshift.job import JobSpec
from fedshift.messages import Broadcast
from fedshift.site import Site

log = logging.getLogger("fedshift")


def run_in_process(
    job: JobSpec,
    data: Mapping[str, Path],
    folder: Path,
    *,
    device: str = "cpu",
    on_progress: Callable[[Coordinator], None] | None = None,
) -> Coordinator:
    """Run a job with every site in this process, one after another.

    Args:
        job: the resolved job.
        data: each site's prepared folder.
        folder: where results, models and the sites' state go.
        device: where to train.
        on_progress: called whenever there is something new to show.

    Raises:
        QuorumError: too few sites gave usable answers.
    """
    coordinator = Coordinator(job, folder, on_progress=on_progress)
    sites: dict[str, Site] = {}
    coordinator.open(0)
    for name in job.task.sites:
        try:
            site = Site(job, name, data=data[name], state=folder / "sites", device=device)
            coordinator.register(site.info())
            coordinator.accept(site.statistics())
            sites[name] = site
        except FedshiftError as error:
            coordinator.reject(name, "statistics", str(error))
    coordinator.close()
    for round_ in range(1, coordinator.rounds + 1):
        broadcast = coordinator.open(round_)
        for name, site in sites.items():
            try:
                coordinator.accept(site.train(broadcast))
            except (FedshiftError, RuntimeError) as error:
                log.debug("site %s", name, exc_info=True)
                coordinator.reject(name, "train", str(error))
        coordinator.close()
    _evaluate(coordinator, sites, coordinator.open(coordinator.rounds + 1))
    coordinator.close_last()
    best = coordinator.open_best()
    if best is not None:
        _evaluate(coordinator, sites, best)
    coordinator.finish()
    return coordinator


def _evaluate(coordinator: Coordinator, sites: Mapping[str, Site], broadcast: Broadcast) -> None:
    for site in sites.values():
        coordinator.add_scores(site.validate(broadcast, ("val", "test")))
