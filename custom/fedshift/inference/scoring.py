"""Score a segmentation model on scans with masks, such as those of a hospital that took no part in training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedshift.data.case_check import Decoded, known_spacing, read_case
from fedshift.data.cases import UNNAMED, CaseFiles, CaseTable
from fedshift.data.labels import every_label, settle_labels
from fedshift.data.named_masks import names_structures
from fedshift.data.scan_file import ScanError
from fedshift.data.scans import Scan, content_hash
from fedshift.data.splits import subject_of
from fedshift.inference import segment
from fedshift.inference.model import Choice, Model, ReadyModel
from fedshift.schema.errors import ConfigError, DataError, FedshiftError
from fedshift.schema.evaluation import Distribution, OneSided
from fedshift.schema.reading import Reading
from fedshift.schema.seeding import derive_seed
from fedshift.tasks.evaluation.by_class import Side, count_one_sided, distributions, one_sided, scores_by_class
from fedshift.tasks.out_of_memory import prediction_out_of_memory


@dataclass(frozen=True)
class Scored:
    """One case. ``scores``: foreground class -> score -> value, of the classes that the mask outlines.

    A class that the mask has none of has ``false_positives`` alone (`fedshift.tasks.evaluation.by_class`).
    """

    id: str
    image: Path
    scores: Mapping[str, Mapping[str, float]]
    one_sided: Mapping[str, Side] = field(default_factory=dict)
    """The classes that the model's mask or the reader's only has; HD95 and ASD of missed ones are the diagonal."""
    known_spacing: bool = True
    """Whether the voxel size is known; without it, distances in mm and volumes in ml mean nothing."""
    warnings: tuple[str, ...] = ()
    """Of reading the case."""
    reading: Mapping[str, Reading] = field(default_factory=dict)
    """How its files were read."""
    error: str | None = None

    @property
    def lacks(self) -> tuple[str, ...]:
        """The classes that the mask has none of."""
        return tuple(name for name, values in self.scores.items() if "dice" not in values)


def labelled_cases(
    model: Model,
    sets: Sequence[CaseTable],
    *,
    labels: Mapping[str, Sequence[int | str]],
    annotated: Sequence[str] | None,
    trust_voxels: bool = False,
    interpolate: bool = False,
    empty: bool = False,
) -> list[CaseFiles]:
    """The cases of one or more folders, with the meaning of their masks' values for this model.

    ``trust_voxels`` and ``interpolate``: see `fedshift.data.cases.CaseFiles`. ``empty``: whether masks may be empty
    although the model's task does not say so.

    Raises:
        ConfigError: the masks do not fit the model's classes, or the scans its sequences.
        DataError: an image or a mask without its counterpart, or no case at all.
    """
    classes, wanted = model.header.job.task.classes, model.sequences
    cases: list[CaseFiles] = []
    for folder in sets:
        errors = [finding.sentence() for finding in folder.findings if finding.level == "error"]
        if errors:
            lines = ["nothing was scored, images and masks do not go together:", *errors]
            raise DataError("pairing", "\n  ".join(lines))
        meant = settle_labels(
            given=labels,
            described=folder.described_labels(labels),
            classes=classes,
            annotated=annotated,
            codes=model.header.job.task.codes,
            named=all(names_structures(case.mask) for case in folder.cases),
        )
        if meant is None:
            raise ConfigError(
                "labels-unknown",
                f"{folder.folder}: nothing says which values of the masks stand for {', '.join(classes[1:])}: name "
                f"them, as in {every_label(classes)}",
            )
        with_names = [_with_sequences(case, wanted) for case in folder.cases]
        may_be_empty = empty or model.header.job.task.takes_empty
        cases += [
            replace(case, labels=meant, trust_voxels=trust_voxels, interpolate=interpolate, may_be_empty=may_be_empty)
            for case in with_names
        ]
    if not cases:
        raise DataError("no-cases", f"{sets[0].folder if sets else 'the folder'} holds no scan with a mask")
    return cases


def _with_sequences(case: CaseFiles, wanted: Sequence[str]) -> CaseFiles:
    """The case with the model's sequences, in the model's order; those without names are taken to be in it."""
    if len(case.images) != max(len(wanted), 1):
        raise ConfigError(
            "sequence-count",
            f"{case.image}: case {case.id} has {len(case.images)} sequence(s), and the model takes "
            f"{', '.join(wanted) or 'one'}: name them with --sequence",
        )
    if not wanted or all(UNNAMED.fullmatch(name) for name in case.sequences):
        return case
    known, names = list(case.sequences), list(wanted)
    if set(known) != set(names):
        known, names = [name.lower() for name in known], [name.lower() for name in names]
    if sorted(known) != sorted(names):
        example = " ".join(f"--sequence {name}=PATTERN" for name in wanted)
        raise ConfigError(
            "sequence-names",
            f"{case.image}: case {case.id} has {', '.join(case.sequences)}, and the model takes {', '.join(wanted)}: "
            f"say which files are which with {example} and --masks",
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
    ready: ReadyModel, cases: Sequence[CaseFiles], *, tolerance: float, true_spacing: bool = False
) -> Iterator[Scored]:
    """Yield one result per case, on the scan's own grid.

    A case that cannot be read, or that is a copy of an earlier one, has an error and no scores.

    Args:
        ready: from `ready_for`.
        cases: from `labelled_cases`.
        tolerance: of surface Dice, in mm.
        true_spacing: whether voxels of 1 x 1 x 1 mm are no placeholder.
    """
    first: dict[str, Path] = {}
    for case in cases:
        try:
            decoded, warnings = _decoded(case)
            for file, image in zip(case.images, decoded.images, strict=True):
                same = first.setdefault(content_hash(image.voxels), file)
                if same != file:
                    raise ScanError(
                        "same-content",
                        file,
                        f"has the same voxels as {same}",
                        "remove one of the two, or it counts twice",
                    )
            with prediction_out_of_memory(case.image):
                scored = _scored(ready, case, decoded, tolerance, true_spacing=true_spacing)
            yield replace(scored, warnings=warnings)
        except FedshiftError as error:
            yield Scored(case.id, case.image, {}, error=str(error))


def ready_for(
    model: Model, cases: Sequence[CaseFiles], choice: Choice, *, device: str = "auto", true_spacing: bool = False
) -> ReadyModel:
    """Prepare a model for scoring; with ``choice.estimate``, statistics come from the cases that can be read.

    ``true_spacing``: as of `score_cases`.

    Raises:
        ConfigError: as `fedshift.inference.model.make_ready`.
        DataError: none of the cases can be read.
    """
    readable = map(_Labelled, cases)
    return segment.ready_for(model, readable, choice, device=device, true_spacing=true_spacing)


@dataclass(frozen=True)
class _Labelled:
    """A case as `fedshift.inference.segment.ready_for` reads it."""

    case: CaseFiles

    def read_stacked(self) -> tuple[Scan, np.ndarray]:
        decoded, _ = _decoded(self.case)
        return decoded.image, _sequences(decoded)


def _decoded(case: CaseFiles) -> tuple[Decoded, tuple[str, ...]]:
    """A case, and the warnings of reading it."""
    decoded, findings = read_case(case)
    if decoded is None:
        said = "; ".join(finding.sentence() for finding in findings if finding.level == "error")
        raise DataError("case-unreadable", said)
    return decoded, tuple(finding.sentence() for finding in findings)


def _sequences(decoded: Decoded) -> np.ndarray:
    """(S, z, y, x)."""
    return np.stack([image.voxels for image in decoded.images])


def _scored(ready: ReadyModel, case: CaseFiles, decoded: Decoded, tolerance: float, *, true_spacing: bool) -> Scored:
    scan, classes = decoded.image, ready.model.header.job.task.classes
    spacing = known_spacing(scan, true=true_spacing)
    predicted = ready.segment(_sequences(decoded), spacing)
    assert case.labels is not None
    numbers = {name: classes.index(name) for name in case.labels.annotated or classes[1:]}
    scores = scores_by_class(predicted, decoded.mask.voxels, numbers, scan.spacing[::-1], tolerance=tolerance)
    reading = decoded.reading(case.sequences)
    apart = one_sided(predicted, decoded.mask.voxels, numbers)
    return Scored(case.id, case.image, scores, one_sided=apart, known_spacing=spacing is not None, reading=reading)


def subjects_of(sets: Sequence[CaseTable]) -> list[str]:
    """Whose each of the `labelled_cases` is; subjects of the same name in two folders are two."""
    return [
        f"{number} {case.subject or subject_of(case.id)}" for number, folder in enumerate(sets) for case in folder.cases
    ]


@dataclass(frozen=True)
class Summary:
    """Of the cases without an error."""

    cases: tuple[str, ...]
    subjects: int
    scores: Mapping[str, Distribution]
    """Of each score, for the mean over classes and for each class."""
    one_sided: Mapping[str, OneSided]
    """The classes that one mask only has in some of the cases."""
    lacking: Mapping[str, tuple[str, ...]]
    """Class -> the cases whose masks have none of it, if there are such."""


def summary(scored: Sequence[Scored], classes: Sequence[str], *, subjects: Sequence[str], seed: int = 0) -> Summary:
    """Scores over the cases without an error; ``subjects``: whose each of ``scored`` is, see `subjects_of`.

    Raises:
        ConfigError: folders whose masks outline different classes.
    """
    kept = [(case, whose) for case, whose in zip(scored, subjects, strict=True) if case.error is None]
    cases, owners = [case.scores for case, _ in kept], [whose for _, whose in kept]
    if len({tuple(case) for case in cases}) > 1:
        said = "the folders' masks outline different classes: score one folder at a time"
        raise ConfigError("classes-differ", said)
    drawn = derive_seed(seed, "scoring", 0, "bootstrap")
    return Summary(
        cases=tuple(case.id for case, _ in kept),
        subjects=len(set(owners)),
        scores=distributions(cases, classes, subjects=owners, seed=drawn, share_cases=True) if cases else {},
        one_sided=count_one_sided(case.one_sided for case, _ in kept),
        lacking={
            name: lacking for name in classes if (lacking := tuple(case.id for case, _ in kept if name in case.lacks))
        },
    )
