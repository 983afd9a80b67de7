"""What a table may show: units, which way is better, how a number is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["percent", "mm", "plain"]


@dataclass(frozen=True)
class Measure:
    """A score. ``better`` is None where neither way is: nothing is set in bold then."""

    unit: Unit = "percent"
    better: Literal["higher", "lower"] | None = "higher"

    def text(self, value: float) -> str:
        """A number as tables print it."""
        if self.unit == "percent":
            return f"{100 * value:.1f}"
        return f"{value:.2f}" if self.unit == "mm" else f"{value:.3f}"

    def scaled(self, value: float) -> float:
        """In the unit that tables print."""
        return 100 * value if self.unit == "percent" else value

    @property
    def words(self) -> str:
        """The unit for a heading."""
        return {"percent": "in percent", "mm": "in mm, lower is better", "plain": ""}[self.unit]


KNOWN = {
    "hd95": Measure("mm", "lower"),
    "asd": Measure("mm", "lower"),
    "ece": Measure("percent", "lower"),
    "macro_accuracy": Measure(),
    "gradient_norm": Measure("plain", None),
    "gradient_norm_squared": Measure("plain", None),
}
"""Beside the scores of a task, which are shares."""


def measure(name: str) -> Measure:
    """Of a score; one that is not in `KNOWN` is a share of 1, and higher is better."""
    return KNOWN.get(name, Measure())
