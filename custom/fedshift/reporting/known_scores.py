"""What is known of each score: title, unit and direction, for tables, reports and the command line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Unit = Literal["%", "mm", "ml", ""]
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


SCORES = {
    "dice": KnownScore("Dice", meaning="foreground Dice of whole volumes, mean over cases; 100 % is perfect overlap"),
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
        "Surface Dice", meaning="part of both surfaces that is within the job's tolerance in mm of the other one"
    ),
    "volume_difference": KnownScore("Volume difference", "ml", "lower", "absolute difference of the two volumes"),
    "false_positives": KnownScore(
        "False positives",
        "ml",
        "lower",
        "volume that the model finds where a case has no such structure, mean over these cases; all other scores are "
        "over the cases that have it",
    ),
    "accuracy": KnownScore("Accuracy", meaning="fraction of correctly classified images"),
    "macro_accuracy": KnownScore(
        "Macro accuracy", meaning="mean over classes of the fraction of correctly classified images"
    ),
    "ece": KnownScore("ECE", "%", "lower", "expected calibration error"),
    "gradient_norm": KnownScore("Gradient norm", "", None),
    "gradient_norm_squared": KnownScore("Squared gradient norm", "", None),
}
"""In the order of tables."""


def known_score(name: str) -> KnownScore | None:
    """What is known of a score; one class's (``dice Anterior``) has no meaning beside that of all classes."""
    score, of_class, _ = name.partition(" ")
    known = SCORES.get(score)
    return replace(known, meaning="") if known is not None and of_class else known


def needs_voxel_size(name: str) -> bool:
    """Whether a score means something only where the voxel size is known.

    These are lengths and volumes, and surface Dice, whose tolerance is in mm.
    """
    score = known_score(name)
    return score is not None and (score.unit in ("mm", "ml") or score.title == SCORES["surface_dice"].title)
