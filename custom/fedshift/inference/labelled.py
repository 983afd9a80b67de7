"""Score a classifier on pictures or volumes with a table of labels, such as those of another hospital."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from data_prep.own_labels import prepare_labelled
from fedshift.inference import classify
from fedshift.inference.classify import ImageRead, Input, Thresholds
from fedshift.inference.model import Model
from fedshift.inference.ready import Choice, ReadyModel
from fedshift.schema.errors import DataError
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.seeding import derive_seed
from fedshift.tasks.base import Subset
from fedshift.tasks.classification.pictures import Images
from fedshift.tasks.classification.task import Task
from fedshift.tasks.evaluation.case_scores import CaseScores
from fedshift.tasks.evaluation.guarantee import CaseRisks

SITE = "evaluated"


@dataclass(frozen=True)
class LabelledScores:
    """What a model makes of labelled images.

    ``ids`` (n,), ``truth`` (n, K): 1, 0, or NaN where unknown, ``probabilities`` (n, K). ``subjects``: how many.
    ``risks``: risk curves of the cases. ``left_out``: how many rows of the table could not be read.
    """

    ids: Sequence[str]
    truth: np.ndarray
    probabilities: np.ndarray
    subjects: int
    thresholds: Thresholds | None
    statistics: str
    evaluation: Evaluation
    risks: CaseRisks


def score(
    model: Model,
    table: Path,
    *,
    images: Path | None,
    choice: Choice,
    subject: str | None = None,
    device: str = "auto",
    bits: int | None = None,
    volume: int | None = None,
    true_spacing: bool = False,
    progress: Callable[[str], None] | None = None,
) -> LabelledScores:
    """Prepare what a table lists, as a site does, in a folder that is deleted afterwards; then score the model on it.

    Args:
        model: a classifier.
        table: see `fedshift.data.label_table`; the rows of all sites.
        images: the folder that the table's files are in; by default the table's.
        choice: whose statistics, and whose thresholds of findings.
        subject: whose an image in a folder of a class is.
        device: a torch device name, or ``auto``.
        bits: that grey pictures of 16 bits use.
        volume: which one is taken of files with several volumes, from 1.
        true_spacing: voxels of 1 x 1 x 1 mm are no placeholder.
        progress: called with the name of each image before it is read.

    Raises:
        DataError: the table or an image cannot be used.
        ConfigError: as `fedshift.inference.ready.make_ready`.
    """
    task, job = cast(Task, model.task), model.header.job
    thresholds = classify.thresholds_of(model, choice) if task.findings else None
    specific = classify.specific_thresholds(model, choice)
    choice = classify.of_statistics(model, choice, thresholds={**model.header.thresholds, **model.header.specific})
    of_pictures = (
        {} if model.classifies_volumes else {"sizes": (model.data["size"],), "channels": model.data["channels"]}
    )
    with tempfile.TemporaryDirectory(prefix="fedshift-") as root:
        folder = prepare_labelled(
            table,
            SITE,
            Path(root),
            dataset=job.task.dataset,
            images=images,
            subject=subject,
            classes=job.task.classes,
            findings=task.findings,
            volumes=model.classifies_volumes,
            wanted=model.sequences,
            volume=volume,
            true_spacing=true_spacing,
            bits=bits,
            every_site=True,
            progress=progress,
            **of_pictures,
        )
        data = task.open_labelled(folder, SITE)
        ready = classify.ready_for(model, _inputs(data), choice, device=device)
        kept = CaseScores()
        scored = task.with_thresholds({} if thresholds is None else thresholds.values, specific)
        seed = derive_seed(job.seed, SITE, 0, "bootstrap")
        probabilities = _probabilities(ready, data, "all")
        evaluation = scored.evaluate(probabilities, data, "all", seed=seed, share_cases=True, keep=kept)
        assert kept.truth is not None and kept.probabilities is not None
        ids = _ids(data)
        return LabelledScores(
            ids,
            kept.truth,
            kept.probabilities,
            len(set(kept.subjects or ids)),
            thresholds,
            ready.statistics,
            evaluation,
            task.risks(iter([torch.from_numpy(kept.probabilities)]), data, "all"),
        )


def scores_at_site(
    model: Model, folder: Path, ids: Sequence[str], part: Subset, choice: Choice, *, device: str
) -> CaseScores:
    """The scores of single cases of a prepared site: those of `score` on the same images.

    Args:
        model: a classifier.
        folder: the site's.
        ids: of the part's cases, in the order of the scores.
        part: which of them are scored.
        choice: as of `score`.
        device: a torch device name, or ``auto``.

    Raises:
        DataError: the folder cannot be used.
        ConfigError: as `fedshift.inference.ready.make_ready`.
    """
    task = cast(Task, model.task)
    thresholds = classify.thresholds_of(model, choice) if task.findings else None
    specific = classify.specific_thresholds(model, choice)
    choice = classify.of_statistics(model, choice, thresholds={**model.header.thresholds, **model.header.specific})
    data = task.open_labelled(folder, SITE)
    members = data.members(part)
    everyone = _ids(data)
    if [everyone[number] for number in members] != list(ids):
        raise DataError(
            "other-cases", f"{folder}: its arrays have other cases than its manifest: prepare the site again"
        )
    ready = classify.ready_for(model, _inputs(data), choice, device=device)
    scored, kept = task.with_thresholds({} if thresholds is None else thresholds.values, specific), CaseScores()
    scored.evaluate(_probabilities(ready, data, part), data, part, seed=0, share_cases=False, keep=kept)
    return kept


def _inputs(data: Images) -> list[Input]:
    def read(number: int) -> ImageRead:
        return ImageRead(data.images(np.array([number]))[0])

    return [Input(Path(name), name, partial(read, k)) for k, name in enumerate(_ids(data))]


def _ids(data: Images) -> list[str]:
    manifest = data.manifest
    return [case.id for case in manifest.cases] or [picture.id for picture in manifest.pictures]


@torch.inference_mode()
def _probabilities(ready: ReadyModel, data: Images, part: Subset) -> Iterator[Tensor]:
    for images in data.eval_images(part):
        yield ready.model.task.probabilities(ready.logits(images))
