"""Scores in tables: unit, number format, and whether higher or lower is better."""

from __future__ import annotations

from dataclasses import dataclass

from fedshift.reporting.differences import signed
from fedshift.reporting.known_scores import Better, Unit, known_score


@dataclass(frozen=True)
class Measure:
    """The format of a score. With ``better`` None no value is printed in bold."""

    unit: Unit = "%"
    better: Better | None = "higher"

    def text(self, value: float) -> str:
        """The value as printed in tables, without unit."""
        return f"{self.scaled(value):.{self.decimals}f}"

    def difference(self, value: float) -> str:
        """A difference of two values as printed, with a sign (`fedshift.reporting.differences`)."""
        return signed(self.scaled(value), decimals=self.decimals).replace("-", "−")

    @property
    def decimals(self) -> int:
        """Printed digits after the point."""
        return {"%": 1, "": 3}.get(self.unit, 2)

    def scaled(self, value: float) -> float:
        """The value in the unit of the tables."""
        return 100 * value if self.unit == "%" else value

    @property
    def unit_text(self) -> str:
        """The unit as text for a heading."""
        if self.unit == "%":
            return "in percent"
        return f"in {self.unit}, lower is better" if self.unit else ""


BESIDE_METRICS = (
    *("hd95", "asd", "volume_difference", "false_positives", "ece"),
    *("macro_accuracy", "gradient_norm", "gradient_norm_squared"),
)
"""Scores that a table may show though a task's own metrics need not include them."""


def measure(name: str) -> Measure:
    """The format of a score, which may be one class's. An unknown one is a fraction of 1, and higher is better."""
    known = known_score(name)
    return Measure() if known is None else Measure(known.unit, known.better)
