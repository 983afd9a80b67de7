"""How numbers and names are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NO_BREAK = "\u00a0"
"""A space between a number and its unit, where no line ends."""
LONGEST_NAME = 28
"""Characters of a name in a figure."""


@dataclass(frozen=True)
class Metric:
    """How a score is called and written: ``factor`` times the value, in ``unit``."""

    title: str
    factor: float = 100.0
    unit: str = "%"
    higher_is_better: bool = True
    meaning: str = ""

    def number(self, value: float | None) -> str:
        """Without its unit; a dash where there is none."""
        if value is None:
            return "–"
        if not math.isfinite(value):
            return "not finite"
        scaled = self.factor * value
        return f"{scaled:.1f}" if abs(scaled) < 1e6 else f"{scaled:.3g}"

    def said(self, value: float | None) -> str:
        """With its unit, for a sentence."""
        return f"{self.number(value)}{NO_BREAK}{self.unit}".rstrip()

    @property
    def word(self) -> str:
        """Within a sentence: abbreviations and names keep their capitals."""
        return self.title.lower() if self.title.startswith(("Accuracy", "Macro")) else self.title

    @property
    def heading(self) -> str:
        """For a column."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


_KNOWN = {
    "dice": Metric("Dice", meaning="foreground Dice of whole volumes, mean over cases; 100 % is perfect overlap"),
    "dice_papers": Metric(
        "Dice, as papers print it",
        meaning="mean of background and foreground Dice over slices with foreground, which is higher than Dice",
    ),
    "hd95": Metric(
        "HD95", 1.0, "mm", higher_is_better=False, meaning="95th percentile of the distances between the two surfaces"
    ),
    "asd": Metric("ASD", 1.0, "mm", higher_is_better=False, meaning="mean distance between the two surfaces"),
    "accuracy": Metric("Accuracy", meaning="share of the pictures whose class was recognised"),
    "macro_accuracy": Metric("Macro accuracy", meaning="mean over classes of the share that was recognised"),
}


def metric(name: str) -> Metric:
    """What is known of a score; one that is unknown is written as it is."""
    return _KNOWN.get(name) or Metric(name.replace("_", " "), 1.0, "")


def ordered(names: Iterable[str]) -> list[str]:
    """Scores in the order of a table: known ones first."""
    known = list(_KNOWN)
    return sorted(set(names), key=lambda name: (known.index(name) if name in known else len(known), name))


def interval(of: Metric, bounds: tuple[float, float] | None) -> str:
    """``[82.1, 91.0]``, or nothing."""
    return "" if bounds is None else f"[{of.number(bounds[0])}, {of.number(bounds[1])}]"


def size(n_bytes: float) -> str:
    """Bytes, in decimal units."""
    value = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.0f}{NO_BREAK}{unit}" if unit == "B" else f"{value:.1f}{NO_BREAK}{unit}"
        value /= 1000
    return f"{value:.1f}{NO_BREAK}TB"


def seconds(value: float) -> str:
    """A time, as short as it can be said."""
    if not math.isfinite(value) or value < 0:
        return "–"
    if value < 100:
        return f"{value:.1f}{NO_BREAK}s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min".replace(" ", NO_BREAK) if hours else f"{minutes} min {rest} s".replace(" ", NO_BREAK)
    )


def short(name: str, most: int = LONGEST_NAME) -> str:
    """A name that fits into a figure: one line, control characters replaced, its middle left out if it is long."""
    plain = "".join(letter if letter.isprintable() else " " for letter in name)
    return plain if len(plain) <= most else f"{plain[: most // 2]}…{plain[-(most // 2 - 1) :]}"


def listed(names: Sequence[str], most: int = 8) -> str:
    """``A, B and C``; of many the first few, and how many more."""
    names = list(names)
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return (
        names[0] if len(names) == 1 else " and ".join(filter(None, (", ".join(names[:-1]), names[-1] if names else "")))
    )


def counted(n: int, one: str, many: str | None = None) -> str:
    """``1 site``, ``2 sites``."""
    return f"{n} {one if n == 1 else many or one + 's'}"
