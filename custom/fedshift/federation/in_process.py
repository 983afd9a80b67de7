"""A job with all its sites in one process: for tests, benchmarks and sweeps.

The same `Site` and `Coordinator` run under FLARE (``fedshift.flare``); here messages are function calls. Centralised
references, which no federation can run, are here too.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from fedshift.federation.domain_gradients import DomainGradients
from fedshift.federation.reference import site_reference
from fedshift.federation.run_lock import lock_run
from fedshift.federation.server.coordinator import Coordinator, Request
from fedshift.federation.site.outbound import Encryption
from fedshift.federation.site.site import PooledSite, Site
from fedshift.methods import method_set
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast, Scores, Update
from fedshift.schema.policy import Policy

log = logging.getLogger("fedshift")

Answer = Update | Scores
SITE_STATE = "site_state"
"""Folder of the sites' state inside a run's folder."""


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
        resume: go on after the last closed round of an interrupted run in ``folder``.
        on_progress: called whenever there is something new to show.
        on_update: called with every accepted update of a training round and the message it answers, as they were
            sent.
        privacy: the policies of sites that have one.

    Raises:
        QuorumError: too few sites gave usable answers.
        ConfigError: the job is a centralised reference, or can't be resumed; or another run is using ``folder``.
    """
    method_set.require_federation(job)
    if job.federation.encryption == "ckks":
        raise ConfigError(
            f"job {job.name} asks for encryption, and in one process there is nobody to hide from: "
            "--set federation.encryption=null"
        )
    with lock_run(folder):
        coordinator = _coordinator(job, folder, on_progress)
        _begin(coordinator, resume=resume)
        sites: dict[str, Site] = {}
        gradients = DomainGradients(job, wanted=not coordinator.own_models)

        def site(name: str) -> Site:
            if name not in sites:
                policy = (privacy or {}).get(name)
                made = Site(
                    job,
                    name,
                    data=data[name],
                    state=folder / SITE_STATE,
                    device=device,
                    beside=next(iter(sites.values()), None),
                    privacy=policy,
                    share_cases=policy is None or policy.case_scores,
                    tell=site_reference,
                    encryption=_masks(job, name, folder, policy),
                    keep_answers=job.federation.encryption == "masks",
                )
                coordinator.register(made.info())
                sites[name] = made
            return sites[name]

        def ask(name: str, request: Request) -> Answer | None:
            """A site that fails is recorded and left out, as under FLARE."""
            try:
                answer = _answer(site(name), request)
                if gradients.wanted and request.task == "validate":
                    n = coordinator.results.data[name].n["val"]
                    gradients.add(name, answer.round, n, lambda: site(name).gradient(request.broadcast, "val"))
                return answer
            except Exception as error:
                log.debug("site %s", name, exc_info=True)
                coordinator.reject(name, request.task, str(error))
                return None

        _run(coordinator, ask, on_update=on_update)
        if gradients.wanted and coordinator.results.final is not None:
            for scores in (coordinator.results.final.best, coordinator.results.final.last):
                scores.domain_gradient_norms = gradients.norms(scores.round)
            coordinator.results.write(folder)
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
    """Run a centralised reference: train on all sites' images together, and score the model at every site.

    The record is that of a federated run in which every site's update is the same model. Arguments and errors are those
    of `run_in_process`, but a site that fails ends the run.
    """
    with lock_run(folder):
        coordinator = Coordinator(job, folder, on_progress=on_progress)
        _begin(coordinator, resume=resume)
        state = folder / SITE_STATE
        trainer = PooledSite(job, data=data, state=state, device=device)
        sites = {
            n: Site(job, n, data=data[n], state=state, device=device, beside=trainer, tell=site_reference)
            for n in job.task.everyone
        }
        for site in sites.values():
            coordinator.register(site.info())
        trained: list[Update] = []
        """Of the open round, once it has been trained."""

        def ask(name: str, request: Request) -> Answer:
            broadcast = request.broadcast
            if request.task != "train":
                return _answer(sites[name], request)
            if not trained or trained[0].round != broadcast.round:
                trained[:] = [trainer.train(broadcast)]
            scores = sites[name].round_scores(broadcast)
            n_samples = coordinator.results.data[name].n["train"]
            return replace(trained[0], site=name, n_samples=n_samples, metrics={**trained[0].metrics, **scores})

        _run(coordinator, ask)
        return coordinator


def _run(
    coordinator: Coordinator,
    ask: Callable[[str, Request], Answer | None],
    *,
    on_update: Callable[[Broadcast, Update], None] = lambda broadcast, update: None,
) -> None:
    """Take every request to the invited sites, one after another; ``ask`` returns None for a site that failed."""
    for request in coordinator.requests():
        _gather(coordinator, request, ask, on_update)
        del request  # the message need not stay in memory while the round is closed


def _gather(
    coordinator: Coordinator,
    request: Request,
    ask: Callable[[str, Request], Answer | None],
    on_update: Callable[[Broadcast, Update], None],
) -> None:
    """Pass the sites' answers to the coordinator."""
    for name in coordinator.invited:
        answer = ask(name, request)
        if isinstance(answer, Scores):
            coordinator.add_scores(answer)
        elif answer is not None and coordinator.accept(answer) and request.task == "train":
            on_update(request.broadcast, answer)


def _answer(site: Site, request: Request) -> Answer:
    """A site's answer to a request."""
    if request.task == "statistics":
        return site.statistics()
    if request.task == "unmask":
        return site.unmask(request.broadcast)
    return site.train(request.broadcast) if request.task == "train" else site.validate(request.broadcast)


def _coordinator(job: JobSpec, folder: Path, on_progress: Callable[[Coordinator], None] | None) -> Coordinator:
    if job.federation.encryption != "masks":
        return Coordinator(job, folder, on_progress=on_progress)
    from fedshift.federation.encryption.masks.server import MaskedCoordinator

    log.warning("job %s: in one process there is nobody to hide from: the sites' keys are not signed", job.name)
    return MaskedCoordinator(job, folder, on_progress=on_progress)


def _masks(job: JobSpec, site: str, folder: Path, policy: Policy | None) -> Encryption | None:
    if job.federation.encryption != "masks" or site not in job.task.sites:
        return None
    from fedshift.federation.encryption.masks.protocol import FEWEST
    from fedshift.federation.encryption.masks.site import SiteMasks

    least = FEWEST if policy is None else policy.min_sites_in_sum
    return SiteMasks(job, site, folder=folder / SITE_STATE / site, run=job.name, identity=None, least=least)


def _begin(coordinator: Coordinator, *, resume: bool) -> None:
    """Go on from the last closed round, or else delete what an earlier run left."""
    done = coordinator.resume() if resume else -1
    # The models of a run that had been finished are scored again: a site may have been missing.
    coordinator.results.final, coordinator.results.evaluations = None, []
    if done < 0:
        coordinator.start_anew()
        shutil.rmtree(coordinator.folder / SITE_STATE, ignore_errors=True)
