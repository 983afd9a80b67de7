"""All sites in one process: the oracle for tests, the limit for benchmarks, the fast path for sweeps.

The same `Site` and `Coordinator` run under FLARE (``fedshift.flare``); nothing here computes. Centralised
references, which no federation can run, are here too.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.site import PooledSite, Site
from fedshift.methods import method_set
from fedshift.schema.errors import ConfigError, MixedDataError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast, Update
from fedshift.schema.policy import Policy

log = logging.getLogger("fedshift")

Answer = TypeVar("Answer")
SITE_STATE = "site_state"
"""Folder of what the sites remember."""


def run_in_process(
    job: JobSpec,
    data: Mapping[str, Path],
    folder: Path,
    *,
    device: str = "auto",
    resume: bool = False,
    on_progress: Callable[[Coordinator], None] | None = None,
    on_update: Callable[[Broadcast, Update], None] = lambda broadcast, update: None,
    privacy: Mapping[str, Policy] | None = None,
) -> Coordinator:
    """Run a job with every site in this process, one after another.

    Args:
        job: the resolved job.
        data: each site's prepared folder.
        folder: where results, models and the sites' state go.
        device: where to train, as torch names it; ``auto`` is a GPU if there is one.
        resume: go on after the last round that an interrupted run in ``folder`` has closed.
        on_progress: called whenever there is something new to show.
        on_update: called with every update of a training round that was accepted, and with what it answers, both as
            they were sent.
        privacy: policies of sites that have one.

    Raises:
        QuorumError: too few sites gave usable answers.
        MixedDataError: some data are simulated and some are not.
        ConfigError: the job is a centralised reference, or cannot be gone on with.
    """
    method_set.require_federation(job)
    if job.federation.encryption is not None:
        raise ConfigError(
            f"job {job.name} asks for encryption, and in one process there is nobody to hide from: "
            "--set federation.encryption=null"
        )
    coordinator = Coordinator(job, folder, on_progress=on_progress)
    done = _begin(coordinator, resume=resume)
    sites: dict[str, Site] = {}

    def ask(work: Callable[[Site], Answer], take: Callable[[Answer], object], task: str) -> None:
        """Every site of the round in turn; one that fails is named and left out, as under FLARE."""
        for name in coordinator.invited:
            try:
                if name not in sites:
                    beside = next(iter(sites.values()), None)
                    policy = (privacy or {}).get(name)
                    site = Site(
                        job,
                        name,
                        data=data[name],
                        state=folder / SITE_STATE,
                        device=device,
                        beside=beside,
                        privacy=policy,
                        share_cases=policy is None or policy.case_scores,
                    )
                    coordinator.register(site.info())
                    sites[name] = site
                answer = work(sites[name])
            except MixedDataError:
                raise
            except Exception as error:
                log.debug("site %s", name, exc_info=True)
                coordinator.reject(name, task, str(error))
                continue
            take(answer)

    def keep(update: Update, broadcast: Broadcast) -> None:
        if coordinator.accept(update):
            on_update(broadcast, update)

    if done < 0:
        coordinator.open(0)
        ask(Site.statistics, coordinator.accept, "statistics")
        coordinator.close()
    for round_ in range(max(done, 0) + 1, coordinator.rounds + 1):
        broadcast = coordinator.open(round_)
        ask(partial(Site.train, broadcast=broadcast), partial(keep, broadcast=broadcast), "train")
        coordinator.close()
    _evaluate(
        coordinator,
        lambda model: ask(partial(Site.validate, broadcast=model), coordinator.add_scores, "validate"),
    )
    return coordinator


def run_pooled(
    job: JobSpec,
    data: Mapping[str, Path],
    folder: Path,
    *,
    device: str = "auto",
    resume: bool = False,
    on_progress: Callable[[Coordinator], None] | None = None,
) -> Coordinator:
    """Run a centralised reference: train where all images are, score at every site as a federated model is.

    The record is a federated run's in which every site's update is the same model. Arguments and errors are those
    of `run_in_process`; a site that cannot be used ends the run.
    """
    coordinator = Coordinator(job, folder, on_progress=on_progress)
    done = _begin(coordinator, resume=resume)
    state = folder / SITE_STATE
    trainer = PooledSite(job, data=data, state=state, device=device)
    sites = [Site(job, n, data=data[n], state=state, device=device, beside=trainer) for n in job.task.everyone]
    for site in sites:
        coordinator.register(site.info())
    training = sites[: len(job.task.sites)]
    if done < 0:
        coordinator.open(0)
        for site in training:
            coordinator.accept(site.statistics())
        coordinator.close()
    for round_ in range(max(done, 0) + 1, coordinator.rounds + 1):
        broadcast = coordinator.open(round_)
        trained = trainer.train(broadcast)
        for site in training:
            scores = site.score(broadcast, "val") if round_ > 1 else {}
            n = coordinator.results.data[site.name].n["train"]
            told = replace(trained, site=site.name, n_samples=n, metrics={**trained.metrics, **scores})
            coordinator.accept(told)
        coordinator.close()
    _evaluate(coordinator, lambda model: [coordinator.add_scores(site.validate(model)) for site in sites])
    return coordinator


def _begin(coordinator: Coordinator, *, resume: bool) -> int:
    """The last closed round to go on after, or -1; then what an earlier run remembered is removed."""
    done = coordinator.resume() if resume else -1
    # Of a run that had been finished the models are scored anew: a site may have been missing.
    coordinator.results.final, coordinator.results.evaluations = None, []
    if done < 0:
        coordinator.start_anew()
        shutil.rmtree(coordinator.folder / SITE_STATE, ignore_errors=True)
    return done


def _evaluate(coordinator: Coordinator, score: Callable[[Broadcast], object]) -> None:
    """Have the last model scored everywhere, and the best if it is another."""
    score(coordinator.open(coordinator.rounds + 1))
    coordinator.close_last()
    best = coordinator.open_best()
    if best is not None:
        score(best)
    coordinator.finish()
