"""Scores of several classes, or regions, over cases: each one's, and the mean over them.

Dice and distances compare two masks, and are of no meaning where the reference has none of a class: Dice is 0 whether
the model finds a voxel or half of the scan. So such a case is left out of these scores, and has instead the volume that
the model finds, ``false_positives``, which the others have not. Sources: Maier-Hein et al., "Metrics reloaded", Nature
Methods 21 (2024), and MONAI's ``DiceMetric`` (``ignore_empty``). A class that the model misses counts in all scores.

In arrays over cases a score that a case does not have is NaN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import numpy as np

from fedshift.runtime.regions import voxels_of
from fedshift.schema.evaluation import Distribution, Evaluation, OneSided
from fedshift.tasks.evaluation.calibration import Calibration
from fedshift.tasks.evaluation.case_scores import CaseScores
from fedshift.tasks.evaluation.centre_lines import centre_line_dice
from fedshift.tasks.evaluation.overlap import dice
from fedshift.tasks.evaluation.spread import FEWEST, distribution
from fedshift.tasks.evaluation.surfaces import MAX_MILLIMETRES, surface_scores

Side = Literal["missed", "invented"]
"""Which mask lacks a class that the other one has: the model's, or the reference."""
MAX_MILLILITRES = 1e6
MICROLITRES = 1000.0
"""Cubic millimetres in a millilitre."""
RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "dice": (0, 1),
        "hd95": (0, MAX_MILLIMETRES),
        "asd": (0, MAX_MILLIMETRES),
        "surface_dice": (0, 1),
        "cldice": (0, 1),
        "volume_difference": (0, MAX_MILLILITRES),
        "false_positives": (0, MAX_MILLILITRES),
    }
)
"""The scores of a class in volumes and their ranges; distances in mm, volumes in ml."""
MAX_PIXELS, MAX_PICTURE = 1e5, 1e9
"""Upper limits of a distance, and of an area, in pixels or square millimetres."""
PICTURE_RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        **{score: RANGES[score] for score in ("dice", "hd95", "asd", "surface_dice", "cldice")},
        **dict.fromkeys(("hd95_px", "asd_px"), (0, MAX_PIXELS)),
        **{
            f"{score}_{unit}": (0, MAX_PICTURE)
            for score in ("area_difference", "false_positives")
            for unit in ("mm2", "px")
        },
    }
)
"""The same in pictures: those without a pixel size have the scores in pixels (``_px``), others those in mm."""


def of_class(score: str, name: str) -> str:
    """A score's name for one class."""
    return f"{score} {name}"


def names(score: str, classes: Sequence[str]) -> list[str]:
    """A score and what it is called for each foreground class, of which there must be several."""
    return [score, *(of_class(score, name) for name in classes if len(classes) > 1)]


def dice_by_class(predicted: np.ndarray, reference: np.ndarray, n_classes: int, *, regions: bool = False) -> np.ndarray:
    """Dice of every foreground class, (K - 1,), of two arrays of classes; NaN where the reference has none of it.

    With ``regions`` the same of arrays of sets of K - 1 regions.
    """
    if regions:
        masks = [[voxels_of(v, n, regions=True) for n in range(1, n_classes)] for v in (predicted, reference)]
        pairs = [(guess & truth, guess, truth) for guess, truth in zip(*masks, strict=True)]
        return dice(*np.array([[np.count_nonzero(mask) for mask in pair] for pair in pairs], np.float64).T)
    counts = [
        np.bincount(values.ravel(), minlength=n_classes)[1:].astype(np.float64)
        for values in (reference[predicted == reference], predicted, reference)
    ]
    return dice(*counts)


def scores_of(
    predicted: np.ndarray,
    reference: np.ndarray,
    spacing: Sequence[float] | None,
    *,
    tolerance: float,
    thin: bool = False,
) -> dict[str, float]:
    """The scores of `RANGES`, or `PICTURE_RANGES`, that two masks (z, y, x) bool have; ``spacing`` is in mm.

    ``spacing`` may be None for pictures. ``tolerance`` is in mm, and in pixels where there is no spacing. ``thin``:
    with clDice.
    """
    overlap, guessed, actual = (
        np.array(np.count_nonzero(mask)) for mask in (predicted & reference, predicted, reference)
    )
    pictured, px = len(predicted) == 1, "" if spacing else "_px"
    lengths = spacing or (1.0, 1.0, 1.0)
    of_one, size = (
        (float(np.prod(lengths[1:])), px or "_mm2") if pictured else (float(np.prod(lengths)) / MICROLITRES, "")
    )
    if actual == 0:
        return {f"false_positives{size}": int(guessed) * of_one}
    hausdorff, mean, surface = surface_scores(predicted, reference, lengths, tolerance=tolerance)
    return {
        "dice": float(dice(overlap, guessed, actual)),
        f"hd95{px}": hausdorff,
        f"asd{px}": mean,
        "surface_dice": surface,
        **({"cldice": centre_line_dice(predicted, reference)} if thin else {}),
        f"{'area' if pictured else 'volume'}_difference{size}": abs(int(guessed) - int(actual)) * of_one,
    }


def scores_by_class(
    predicted: np.ndarray,
    reference: np.ndarray,
    numbers: Mapping[str, int],
    spacing: Sequence[float] | None,
    *,
    tolerance: float,
    thin: Collection[str] = (),
    regions: bool = False,
) -> dict[str, dict[str, float]]:
    """Class -> score -> value of a case; ``numbers`` are those of the classes, or ``regions``, in both (z, y, x).

    ``thin``: the classes that have clDice.
    """

    def masks(number: int) -> tuple[np.ndarray, np.ndarray]:
        return voxels_of(predicted, number, regions=regions), voxels_of(reference, number, regions=regions)

    return {
        name: scores_of(*masks(number), spacing, tolerance=tolerance, thin=name in thin)
        for name, number in numbers.items()
    }


def one_sided(
    predicted: np.ndarray, reference: np.ndarray, numbers: Mapping[str, int], *, regions: bool = False
) -> dict[str, Side]:
    """The classes that one of two volumes only has: those that the model misses, and those that it invents."""
    sides: dict[str, Side] = {}
    for name, number in numbers.items():
        by_model, by_reader = (
            bool(voxels_of(volume, number, regions=regions).any()) for volume in (predicted, reference)
        )
        if by_model != by_reader:
            sides[name] = "invented" if by_model else "missed"
    return sides


def count_one_sided(cases: Iterable[Mapping[str, Side]]) -> dict[str, OneSided]:
    """In how many cases a class is missed or invented, from `one_sided` of each; classes without such are left out."""
    counts = Counter(each for case in cases for each in case.items())
    names = dict.fromkeys(name for name, _ in counts)
    return {name: OneSided(missed=counts[name, "missed"], invented=counts[name, "invented"]) for name in names}


def values_by_score(
    cases: Sequence[Mapping[str, Mapping[str, float]]], classes: Sequence[str]
) -> dict[str, np.ndarray]:
    """Score -> its value for each case (n,), of the mean over the classes that have it, and of each class.

    Scores that no case has are left out.

    Args:
        cases: class -> score -> value of each case, all with the same classes.
        classes: the task's foreground classes.
    """
    result: dict[str, np.ndarray] = {}
    for score in {**RANGES, **PICTURE_RANGES}:
        by_name = {name: np.array([case[name].get(score, np.nan) for case in cases]) for name in cases[0]}
        values = {
            score: mean_over(np.array([*by_name.values()])),
            **{of_class(score, name): by_name[name] for name in by_name},
        }
        kept = names(score, classes)
        for name in kept:
            if name in values and not np.isnan(values[name]).all():
                result[name] = values[name]
    return result


def mean_over(values: np.ndarray) -> np.ndarray:
    """The mean over the first axis of what is not NaN; NaN where all is."""
    known = ~np.isnan(values)
    count = known.sum(0)
    return np.where(count > 0, np.where(known, values, 0).sum(0) / np.maximum(count, 1), np.nan)


def distributions(
    cases: Sequence[Mapping[str, Mapping[str, float]]],
    classes: Sequence[str],
    *,
    subjects: Sequence[str],
    seed: int,
    share_cases: bool,
) -> dict[str, Distribution]:
    """Distributions of `values_by_score`, each over the cases that have it; the options are those of `distribution`."""
    return _distributions(values_by_score(cases, classes), subjects, seed=seed, share_cases=share_cases)


def _distributions(
    values: Mapping[str, np.ndarray], subjects: Sequence[str], *, seed: int, share_cases: bool
) -> dict[str, Distribution]:
    return {
        name: distribution(scores, subjects=subjects, seed=seed, share_cases=share_cases)
        for name, scores in values.items()
    }


def evaluation(
    values: dict[str, np.ndarray],
    subjects: list[str],
    *,
    calibration: Calibration,
    empty: int,
    apart: Iterable[Mapping[str, Side]],
    seed: int,
    share_cases: bool,
    keep: CaseScores | None,
) -> Evaluation:
    """What a site tells of a final model that segments, from scores over its cases (`fedshift.tasks.base.Task`).

    ``empty`` counts cases without any foreground in the model's mask, ``apart`` has `one_sided` of each.
    """
    if keep is not None:
        keep.values, keep.subjects = values, subjects
    hides = not share_cases and len(subjects) < FEWEST
    spreads = _distributions(values, subjects, seed=seed, share_cases=share_cases)
    return Evaluation(
        scores={name: spread.mean for name, spread in spreads.items()},
        distributions=spreads,
        calibration=None if hides else calibration.record(fewest=1 if share_cases else FEWEST),
        empty=empty,
        one_sided=count_one_sided(apart),
    )
