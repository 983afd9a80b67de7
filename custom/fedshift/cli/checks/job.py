"""A job that a party is to run: whether it is one for it, and whether memory has room for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedshift.cli.checks.remark import Remark
from fedshift.data.locate import find_site, read_settings
from fedshift.federation.memory import GIGA, SPARE, Need, most_images, need_at_server, needs_at_site
from fedshift.schema.components import admit
from fedshift.schema.errors import FedshiftError
from fedshift.schema.identity import own_identity
from fedshift.schema.policy import listed_packages

if TYPE_CHECKING:
    from fedshift.flare.kit import Kit
    from fedshift.schema.job import JobSpec
    from fedshift.schema.packages import PackageSpec

JOB_LIMIT = 30.0
"""Seconds for a forward pass of the job's network, by which its memory is known."""


def about_job(kit: Kit | None, job: JobSpec) -> Iterator[Remark]:
    """What the job asks of this party, and what server and sites compare before they work together."""
    if kit is not None and kit.role == "site" and kit.name not in job.task.everyone:
        text = f"{job.name} is for {', '.join(job.task.everyone)}, not for {kit.name}: ask the coordinator"
        yield Remark("error", "job", text)
        return
    if kit is None or kit.role != "console":
        listed = None if kit is None or kit.role == "server" else _listed(kit)
        admit(job.packages, where=job.name, listed=listed)
    text = f"{job.name} can be read; the server takes a site's answers if both run fedshift {own_identity()}"
    yield Remark("ok", "job", text)


def _listed(kit: Kit) -> Mapping[str, PackageSpec] | None:
    return listed_packages(read_settings(kit.local).privacy, simulated=False)


def about_job_memory(kit: Kit | None, job: JobSpec) -> Iterator[Remark]:
    """What a job needs beside what is free; without a kit, at the first of its sites whose data are here."""
    if kit is not None and kit.role == "console":
        return
    try:
        needs = list(_needs(kit, job))
    except FedshiftError as error:
        yield Remark("note", "job memory", f"not estimated: {error}")
        return
    for need in needs:
        needed, free = need.bytes_for(1), need.free
        text = f"{job.name} needs about {needed / GIGA:.1f} GB of {need.where}memory, {free / GIGA:.1f} GB are free"
        if need.fits(1):
            yield Remark("ok" if needed <= SPARE * free else "warning", "job memory", text + _tight(needed, free))
            continue
        images = most_images([need], 1)
        mend = (
            f"ask the coordinator for --set schedule.batch_size={images}"
            if images
            else "free some, or use another machine"
        )
        yield Remark("error", "job memory", f"{text}: {mend}")


def _tight(needed: int, free: int) -> str:
    return "" if needed <= SPARE * free else ": it will be tight, end other programs"


def _needs(kit: Kit | None, job: JobSpec) -> Iterator[Need]:
    import torch

    from fedshift.federation.footprint import footprint
    from fedshift.tasks.device import choose_device
    from fedshift.tasks.precision import settled

    local = None if kit is None else kit.local
    device = choose_device(read_settings(local).device)
    measured = footprint(job, precision=settled(job.task.schedule.precision, device))
    if kit is not None and kit.role == "server":
        yield need_at_server(measured)
        return
    if device.type == "cuda":
        measured = replace(measured, gpus=(torch.cuda.mem_get_info(device)[0],))
    yield from needs_at_site(job, _folder(kit, job), measured)


def _folder(kit: Kit | None, job: JobSpec) -> Path:
    """The data that the job would train on here; without a kit, of the first of its sites that is on this machine."""
    if kit is not None:
        return find_site(job.task.dataset, kit.name, local=kit.local, simulator=False)
    missing: FedshiftError | None = None
    for site in job.task.everyone:
        try:
            return find_site(job.task.dataset, site, local=None, simulator=True)
        except FedshiftError as error:
            missing = missing or error
    raise missing or AssertionError("a job has sites")
