"""Score a segmentation model on scans with masks, such as those of a hospital that took no part in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from fedshift.data.casefiles import CaseFiles, Decoded, known_spacing, read_case
from fedshift.data.dicom_masks import is_dicom_mask
from fedshift.data.labels import every_label, settle_labels
from fedshift.data.pairing import UNNAMED, ScanSet
from fedshift.data.scans import Scan
from fedshift.inference.model import Choice, Model, ReadyModel
from fedshift.inference.segment import predict_mask, ready_from
from fedshift.schema.errors import ConfigError, DataError, FedshiftError
from fedshift.schema.evaluation import Distribution
from fedshift.schema.seeding import derive_seed
from fedshift.tasks.evaluation.by_class import distributions, scores_by_class


@dataclass(frozen=True)
class Scored:
    """One case. ``scores``: foreground class -> score -> value, of the classes that the mask outlines."""

    id: str
    image: Path
    scores: Mapping[str, Mapping[str, float]]
    known_spacing: bool = True
    """Whether the voxel size is known; without it, distances in mm and volumes in ml mean nothing."""
    error: str | None = None


def labelled_cases(
    model: Model, sets: Sequence[ScanSet], *, labels: Mapping[str, Sequence[int | str]], annotated: Sequence[str] | None
) -> list[CaseFiles]:
    """The cases of one or more folders, with the meaning of their masks' values for this model.

    Raises:
        ConfigError: the masks do not fit the model's classes, or the scans its sequences.
        DataError: an image or a mask without its counterpart, or no case at all.
    """
    classes, wanted = model.header.job.task.classes, model.sequences
    cases: list[CaseFiles] = []
    for found in sets:
        errors = [finding.sentence() for finding in found.findings if finding.level == "error"]
        if errors:
            raise DataError("\n  ".join(["nothing was scored, images and masks do not go together:", *errors]))
        meant = settle_labels(
            given=labels,
            described=found.described_labels(labels),
            classes=classes,
            annotated=annotated,
            codes=model.header.job.task.codes,
            named=all(is_dicom_mask(case.mask) for case in found.cases),
        )
        if meant is None:
            raise ConfigError(
                f"{found.folder}: nothing says which values of the masks stand for {', '.join(classes[1:])}: name "
                f"them, as in {every_label(classes)}"
            )
        cases += [replace(_with_sequences(case, wanted), labels=meant) for case in found.cases]
    if not cases:
        raise DataError(f"{sets[0].folder if sets else 'the folder'} holds no scan with a mask")
    return cases


def _with_sequences(case: CaseFiles, wanted: Sequence[str]) -> CaseFiles:
    """The case with the model's sequences, in the model's order; those without names are taken to be in it."""
    if len(case.images) != max(len(wanted), 1):
        raise ConfigError(
            f"{case.image}: case {case.id} has {len(case.images)} sequence(s), and the model takes "
            f"{', '.join(wanted) or 'one'}: name them with --sequence"
        )
    if not wanted or all(UNNAMED.fullmatch(name) for name in case.sequences):
        return case
    known, names = list(case.sequences), list(wanted)
    if set(known) != set(names):
        known, names = [name.lower() for name in known], [name.lower() for name in names]
    if sorted(known) != sorted(names):
        example = " ".join(f"--sequence {name}=PATTERN" for name in wanted)
        raise ConfigError(
            f"{case.image}: case {case.id} has {', '.join(case.sequences)}, and the model takes {', '.join(wanted)}: "
            f"say which files are which with {example} and --masks"
        )
    order = [known.index(name) for name in names]
    channels = case.channels or (None,) * len(order)
    return replace(
        case,
        images=tuple(case.images[number] for number in order),
        channels=tuple(channels[number] for number in order),
        sequences=tuple(wanted),
    )


def score_cases(
    model: Model,
    ready: ReadyModel,
    cases: Sequence[CaseFiles],
    *,
    tolerance: float,
    true_spacing: bool = False,
    begin: Callable[[str], None] = lambda case: None,
) -> Iterator[Scored]:
    """Yield one result per case, on the scan's own grid. A case that cannot be read has an error and no scores.

    Args:
        model: from `fedshift.inference.model.open_model`.
        ready: from `ready_for`.
        cases: from `labelled_cases`.
        tolerance: of surface Dice, in mm.
        true_spacing: whether voxels of 1 x 1 x 1 mm are no placeholder.
        begin: called with the id of each case before it is read.
    """
    for case in cases:
        begin(case.id)
        try:
            yield _scored(model, ready, case, tolerance, true_spacing=true_spacing)
        except FedshiftError as error:
            yield Scored(case.id, case.image, {}, error=str(error))


def ready_for(
    model: Model, cases: Sequence[CaseFiles], choice: Choice, *, device: str = "auto", true_spacing: bool = False
) -> ReadyModel:
    """Prepare a model for scoring; with ``choice.own``, statistics come from the cases that can be read.

    ``true_spacing``: as of `score_cases`.

    Raises:
        ConfigError: as `fedshift.inference.model.make_ready`.
        DataError: none of the cases can be read.
    """
    readers = [partial(_image_of, case) for case in cases]
    return ready_from(model, readers, choice, device=device, true_spacing=true_spacing)


def _image_of(case: CaseFiles) -> tuple[Scan, np.ndarray]:
    decoded = _decoded(case)
    return decoded.image, _sequences(decoded)


def _decoded(case: CaseFiles) -> Decoded:
    decoded, findings = read_case(case)
    if decoded is None:
        raise DataError("; ".join(finding.sentence() for finding in findings if finding.level == "error"))
    return decoded


def _sequences(decoded: Decoded) -> np.ndarray:
    """(S, z, y, x)."""
    return np.stack([image.voxels for image in decoded.images])


def _scored(model: Model, ready: ReadyModel, case: CaseFiles, tolerance: float, *, true_spacing: bool) -> Scored:
    decoded, classes = _decoded(case), model.header.job.task.classes
    scan = decoded.image
    spacing = known_spacing(scan, true=true_spacing)
    predicted = predict_mask(model, ready, scan, _sequences(decoded), spacing=spacing)
    assert case.labels is not None
    numbers = {name: classes.index(name) for name in case.labels.annotated or classes[1:]}
    scores = scores_by_class(predicted, decoded.mask.voxels, numbers, scan.spacing[::-1], tolerance=tolerance)
    return Scored(case.id, case.image, scores, known_spacing=spacing is not None)


def summary(scored: Sequence[Scored], classes: Sequence[str], *, seed: int = 0) -> dict[str, Distribution]:
    """Of each score over the cases without an error, for the mean over classes and for each class.

    Raises:
        ConfigError: folders whose masks outline different classes.
    """
    cases = [case.scores for case in scored if case.error is None]
    if len({tuple(case) for case in cases}) > 1:
        raise ConfigError("the folders' masks outline different classes: score one folder at a time")
    if not cases:
        return {}
    return distributions(cases, classes, seed=derive_seed(seed, "scoring", 0, "bootstrap"), share_cases=True)
