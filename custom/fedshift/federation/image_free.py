"""The scores of an image-free guess (`fedshift.tasks.evaluation.image_free`) where the masks of all sites are at hand.

In a federation of real sites masks stay at home, and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedshift.schema.evaluation import Evaluation
from fedshift.schema.job import JobSpec
from fedshift.schema.results import Metrics, read_results
from fedshift.tasks.base import ScanData, Subset
from fedshift.tasks.evaluation.image_free import ImageFreeGuess, MaskStack
from fedshift.tasks.kinds import build_task


def can_guess(job: JobSpec) -> bool:
    """Whether the job segments: labels of whole pictures have no place to guess."""
    return build_task(job).dense


def record_guess(job: JobSpec, data: Mapping[str, Path], folder: Path) -> None:
    """Add the guess's scores to ``results.json`` of a finished run in ``folder``, if its job segments.

    ``data``: each site's prepared folder; DataError if one is damaged.
    """
    results = read_results(folder)
    if results.final is None or not can_guess(job):
        return
    task = job.task
    scored: list[tuple[str, Subset]] = [*((site, "test") for site in task.sites), *((s, "all") for s in task.held_out)]
    scores: dict[str, dict[str, Metrics]] = {}
    for (site, subset), evaluation in score_guess(job, data, trained=task.sites, scored=scored).items():
        scores.setdefault(site, {})[subset] = dict(evaluation.scores)
    results.final.image_free = scores
    results.write(folder)


def score_guess(
    job: JobSpec, data: Mapping[str, Path], *, trained: Sequence[str], scored: Sequence[tuple[str, Subset]]
) -> dict[tuple[str, Subset], Evaluation]:
    """Evaluate the guess from the training masks of the sites ``trained`` as a final model is evaluated.

    ``scored``: sites and subsets to score; those without samples are left out. The job segments.

    Raises:
        DataError: a folder is damaged or not what the job expects.
    """
    task = build_task(job)
    names = dict.fromkeys([*trained, *(site for site, _ in scored)])
    sites = {name: _open(job, data[name], name) for name in names}

    def stacks() -> Iterator[MaskStack]:
        for name in trained:
            site = sites[name]
            annotated = site.manifest.annotated
            outlined = [
                number for number, cls in enumerate(job.task.classes) if number and cls in (annotated or (cls,))
            ]
            for index in site.stacks("train"):
                heights, thickness = site.heights(index)
                yield MaskStack(heights, thickness, _slices(site.labels(index)), outlined)

    n_classes, regions = len(job.task.classes), job.task.made_regions
    table = torch.eye(n_classes) if regions is None else torch.from_numpy(regions.table)
    guess = ImageFreeGuess(stacks, n_classes=n_classes)

    def probabilities(site: ScanData, subset: Subset) -> Iterator[Tensor]:
        for index in site.eval_index(subset):
            labels = site.labels(index)
            classes = torch.from_numpy(guess.classes(site.heights(index)[0], labels.shape[-2:])).view_as(labels)
            yield table[classes].movedim(-1, 1).float()

    return {
        (name, subset): task.at(site).evaluate(probabilities(site, subset), site, subset, seed=0, share_cases=True)
        for name, subset in scored
        for site in (sites[name],)
        if site.count(subset)
    }


def _open(job: JobSpec, folder: Path, name: str) -> ScanData:
    site = build_task(job).open(folder, name)
    assert isinstance(site, ScanData)
    return site


def _slices(labels: Tensor) -> np.ndarray:
    """Labels of a case, (1, z, y, x) or (z, y, x), as (z, y, x)."""
    return (labels[0] if labels.dim() == 4 else labels).numpy()
