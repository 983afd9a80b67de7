"""How far a scan is from those that a model was trained on, and from which distance on it is unusual.

In every aspect of `OF_A_SCAN` the distance is that from the nearest training site. Each site has told how far its own
cases are from each other (`fedshift.schema.fingerprint`); the limit is the upper end of the interval in which the next
case of a training site would be expected, if logarithms of distances were normally distributed: with n cases of mean m
and standard deviation s, exp(m + t s √(1 + 1/n)), t the quantile of Student's distribution with n - 1 degrees of
freedom. All aspects of a scan share `FALSE_ALARMS` between them (Bonferroni). No limit is below what the survey calls
worth a look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, sqrt
from pathlib import Path

import numpy as np

from fedshift.data.case_check import known_spacing
from fedshift.data.fingerprint import case_fingerprints, fingerprint, scan_fingerprint
from fedshift.data.prepared import read_images
from fedshift.data.resampled import Preparation
from fedshift.data.shift import OF_A_SCAN, from_site
from fedshift.data.splits import case_splits
from fedshift.federation.survey_answer import reference_of
from fedshift.inference.masks import volume_ml
from fedshift.inference.model import Model
from fedshift.inference.ready import ReadyModel
from fedshift.inference.segment import outline, refuse_other_kind
from fedshift.inference.sequences import ScanCase, find_case, find_cases, picture_cases
from fedshift.schema.errors import ConfigError, FedshiftError
from fedshift.schema.fingerprint import DOUBT, Fingerprint, LogSums, Reference
from fedshift.schema.manifest import read_manifest

FALSE_ALARMS = 0.05
"""Share of scans like those of the training sites that may be flagged."""
FEWEST = 3
"""Cases without which there is no limit."""
NOTHING = "nothing found"
NOUNS = {aspect.key: aspect.noun for aspect in OF_A_SCAN} | {
    "contrast": "the contrast of what the model outlines",
    "volume": "the size of what the model outlines",
    DOUBT: "the model's confidence",
    NOTHING: "how often the model finds nothing",
}
"""What differs, in a sentence."""


@dataclass(frozen=True)
class Limits:
    """``by_aspect``: the largest usual distance. ``flags_nothing``: whether it is unusual that nothing is found."""

    by_aspect: Mapping[str, float]
    flags_nothing: bool


@dataclass(frozen=True)
class Compared:
    """One scan.

    ``distances``: aspect -> distance from the nearest training site, and the model's doubt. ``differs``: aspects beyond
    their limit, the farthest first. ``distance``: the largest distance in multiples of its limit. With an ``error``
    nothing else is known. ``known_spacing``: whether it has a voxel size; without one, what needs it is
    not compared. ``pixels``: of a picture, which has no volume, the size of the model's outline.
    """

    image: Path
    distances: Mapping[str, float] = field(default_factory=dict)
    differs: tuple[str, ...] = ()
    distance: float = 0.0
    volume_ml: float = 0.0
    pixels: int | None = None
    confidence: float | None = None
    known_spacing: bool = True
    error: str | None = None


def cases_of(model: Model, images: Sequence[Path]) -> list[ScanCase]:
    """The cases that files are of, for a model of volumes or of pictures."""
    if model.of_pictures:
        return picture_cases(images, model.sequences)
    return find_cases(images, model.sequences)


def limits(references: Sequence[Reference]) -> Limits:
    """From what the training sites told; aspects of which too few cases are known have none."""
    from scipy.stats import t

    sums: dict[str, LogSums] = {}
    for reference in references:
        for key, spread in reference.apart.items():
            sums[key] = sums[key] + spread if key in sums else spread
    known = {key: spread for key, spread in sums.items() if spread.cases >= FEWEST and key in NOUNS}
    worth = {aspect.key: aspect.worth for aspect in OF_A_SCAN}
    limits = {}
    for key, spread in known.items():
        quantile = float(t.ppf(1 - FALSE_ALARMS / len(known), spread.cases - 1))
        upper = exp(min(spread.mean + quantile * spread.deviation * sqrt(1 + 1 / spread.cases), 50.0))
        limits[key] = max(upper, worth.get(key, 0.0))
    empty = sum(reference.empty for reference in references)
    scored = empty + (known[DOUBT].cases if DOUBT in known else 0)
    return Limits(limits, flags_nothing=empty <= FALSE_ALARMS * scored)


def compare_scans(
    model: Model,
    ready: ReadyModel,
    references: Sequence[Reference],
    images: Sequence[Path],
    *,
    true_spacing: bool = False,
    begin: Callable[[Path], None] = lambda image: None,
) -> Iterator[Compared]:
    """Yield one result for each scan, in order; one that cannot be read has an error.

    ``true_spacing``: whether voxels of 1 x 1 x 1 mm are no placeholder. ``begin`` is called with each scan before it is
    read.
    """
    usual = limits(references)
    for image in images:
        begin(image)
        try:
            pictures = picture_cases([image], model.sequences) if model.of_pictures else None
            case = pictures[0] if pictures else find_case(image, model.sequences)
            scan, voxels = case.read_stacked()
            refuse_other_kind(scan, image, pictures=model.of_pictures)
            spacing = known_spacing(scan, true=true_spacing)
            mask, confidence = outline(ready, voxels, spacing)
        except FedshiftError as error:
            yield Compared(image, error=str(error))
            continue
        fingerprint = fingerprint_of(model, references, voxels, mask, spacing)
        ml, pixels = (0.0, int(np.count_nonzero(mask))) if scan.is_picture else (volume_ml(mask, scan), None)
        compared = judged(image, fingerprint, confidence, references, usual, volume_ml=ml)
        yield replace(compared, known_spacing=scan.is_picture or spacing is not None, pixels=pixels)


def fingerprint_of(
    model: Model,
    references: Sequence[Reference],
    voxels: np.ndarray,
    labels: np.ndarray,
    spacing: Sequence[float] | None,
) -> Fingerprint:
    """The fingerprint of a scan (S, z, y, x) with the model's outline, under the names that the sites use."""
    site = references[0].fingerprint
    sequences = model.sequences or (site.sequences if len(site.sequences) == 1 else ())
    like = site.model_copy(update={"sequences": sequences, "annotated": None})
    return scan_fingerprint(voxels, labels, spacing, like=like)


def judged(
    image: Path,
    scan: Fingerprint,
    confidence: float | None,
    references: Sequence[Reference],
    usual: Limits,
    *,
    volume_ml: float = 0.0,
) -> Compared:
    """Compare a scan's fingerprint, and the model's confidence in it, with the training sites."""
    distances: dict[str, float] = {}
    for reference in references:
        for key, distance in from_site(scan, reference.fingerprint).items():
            distances[key] = min(distance, distances.get(key, distance))
    if confidence is not None:
        distances[DOUBT] = 1 - confidence
    parts = {key: distances[key] / limit for key, limit in usual.by_aspect.items() if key in distances}
    if confidence is None and usual.flags_nothing:
        parts[NOTHING] = float("inf")
    differs = tuple(key for key in sorted(parts, key=lambda key: -parts[key]) if parts[key] > 1)
    return Compared(
        image=image,
        distances=distances,
        differs=differs,
        distance=max((part for key, part in parts.items() if key != NOTHING), default=0.0),
        volume_ml=volume_ml,
        confidence=confidence,
    )


def folder_reference(model: Model, ready: ReadyModel, folder: Path) -> Reference:
    """What a site with this prepared folder would tell of its scans for this model."""
    manifest, task = read_manifest(folder), model.header.job.task
    if (manifest.dataset, manifest.classes) != (task.dataset, tuple(task.classes)):
        raise ConfigError(
            "other-data",
            f"{folder} is of data set {manifest.dataset} with the classes {', '.join(manifest.classes)}, and "
            f"{model.path} was trained on {task.dataset} with {', '.join(task.classes)}: name one of its sites",
        )
    sequences = Preparation(sequences=model.sequences).numbers(manifest, folder)
    splits = case_splits(manifest.cases, site=manifest.site, fold=task.data.get("fold"))
    confidences = []
    for case, split in zip(manifest.cases, splits, strict=True):
        if split == "val":
            voxels = read_images(folder, manifest, case)[sequences]
            confidences.append(outline(ready, voxels, manifest.known_spacing(case))[1])
    return reference_of(fingerprint(folder), list(case_fingerprints(folder)), confidences, least=1)
