"""A job with all its sites in one process: for tests, benchmarks and sweeps.

The same `Site` and `Coordinator` run under FLARE (``fedshift.flare``); here messages are function calls. Centralised
references, which no federation can run, are here too.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedshift.federation.domain_gradients import DomainGradients
from fedshift.federation.reference import site_reference
from fedshift.federation.run_lock import lock_run
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.job_network import JobNetwork
from fedshift.federation.site.outbound import Encryption
from fedshift.federation.site.pooled import PooledSite
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.methods import method_set
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast, Update
from fedshift.schema.policy import Policy

log = logging.getLogger("fedshift")

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
    coordinator_class = _coordinator_class(job)
    with lock_run(folder):
        coordinator = coordinator_class(job, folder, on_progress=on_progress)
        if coordinator.is_pooled:
            method_set.require_federation(job)
        _begin(coordinator, resume=resume)
        sites = _Sites(job, data, folder / SITE_STATE, device, privacy or {})
        gradients = DomainGradients.of_job(job, own_models=coordinator.own_models)
        for request in coordinator.requests():
            for name in coordinator.invited:
                try:
                    site = sites.open(name)
                    answer = site.answer(request.task, request.broadcast)
                    if gradients.wanted and request.task == "validate":
                        gradients.add(site, request.broadcast)
                except Exception as error:  # a site that fails is recorded and left out, as under FLARE
                    log.debug("site %s", name, exc_info=True)
                    coordinator.reject(name, request.task, str(error))
                    continue
                accepted = coordinator.take(answer, site.info())
                if accepted and request.task == "train" and isinstance(answer, Update):
                    on_update(request.broadcast, answer)
            del request  # the message need not stay in memory while the round is closed
        if gradients.wanted:
            gradients.record(coordinator)
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
        options = SiteOptions(folder / SITE_STATE, device=device, describe_scans=site_reference)
        trainer = PooledSite(job, data, options)
        options = replace(options, job_network=trainer.job_network)
        sites = {name: Site(job, name, data[name], options) for name in job.task.everyone}
        for request in coordinator.requests():
            trained = trainer.train(request.broadcast) if request.task == "train" else None
            for name in coordinator.invited:
                site = sites[name]
                if trained is None:
                    answer = site.answer(request.task, request.broadcast)
                else:
                    with site.loaded(request.broadcast) as model:
                        metrics = {**trained.metrics, **model.of_round(request.broadcast.round - 1)}
                    answer = replace(trained, site=name, n_samples=site.info().n_train, metrics=metrics)
                coordinator.take(answer, site.info())
            del request
        return coordinator


@dataclass
class _Sites:
    """The sites of a run, each opened when it is first asked. They use one network."""

    job: JobSpec
    data: Mapping[str, Path]
    state: Path
    device: str
    policies: Mapping[str, Policy]
    opened: dict[str, Site] = field(default_factory=dict)
    network: JobNetwork | None = None

    def open(self, name: str) -> Site:
        if name not in self.opened:
            policy, masked = self.policies.get(name), self.job.federation.encryption == "masks"
            self.network = self.network or JobNetwork.load(self.job, name, device=self.device)
            options = SiteOptions(
                self.state,
                job_network=self.network,
                policy=policy,
                share_cases=policy is None or policy.case_scores,
                describe_scans=site_reference,
                encryption=self._masks(name, policy) if masked and name in self.job.task.sites else None,
                keep_answers=masked,
            )
            self.opened[name] = Site(self.job, name, self.data[name], options)
        return self.opened[name]

    def _masks(self, name: str, policy: Policy | None) -> Encryption:
        from fedshift.federation.encryption.masks.protocol import FEWEST
        from fedshift.federation.encryption.masks.site import SiteMasks

        least = FEWEST if policy is None else policy.min_sites_in_sum
        return SiteMasks(self.job, name, folder=self.state / name, run=self.job.name, identity=None, least=least)


def _coordinator_class(job: JobSpec) -> type[Coordinator]:
    if job.federation.encryption == "ckks":
        raise ConfigError(
            "encryption-in-process",
            f"job {job.name} asks for encryption, and in one process there is nobody to hide from: "
            "--set federation.encryption=null",
        )
    if job.federation.encryption is None:
        return Coordinator
    from fedshift.federation.encryption.masks.server import MaskedCoordinator

    log.warning("job %s: in one process there is nobody to hide from: the sites' keys are not signed", job.name)
    return MaskedCoordinator


def _begin(coordinator: Coordinator, *, resume: bool) -> None:
    """Go on from the last closed round, or else delete what an earlier run left."""
    if not resume or coordinator.resume() < 0:
        coordinator.start_anew()
        shutil.rmtree(coordinator.folder / SITE_STATE, ignore_errors=True)
