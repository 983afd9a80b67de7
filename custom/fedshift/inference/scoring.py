"""Score a segmentation model on scans with masks, such as those of a hospital that took no part in training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedshift.data.case_check import Decoded, known_spacing, read_case
from fedshift.data.cases import UNNAMED, CaseFiles, CaseTable
from fedshift.data.colours import colours_of_masks, with_colours
from fedshift.data.labels import every_label, settle_labels
from fedshift.data.named_masks import names_structures
from fedshift.data.scan_file import ScanError
from fedshift.data.scans import Scan
from fedshift.data.splits import subject_of
from fedshift.inference import segment
from fedshift.inference.model import Model
from fedshift.inference.promise import first_place
from fedshift.inference.ready import Choice, ReadyModel
from fedshift.runtime.regions import IGNORED, voxels_of
from fedshift.schema.errors import ConfigError, DataError, FedshiftError
from fedshift.schema.evaluation import Distribution, OneSided
from fedshift.schema.reading import Reading
from fedshift.schema.seeding import derive_seed
from fedshift.tasks.evaluation.by_class import (
    Side,
    count_one_sided,
    dice_by_class,
    distributions,
    one_sided,
    scores_by_class,
)
from fedshift.tasks.evaluation.centre_lines import check_installed
from fedshift.tasks.evaluation.guarantee import CaseRisks, Counts
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
    task, wanted = model.header.job.task, model.sequences
    classes = task.classes
    cases: list[CaseFiles] = []
    labels = colours_of_masks(labels, sets)
    for folder in (with_colours(folder, wanted) for folder in sets):
        errors = [finding.sentence() for finding in folder.findings if finding.level == "error"]
        if errors:
            lines = ["nothing was scored, images and masks do not go together:", *errors]
            raise DataError("pairing", "\n  ".join(lines))
        meant = settle_labels(
            label_values=labels,
            described=folder.described_labels(labels),
            classes=classes,
            annotated=annotated,
            codes=task.codes,
            regions=task.made_regions,
            ignore=task.ignore,
            named=all(names_structures(case.mask) for case in folder.cases),
        )
        if meant is None:
            raise ConfigError(
                "labels-unknown",
                f"{folder.folder}: nothing says which values of the masks stand for {', '.join(classes[1:])}: name "
                f"them, as in {every_label(classes)}",
            )
        with_names = [with_sequences(case, wanted) for case in folder.cases]
        may_be_empty = empty or task.takes_empty
        cases += [
            replace(case, labels=meant, trust_voxels=trust_voxels, interpolate=interpolate, may_be_empty=may_be_empty)
            for case in with_names
        ]
    if not cases:
        raise DataError("no-cases", f"{sets[0].folder if sets else 'the folder'} holds no scan with a mask")
    return cases


def with_sequences(case: CaseFiles, wanted: Sequence[str]) -> CaseFiles:
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
    ready: ReadyModel,
    cases: Sequence[CaseFiles],
    *,
    tolerance: float,
    true_spacing: bool = False,
    risks: CaseRisks | None = None,
    subjects: Sequence[str] = (),
) -> Iterator[Scored]:
    """Yield one result per case, on the scan's own grid.

    A case that cannot be read, or that is a copy of an earlier one, has an error and no scores.

    Args:
        ready: from `ready_for`.
        cases: from `labelled_cases`.
        tolerance: of surface Dice, in mm.
        true_spacing: whether voxels of 1 x 1 x 1 mm are no placeholder.
        risks: gets the risk curves of the cases that are scored.
        subjects: with ``risks``, whose each case is (`subjects_of`).
    """
    first: dict[str, Path] = {}
    for place, case in enumerate(cases):
        try:
            decoded, warnings = decode(case)
            for file, content in zip(case.images, decoded.contents, strict=False):
                same = first.setdefault(content, file)
                if same != file:
                    raise ScanError(
                        "same-content",
                        file,
                        f"has the same voxels as {same}",
                        "remove one of the two, or it counts twice",
                    )
            with prediction_out_of_memory(case.image):
                counts = None if risks is None else _CaseCounts(ready, case, decoded)
                scored = _scored(ready, case, decoded, tolerance, true_spacing=true_spacing, counts=counts)
            if risks is not None and counts is not None:
                counts.add_to(risks, subjects[place])
            yield replace(scored, warnings=warnings)
        except FedshiftError as error:
            yield Scored(case.id, case.image, {}, error=str(error))


def ready_for(
    model: Model,
    cases: Sequence[CaseFiles],
    choice: Choice,
    *,
    others: Sequence[Model] = (),
    device: str = "auto",
    true_spacing: bool = False,
) -> ReadyModel:
    """Prepare a model for scoring, as `fedshift.inference.segment.ready_for` for prediction.

    Raises:
        ConfigError: as `fedshift.inference.ready.make_ready`, or a score needs a library that is not installed.
        DataError: none of the cases can be read.
    """
    if model.header.job.evaluation.cldice:
        check_installed()
    readable = map(_Labelled, cases)
    return segment.ready_for(model, readable, choice, others=others, device=device, true_spacing=true_spacing)


@dataclass(frozen=True)
class _Labelled:
    """A case as `fedshift.inference.segment.ready_for` reads it."""

    case: CaseFiles

    def read_stacked(self) -> tuple[Scan, np.ndarray]:
        decoded, _ = decode(self.case)
        return decoded.image, _sequences(decoded)


def decode(case: CaseFiles) -> tuple[Decoded, tuple[str, ...]]:
    """A case, and the warnings of reading it.

    Raises:
        DataError: it cannot be read; the sentence says all that is wrong with it.
    """
    decoded, findings = read_case(case)
    if decoded is None:
        message = "; ".join(finding.sentence() for finding in findings if finding.level == "error")
        raise DataError("case-unreadable", message)
    return decoded, tuple(finding.sentence() for finding in findings)


def _sequences(decoded: Decoded) -> np.ndarray:
    """(S, z, y, x)."""
    return np.stack([image.voxels for image in decoded.images])


@dataclass(frozen=True)
class _Outlined:
    """What a model and a reader outline of a case: classes, or sets of regions, (z, y, x) uint8.

    ``numbers``: those of the structures that the reader outlines, by name.
    """

    predicted: np.ndarray
    reference: np.ndarray
    numbers: Mapping[str, int]
    regions: bool


def _outlined(
    ready: ReadyModel,
    case: CaseFiles,
    decoded: Decoded,
    spacing: tuple[float, float, float] | None,
    counts: _CaseCounts | None = None,
) -> _Outlined:
    on_scan = None if counts is None else counts.add
    task, predicted = ready.model.header.job.task, ready.segment(_sequences(decoded), spacing, on_scan=on_scan)
    regions, reference, numbers = task.made_regions, decoded.mask.voxels, _numbers(ready, case)
    assert case.labels is not None
    if case.labels.ignored:
        predicted = np.where(reference == IGNORED, 0, predicted).astype(np.uint8)
    if regions is not None:
        reference = regions.sets[reference]
    elif case.labels.ignored:
        reference = np.where(reference == IGNORED, 0, reference).astype(np.uint8)
    return _Outlined(predicted, reference, numbers, regions is not None)


def _numbers(ready: ReadyModel, case: CaseFiles) -> dict[str, int]:
    """Those of the structures that a case's mask outlines, by name."""
    task = ready.model.header.job.task
    assert case.labels is not None
    outlined = [task.classes.index(name) for name in case.labels.annotated or task.classes[1:]]
    if (regions := task.made_regions) is not None:
        return {regions.names[number]: number + 1 for number in regions.known(outlined)}
    return {task.classes[number]: number for number in outlined}


class _CaseCounts:
    """Counts of a case's structures, from probabilities that come in parts; voxels to ignore count for nothing."""

    def __init__(self, ready: ReadyModel, case: CaseFiles, decoded: Decoded) -> None:
        regions, labels = ready.model.header.job.task.made_regions, decoded.mask.voxels
        assert case.labels is not None
        self._known = labels != IGNORED if case.labels.ignored else None
        self._truth, self._regions = labels if regions is None else regions.sets[labels], regions is not None
        self._before, self._numbers = first_place(ready) - 1, _numbers(ready, case)
        self._counts = {number: Counts() for number in self._numbers.values()}

    def add(self, place: int, part: slice, values: np.ndarray) -> None:
        """`fedshift.runtime.segmentation.OnScan`."""
        number = place - self._before
        if (counts := self._counts.get(number)) is not None:
            known = slice(None) if self._known is None else self._known[part]
            counts.add(values[known], voxels_of(self._truth[part], number, regions=self._regions)[known])

    def add_to(self, risks: CaseRisks, subject: str) -> None:
        """Add the case's risk curves."""
        for name, number in self._numbers.items():
            risks.add_outline(name, self._counts[number].risks(), subject=subject)


def dice(ready: ReadyModel, case: CaseFiles, decoded: Decoded, *, true_spacing: bool = False) -> float:
    """Mean Dice over the structures that a case's mask has, as `score_cases` gives it; NaN if it has none."""
    masks = _outlined(ready, case, decoded, known_spacing(decoded.image, true=true_spacing))
    n_classes = 1 + len(ready.classes)
    values = dice_by_class(masks.predicted, masks.reference, n_classes, regions=masks.regions)
    known = values[[number - 1 for number in masks.numbers.values()]]
    return float(np.nanmean(known)) if not np.isnan(known).all() else float("nan")


def _scored(
    ready: ReadyModel,
    case: CaseFiles,
    decoded: Decoded,
    tolerance: float,
    *,
    true_spacing: bool,
    counts: _CaseCounts | None,
) -> Scored:
    scan = decoded.image
    segment.refuse_other_kind(scan, case.image, pictures=ready.of_pictures)
    spacing = known_spacing(scan, true=true_spacing)
    masks = _outlined(ready, case, decoded, spacing, counts)
    return Scored(
        case.id,
        case.image,
        scores_by_class(
            masks.predicted,
            masks.reference,
            masks.numbers,
            spacing if scan.is_picture else scan.spacing[::-1],
            tolerance=tolerance,
            thin=ready.model.header.job.evaluation.cldice,
            regions=masks.regions,
        ),
        one_sided=one_sided(masks.predicted, masks.reference, masks.numbers, regions=masks.regions),
        known_spacing=scan.is_picture or spacing is not None,
        reading=decoded.reading(case.sequences),
    )


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
        message = "the folders' masks outline different classes: score one folder at a time"
        raise ConfigError("classes-differ", message)
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
