"""A job with all its sites in one process: for tests, benchmarks and sweeps.

The same `Site` and `Coordinator` run under FLARE (``fedshift.flare``); here messages are function calls. Centralised
references, which no federation can run, are here too.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fedshift.data.locate import DEVICES
from fedshift.data.samples import EverySite, Union
from fedshift.federation.run_lock import lock_run
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.job_network import JobNetwork
from fedshift.federation.site.outbound import Encryption, Outbound
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.federation.survey_answer import site_reference
from fedshift.methods import method_set
from fedshift.methods.chain import ClientChain
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import manifest_sha256
from fedshift.schema.messages import Broadcast, Update
from fedshift.schema.policy import Policy, listed_packages
from fedshift.tasks.device import own_devices
from fedshift.tasks.kinds import build_task

log = logging.getLogger("fedshift")

SITE_STATE = "site_state"
"""Folder of the sites' state inside a run's folder."""

OnAggregate = Callable[[Coordinator, Mapping[str, Site], Broadcast], None]
"""Called with each message that holds the aggregate of a round, before sites answer it, and with the run's sites."""


def run_in_process(
    job: JobSpec,
    data: Mapping[str, Path],
    folder: Path,
    *,
    device: str = "auto",
    devices: int | None = None,
    resume: bool = False,
    on_progress: Callable[[Coordinator], None] | None = None,
    on_update: Callable[[Broadcast, Update], None] = lambda broadcast, update: None,
    on_aggregate: OnAggregate = lambda coordinator, sites, broadcast: None,
    privacy: Mapping[str, Policy] | None = None,
) -> Coordinator:
    """Run a job with every site in this process, one after another.

    Args:
        job: the resolved job.
        data: each site's prepared folder.
        folder: where results, models and the sites' state go.
        device: where to train, as torch names it; ``auto`` is a GPU if there is one.
        devices: how many of them share each batch; None for ``$FEDSHIFT_DEVICES``, else 1.
        resume: go on after the last closed round of an interrupted run in ``folder``.
        on_progress: called whenever there is something new to show.
        on_update: called with every accepted update of a training round and the message that it answers, as sent.
        on_aggregate: see `OnAggregate`.
        privacy: the policies of sites that have one.

    Raises:
        QuorumError: too few sites gave usable answers.
        ConfigError: the job is a centralised reference, or can't be resumed; another run is using ``folder``; or the
            machine has not so many devices, or they cannot train the job.
    """
    coordinator_class = _coordinator_class(job)
    with lock_run(folder):
        coordinator = coordinator_class(job, folder, on_progress=on_progress)
        if coordinator.is_pooled:
            method_set.require_federation(job)
        _begin(coordinator, resume=resume)
        number = devices or own_devices()
        sites = _Sites(job, data, folder / SITE_STATE, device, number, privacy or {})
        if number > 1:
            _ = sites.network  # what is refused is refused at once
        try:
            _answer(coordinator, sites, on_update, on_aggregate)
        finally:
            sites.end()
        return coordinator


def _answer(
    coordinator: Coordinator,
    sites: _Sites,
    on_update: Callable[[Broadcast, Update], None],
    on_aggregate: OnAggregate,
) -> None:
    """Have the sites answer all requests of a run."""
    gradients = DomainGradients(coordinator)
    for request in coordinator.requests():
        if request.broadcast.round > 1 and request.task != "unmask":
            on_aggregate(coordinator, sites, request.broadcast)
        for name in coordinator.invited:
            try:
                site = sites[name]
                answer = site.answer(request.task, request.broadcast)
                if gradients.domains and request.task == "validate":
                    gradients.add(site, request.broadcast)
            except Exception as error:  # a site that fails is recorded and left out, as under FLARE
                log.debug("site %s", name, exc_info=True)
                coordinator.reject(name, request.task, str(error))
                continue
            accepted = coordinator.take(answer, site.info())
            if accepted and request.task == "train" and isinstance(answer, Update):
                on_update(request.broadcast, answer)
        del request  # the message need not stay in memory while the round is closed
    if gradients.domains:
        gradients.record()


def run_pooled(
    job: JobSpec,
    data: Mapping[str, Path],
    folder: Path,
    *,
    device: str = "auto",
    resume: bool = False,
    on_progress: Callable[[Coordinator], None] | None = None,
    on_aggregate: OnAggregate = lambda coordinator, sites, broadcast: None,
) -> Coordinator:
    """Run a centralised reference: train on all sites' images together, and score the model at every site.

    The record is that of a federated run in which every site's update is the same model. Arguments and errors are those
    of `run_in_process`, but a site that fails ends the run, and it trains on one device.
    """
    if own_devices() > 1:
        raise ConfigError(
            "devices-unfit", f"${DEVICES} is {own_devices()}, and a centralised reference trains on one: unset it"
        )
    with lock_run(folder):
        coordinator = Coordinator(job, folder, on_progress=on_progress)
        _begin(coordinator, resume=resume)
        options = SiteOptions(folder / SITE_STATE, device=device, describe_scans=site_reference)
        trainer = PooledSite(job, data, options)
        options = replace(options, job_network=trainer.job_network)
        sites = {name: Site(job, name, data[name], options) for name in job.task.everyone}
        for request in coordinator.requests():
            if request.broadcast.round > 1:
                on_aggregate(coordinator, sites, request.broadcast)
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


class _Sites(dict[str, Site]):
    """The sites of a run, each opened when it is first asked. They use one network."""

    def __init__(
        self,
        job: JobSpec,
        data: Mapping[str, Path],
        state: Path,
        device: str,
        devices: int,
        policies: Mapping[str, Policy],
    ) -> None:
        super().__init__()
        self._job, self._data, self._state, self._policies = job, data, state, policies
        self._device, self._devices = device, devices

    @cached_property
    def network(self) -> JobNetwork:
        return JobNetwork.load(self._job, self._job.task.sites[0], device=self._device, devices=self._devices)

    def end(self) -> None:
        """End the processes that share batches with this one, if there are any."""
        if self._devices > 1 and self.network.ranks is not None:
            self.network.ranks.end()

    def __missing__(self, name: str) -> Site:
        job, policy, masked = self._job, self._policies.get(name), self._job.federation.encryption == "masks"
        options = SiteOptions(
            self._state,
            job_network=self.network,
            policy=policy,
            packages=listed_packages(policy, simulated=True),
            share_cases=policy is None or policy.case_scores,
            describe_scans=site_reference,
            encryption=self._masks(name, policy) if masked and name in job.task.sites else None,
            keep_answers=masked,
        )
        self[name] = Site(job, name, self._data[name], options)
        return self[name]

    def _masks(self, name: str, policy: Policy | None) -> Encryption:
        from fedshift.federation.encryption.masks.protocol import FEWEST
        from fedshift.federation.encryption.masks.site import SiteMasks

        least = FEWEST if policy is None else policy.min_sites_in_sum
        return SiteMasks(self._job, name, folder=self._state / name, run=self._job.name, identity=None, least=least)


class PooledSite(Site):
    """A site that trains on the images of all. It has no data to score on."""

    def __init__(self, job: JobSpec, data: Mapping[str, Path], options: SiteOptions) -> None:
        """``data``: each site's prepared folder; the rest as for `Site`."""
        task = build_task(job)
        opened = {site: task.open(data[site], site) for site in job.task.sites}
        if len({site_data.manifest.annotated for site_data in opened.values()}) > 1:
            raise DataError(
                "other-classes",
                "sites that outline different classes cannot be pooled: choose sites that outline the same",
            )
        domains = [Union([opened[site] for site in sites]) for sites in job.task.groups]
        reference = method_set.pooled_reference(job.methods)
        mixed = reference is not None and reference.client().trains_on == "union"
        self._manifest_sha256 = " ".join(manifest_sha256(data[site]) for site in job.task.sites)
        task = task.at(*opened.values())
        self._set_up(job, "all sites", task, Union(domains) if mixed else EverySite(domains), options)
        for site_data in opened.values():
            site_data.hold(next(self._net.parameters()).device)
        self._outbound = Outbound(self._methods)

    def require_training(self) -> None:
        """It stands for all sites that train."""

    def _round_scores(self, chain: ClientChain, round_: int) -> dict[str, float]:
        return {}


class DomainGradients:
    """Gradient norms of the final models in domains that are divided among several sites (``domains`` of a task).

    "Mitigating Data Heterogeneity in Federated Learning with Data Augmentation" trains with twelve clients, parts of
    three domains, and prints one gradient norm a domain (Tables 8 and 9). With g_k the gradient of the mean loss over
    the n_k validation samples of site k, that of domain D is ::

        ‖Σ_{k ∈ D} n_k g_k‖ / Σ_{k ∈ D} n_k

    which the norms ‖g_k‖ do not tell. Sites of a federation do not send gradients of the final models, so only a run in
    one process has it; and none if the job does not ask for gradient norms, or sites score models of their own.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        wanted = coordinator.job.evaluation.gradient_norm and not coordinator.own_models
        self._coordinator, self.domains = coordinator, coordinator.job.task.domains if wanted else {}
        self._sums: dict[tuple[int, str], list[Tensor]] = {}
        self._samples: dict[tuple[int, str], dict[str, int]] = {}

    def add(self, site: Site, broadcast: Broadcast) -> None:
        """Add a site's gradient of a final model over its validation samples, if it is in a domain."""
        for domain in [name for name, sites in self.domains.items() if site.name in sites][:1]:
            key, n = (broadcast.round - 1, domain), site.info().n_val
            self._samples.setdefault(key, {})[site.name] = n
            if n:
                with site.loaded(broadcast) as model:
                    parts = [n * part.cpu() for part in model.gradient("val")]
                before = self._sums.get(key)
                self._sums[key] = parts if before is None else [a + b for a, b in zip(before, parts, strict=True)]

    def record(self) -> None:
        """Write the norm of each domain of which every site was added into the record of the run."""
        final = self._coordinator.results.final
        assert final is not None
        for scores in (final.best, final.last):
            for domain, sites in self.domains.items():
                parts, samples = self._sums.get((scores.round, domain)), self._samples.get((scores.round, domain), {})
                if parts is not None and samples.keys() == {*sites}:
                    length = torch.stack([part.square().sum() for part in parts]).sum().sqrt()
                    scores.domain_gradient_norms[domain] = float(length) / sum(samples.values())
        self._coordinator.files.write_results()


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
