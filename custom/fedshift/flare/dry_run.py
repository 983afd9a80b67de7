"""A job's first steps at one site, on its own data, with nothing sent: what would leave is shown instead.

The answers are encoded as the executor encodes them; the other sites are absent. A validation is answered in whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, from_shareable

from fedshift.data.locate import SiteSettings
from fedshift.federation.ledger_heads import SiteLedger
from fedshift.federation.server.coordinator import Coordinator, Request
from fedshift.federation.site.privacy.ledger import HEAD_FILE
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.flare import codec
from fedshift.flare.export import SPEC
from fedshift.flare.validation.job import models_of, read_validation_spec
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Answer, Broadcast, SiteInfo, Update
from fedshift.schema.policy import LEDGER_FILE, listed_packages


@dataclass(frozen=True)
class Item:
    """One thing in a message: an array with its shape and type, or a plain value."""

    name: str
    value: Any

    @property
    def shape(self) -> str:
        """``16x3x3x3 float32``, or the value itself."""
        if not isinstance(self.value, np.ndarray):
            return str(self.value)
        size = "x".join(str(length) for length in self.value.shape) or "a number"
        return f"{size} {self.value.dtype}"

    @property
    def bytes(self) -> int:
        """Size of the array; 0 for plain values."""
        return self.value.nbytes if isinstance(self.value, np.ndarray) else 0


@dataclass(frozen=True)
class Sent:
    """A site's answer to one task."""

    task: str
    items: tuple[Item, ...]


class _Alone(Coordinator):
    """A server that meets one site only; validation data may be at the others."""

    def require_validation_data(self) -> None:
        return


def dry_run(
    job: JobSpec,
    name: str,
    data: Path,
    folder: Path,
    *,
    settings: SiteSettings,
    steps: int = 1,
    ledger: Path | None = None,
) -> list[Sent]:
    """Have a site answer the job's first tasks: statistics and round 1, or the evaluation if the job holds it out.

    The answers of an encrypted job are shown unencrypted.

    Args:
        job: it starts from random weights here, since a file of starting weights is at the server; but with adapters
            from its base, which is at every site.
        name: the site.
        data: its prepared folder.
        folder: for temporary files; the caller deletes it.
        settings: device, folder of bases and privacy policy are used.
        steps: optimiser steps.
        ledger: folder of the site's ledger, which is read for what the budget still allows, and not written.

    Raises:
        ConfigError: the job does not ask this site.
        DataError: the data cannot be used.
        PolicyError: the site's policy forbids what the job's methods send.
        QuorumError: the server would reject an answer; the message says why.
    """
    if name not in job.task.everyone:
        raise ConfigError("other-site", f"job {job.name} is for {', '.join(job.task.everyone)}, not for site {name}")
    packages = listed_packages(settings.privacy, simulated=False)
    if name in job.task.held_out:
        return [_evaluation(job, name, data, folder, settings, steps)]
    short = _shortened(job, steps)
    privacy = settings.privacy
    if privacy is not None and job.federation.encryption is not None:
        privacy = privacy.model_copy(update={"encryption": None})  # the job encrypts; what it runs as here does not
    account = _copied_ledger(ledger, folder / "ledger")
    options = SiteOptions(
        folder / "site",
        device=settings.device,
        devices=settings.devices,
        weights=settings.weights,
        policy=privacy,
        packages=packages,
        ledger=account,
    )
    site = Site(short, name, data, options)
    server = _Alone(short, folder / "server", weights=settings.weights)
    kept = SiteLedger(name, account)
    statistics, first = site.statistics(), kept.head()
    requests = server.requests()
    update = site.train(_first_round(server, requests, site.info(), statistics))
    server.accept(update)
    next(requests)
    return [
        contents(codec.STATISTICS, Answer(statistics, site.info(), first)),
        contents(codec.TRAIN, Answer(update, site.info(), kept.head())),
    ]


def dry_run_validation(
    job: Path, name: str, data: Path, folder: Path, *, settings: SiteSettings, ledger: Path | None = None
) -> Sent:
    """Have a site answer a validation (``fedshift job --evaluate``): the models of the job score its cases.

    Args:
        job: the job's folder.
        name: the site.
        data: its prepared folder.
        folder: for temporary files; the caller deletes it.
        settings: the device and the privacy policy are used.
        ledger: as for `dry_run`.

    Raises:
        ConfigError: the job does not ask this site.
        DataError: the data cannot be used.
        PolicyError: the site's policy forbids that anything is told, or there are too few cases.
    """
    spec = read_validation_spec(job / SPEC)
    if name not in spec.sites:
        raise ConfigError("other-site", f"job {spec.validation} is for {', '.join(spec.sites)}, not for site {name}")
    from fedshift.inference.validation import answer

    account = _copied_ledger(ledger, folder / "ledger")
    validation = answer(data, name, spec, models_of(job), settings.privacy, ledger=account, device=settings.device)
    return Sent(codec.SCORE, tuple(_plain(validation.model_dump(mode="json", exclude_none=True), (name,))))


def _copied_ledger(ledger: Path | None, copy: Path) -> Path:
    """A folder with the site's ledger, so that its own is not written."""
    copy.mkdir(parents=True)
    for file in (LEDGER_FILE, HEAD_FILE):
        if ledger is not None and (ledger / file).is_file():
            shutil.copy(ledger / file, copy)
    return copy


def _evaluation(job: JobSpec, name: str, data: Path, folder: Path, settings: SiteSettings, steps: int) -> Sent:
    """A held-out site's answer: scores. Its own statistics stand in for those of the training sites."""
    site = Site(
        _shortened(job, steps),
        name,
        data,
        SiteOptions(
            folder / "site",
            device=settings.device,
            weights=settings.weights,
            packages=listed_packages(settings.privacy, simulated=False),
            share_cases=settings.privacy is not None and settings.privacy.case_scores,
        ),
    )
    statistics = site.statistics()
    info = replace(site.info(), n_train=statistics.n_samples)
    server = _Alone(_shortened(job, steps, trains=name), folder / "server", weights=settings.weights)
    broadcast = _first_round(server, server.requests(), info, statistics)
    return contents(codec.VALIDATE, Answer(site.validate(broadcast), site.info()))


def _first_round(server: Coordinator, requests: Iterator[Request], info: SiteInfo, statistics: Update) -> Broadcast:
    """The message of round 1, after the statistics round, as the site receives it."""
    next(requests)
    server.register(info)
    server.accept(statistics)
    # A copy, since a site's message shares no memory with the server's.
    return codec.decode_task(deepcopy(codec.encode_task(next(requests).broadcast)))


def _shortened(job: JobSpec, steps: int, trains: str | None = None) -> JobSpec:
    """The job with few steps, random weights and a quorum of one site; ``trains`` is moved to the training sites.

    Adapters keep the weights that they are trained beside.
    """
    raw = job.dump()
    if job.task.network.adapters is None:
        raw["task"]["network"]["weights"] = None
    raw["task"]["schedule"]["local_steps"] = steps
    raw["federation"] |= {"robust": None, "min_sites": 1, "sites_per_round": None, "hosts": None, "encryption": None}
    if trains in raw["task"]["held_out"]:
        raw["task"]["held_out"].remove(trains)
        raw["task"]["sites"].append(trains)
    return JobSpec.parse(raw, where=f"job {job.name}")


def contents(task: str, answer: Answer) -> Sent:
    """Everything in the message, in its order."""
    return Sent(task, tuple(_items(from_shareable(codec.encode_answers([answer])), ())))


def _items(dxo: DXO, path: tuple[str, ...]) -> Iterator[Item]:
    for name, value in dxo.meta.items():
        yield from _plain(value, (*path, name))
    for name, value in dxo.data.items():
        if isinstance(value, DXO):
            yield from _items(value, (*path, name))
        else:
            yield Item("/".join((*path, name)), value)


def _plain(value: Any, path: tuple[str, ...]) -> Iterator[Item]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _plain(inner, (*path, str(name)))
    else:
        yield Item("/".join(path), value)
