"""How a job's sites that are prepared on this machine fit it, before anything is sent or trained."""

from __future__ import annotations

from pathlib import Path

from fedshift.data.locate import find_site
from fedshift.data.resampled import Preparation
from fedshift.schema.errors import DataError
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import Manifest, read_manifest
from fedshift.tasks.kinds import build_task
from fedshift.tasks.segmentation.patch_task import Task as PatchTask


def misfits(job: JobSpec) -> list[str]:
    """What does not fit, a sentence each: other classes, a missing sequence, a class that no training site outlines.

    Sites that are not prepared here are not asked; each site checks its own data when the job comes.
    """
    task = build_task(job)
    sequences = task.sequences if isinstance(task, PatchTask) else ()
    manifests: dict[str, Manifest] = {}
    sentences = []
    for site, folder in _prepared(job).items():
        try:
            manifests[site] = read_manifest(folder)
            manifests[site].check_is(folder, dataset=job.task.dataset, site=site, classes=job.task.classes)
            if manifests[site].cases:
                Preparation(sequences=sequences).numbers(manifests[site], folder)
        except DataError as error:
            sentences.append(str(error))
    missing = _never_outlined(job, manifests)
    if not sentences and missing:
        sentences.append(
            f"the masks of no site outline {', '.join(missing)}: prepare a site whose masks do, or leave it out of the "
            "task's classes and prepare the sites with these"
        )
    return sentences


def _prepared(job: JobSpec) -> dict[str, Path]:
    """The sites that are prepared on this machine."""
    folders = {}
    for site in job.task.everyone:
        try:
            folders[site] = find_site(job.task.dataset, site, local=None, simulator=True)
        except DataError:
            continue  # it is elsewhere
    return folders


def _never_outlined(job: JobSpec, manifests: dict[str, Manifest]) -> list[str]:
    """The classes that no training site's masks outline; none if a site is not here, or outlines all."""
    annotated = [manifests[site].annotated if site in manifests else None for site in job.task.sites]
    outlined: set[str] = set()
    for names in annotated:
        if names is None:
            return []
        outlined |= set(names)
    return [name for name in job.task.classes[1:] if name not in outlined]
