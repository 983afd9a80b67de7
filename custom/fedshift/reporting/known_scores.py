"""What is known of each score: title, unit and direction, for tables, reports and the command line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Unit = Literal["%", "mm", "ml", "mm²", "px", ""]
Better = Literal["higher", "lower"]
GUESS = "image-free guess"
GUESS_NOTE = (
    "The image-free guess looks at no image: it is where the structure is in the mean of the training masks, by "
    "relative place in the stack and in the slice."
)


@dataclass(frozen=True)
class KnownScore:
    """A score. With ``better`` None neither direction is better; ``meaning`` is for the legend of a report."""

    title: str
    unit: Unit = "%"
    better: Better | None = "higher"
    meaning: str = ""

    @property
    def factor(self) -> float:
        """By which the value is multiplied to be in its unit."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def heading(self) -> str:
        """The title with its unit, as in ``HD95, mm``."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


_AREA_WITHOUT = (
    "area that the model finds where a picture has no such structure, mean over these; all other scores are over the "
    "pictures that have it"
)
SCORES = {
    "dice": KnownScore(
        "Dice", meaning="foreground Dice of whole volumes or pictures, mean over cases; 100 % is perfect overlap"
    ),
    "dice_papers": KnownScore(
        "Papers' Dice",
        meaning="mean of background and foreground Dice over slices with foreground, which is higher than Dice",
    ),
    "hd95": KnownScore(
        "HD95",
        "mm",
        "lower",
        "95th percentile of the distances between the two surfaces; the volume's diagonal where the model misses "
        "the class",
    ),
    "asd": KnownScore("ASD", "mm", "lower", "mean distance between the two surfaces; the volume's diagonal as in HD95"),
    "surface_dice": KnownScore(
        "Surface Dice",
        meaning="part of both surfaces that is within the job's tolerance of the other one, in mm, or in "
        "pixels of pictures without a pixel size",
    ),
    "cldice": KnownScore(
        "clDice", meaning="Dice of the centre lines of thin structures: it falls where a vessel is torn, however thin"
    ),
    "volume_difference": KnownScore("Volume difference", "ml", "lower", "absolute difference of the two volumes"),
    "false_positives": KnownScore(
        "False positives",
        "ml",
        "lower",
        "volume that the model finds where a case has no such structure, mean over these cases; all other scores are "
        "over the cases that have it",
    ),
    "hd95_px": KnownScore(
        "HD95",
        "px",
        "lower",
        "95th percentile of the distances between the two outlines, in pixels; the picture's diagonal "
        "where the model misses the class",
    ),
    "asd_px": KnownScore(
        "ASD", "px", "lower", "mean distance between the two outlines, in pixels; the diagonal as in HD95"
    ),
    "area_difference_mm2": KnownScore("Area difference", "mm²", "lower", "absolute difference of the two areas"),
    "area_difference_px": KnownScore(
        "Area difference", "px", "lower", "absolute difference of the two areas, in pixels"
    ),
    "false_positives_mm2": KnownScore("False positives", "mm²", "lower", _AREA_WITHOUT),
    "false_positives_px": KnownScore("False positives", "px", "lower", _AREA_WITHOUT),
    "accuracy": KnownScore(
        "Accuracy", meaning="fraction of correctly classified images; of findings, of those that are known"
    ),
    "macro_accuracy": KnownScore(
        "Macro accuracy", meaning="mean over classes of the fraction of correctly classified images"
    ),
    "auroc": KnownScore(
        "AUROC", meaning="area under the ROC curve, mean over the classes of which a site has cases with and without"
    ),
    "auprc": KnownScore(
        "AUPRC",
        meaning="average precision, mean over the same classes; by chance it is the share of cases with the class",
    ),
    "f1": KnownScore("F1", meaning="harmonic mean of precision and sensitivity, mean over the same classes"),
    "balanced_accuracy": KnownScore(
        "Balanced accuracy", meaning="mean of sensitivity and specificity, mean over the same classes"
    ),
    "sensitivity": KnownScore(
        "Sensitivity",
        meaning="at the threshold that has the job's specificity on validation, mean over the same classes",
    ),
    "kappa": KnownScore("Kappa", "", meaning="quadratic weighted kappa of grades; 1 is agreement, 0 is that of chance"),
    "ece": KnownScore("ECE", "%", "lower", "expected calibration error"),
    "gradient_norm": KnownScore("Gradient norm", "", None),
    "gradient_norm_squared": KnownScore("Squared gradient norm", "", None),
}
"""In the order of tables."""
OF_CLASSES = ("auroc", "auprc", "f1", "balanced_accuracy", "sensitivity")
"""Scores that are averages over the classes of which a site has cases with and without."""


def known_score(name: str) -> KnownScore | None:
    """What is known of a score; one class's (``dice Anterior``) has no meaning beside that of all classes."""
    score, of_class, _ = name.partition(" ")
    known = SCORES.get(score)
    return replace(known, meaning="") if known is not None and of_class else known


def needs_voxel_size(name: str) -> bool:
    """Whether a score means something only where the voxel size is known.

    These are lengths and volumes, and surface Dice, whose tolerance is in mm. Areas are told only where it is known.
    """
    score = known_score(name)
    return score is not None and (score.unit in ("mm", "ml") or score.title == SCORES["surface_dice"].title)
