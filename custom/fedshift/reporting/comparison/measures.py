"""Scores in tables: unit, number format, and whether higher or lower is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["percent", "mm", "ml", "plain"]


@dataclass(frozen=True)
class Measure:
    """The format of a score. With ``better`` None no value is printed in bold."""

    unit: Unit = "percent"
    better: Literal["higher", "lower"] | None = "higher"

    def text(self, value: float) -> str:
        """The value as printed in tables, without unit."""
        if self.unit == "percent":
            return f"{100 * value:.1f}"
        return f"{value:.2f}" if self.unit in ("mm", "ml") else f"{value:.3f}"

    def scaled(self, value: float) -> float:
        """The value in the unit of the tables."""
        return 100 * value if self.unit == "percent" else value

    @property
    def unit_text(self) -> str:
        """The unit as text for a heading."""
        lower = f"in {self.unit}, lower is better"
        return {"percent": "in percent", "mm": lower, "ml": lower, "plain": ""}[self.unit]


KNOWN_MEASURES = {
    "hd95": Measure("mm", "lower"),
    "asd": Measure("mm", "lower"),
    "volume_difference": Measure("ml", "lower"),
    "ece": Measure("percent", "lower"),
    "macro_accuracy": Measure(),
    "gradient_norm": Measure("plain", None),
    "gradient_norm_squared": Measure("plain", None),
}
"""Scores whose format differs from the default, or that a task's own metrics do not include."""


def measure(name: str) -> Measure:
    """The format of a score, which may be one class's.

    A score that is not in `KNOWN_MEASURES` is a fraction of 1, and higher is better.
    """
    return KNOWN_MEASURES.get(name.partition(" ")[0], Measure())
