"""All sites in one process: the oracle for tests, the limit for benchmarks, the fast path for sweeps.

The same `Site` and `Coordinator` run under FLARE (``fedshift.flare``); nothing here computes.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from fedshift.coordinator import Coordinator
from fedshift.errors import MixedDataError
from fedshift.job import JobSpec
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
        MixedDataError: some data are simulated and some are not.
    """
    shutil.rmtree(folder / "sites", ignore_errors=True)  # what an earlier run remembered is not this one's
    coordinator = Coordinator(job, folder, on_progress=on_progress)
    sites: dict[str, Site] = {}

    def ask(work: Callable[[Site], object], task: str) -> None:
        """Every site in turn; one that fails is named and left out, as under FLARE."""
        for name in job.task.sites:
            try:
                if name not in sites:
                    site = Site(job, name, data=data[name], state=folder / "sites", device=device)
                    coordinator.register(site.info())
                    sites[name] = site
                work(sites[name])
            except MixedDataError:
                raise
            except Exception as error:
                log.debug("site %s", name, exc_info=True)
                coordinator.reject(name, task, str(error))

    coordinator.open(0)
    ask(lambda site: coordinator.accept(site.statistics()), "statistics")
    coordinator.close()
    for round_ in range(1, coordinator.rounds + 1):
        broadcast = coordinator.open(round_)
        ask(lambda site, b=broadcast: coordinator.accept(site.train(b)), "train")  # type: ignore[misc]
        coordinator.close()
    last = coordinator.open(coordinator.rounds + 1)
    ask(lambda site: coordinator.add_scores(site.validate(last)), "validate")
    coordinator.close_last()
    best = coordinator.open_best()
    if best is not None:
        ask(lambda site: coordinator.add_scores(site.validate(best)), "validate")
    coordinator.finish()
    return coordinator
