"""The words of a report: numbers, units and names as text, and the sentences of ``sentences.j2``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedshift.reporting import differences
from fedshift.reporting.known_scores import SCORES, known_score

NO_BREAK = "\u00a0"
"""No-break space, between a number and its unit."""
MAX_NAME_LENGTH = 28
"""Maximum number of characters of a name in a figure."""


@dataclass(frozen=True)
class Metric:
    """Name and format of a score: ``factor`` times the value is shown in ``unit``."""

    title: str
    factor: float = 100.0
    unit: str = "%"
    higher_is_better: bool = True
    meaning: str = ""

    def number(self, value: float | None) -> str:
        """The value without unit; a dash for None."""
        if value is None:
            return "–"
        if not math.isfinite(value):
            return "not finite"
        scaled = self.factor * value
        return f"{scaled:.1f}" if abs(scaled) < 1e6 else f"{scaled:.3g}"

    def difference(self, value: float) -> str:
        """A difference of two values without unit, with a sign (`fedshift.reporting.differences`)."""
        return differences.signed(self.factor * value)

    def points(self, value: float) -> str:
        """As `difference`, without a plus."""
        return differences.points(self.factor * value)

    def points_interval(self, bounds: tuple[float, float] | None) -> str:
        """Of a difference: ``[-0.2, 1.3]``, or an empty string."""
        return "" if bounds is None else f"[{self.points(bounds[0])}, {self.points(bounds[1])}]"

    def with_unit(self, value: float | None) -> str:
        """The value with its unit."""
        return f"{self.number(value)}{NO_BREAK}{self.unit}".rstrip()

    @property
    def word(self) -> str:
        """The title within a sentence, in lower case unless it is an abbreviation or a name."""
        return (
            self.title.lower()
            if self.title.startswith(("Accuracy", "Macro", "Balanced", "Sensitivity", "Kappa"))
            else self.title
        )

    @property
    def heading(self) -> str:
        """The title with its unit, for a table column."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


def metric(name: str) -> Metric:
    """The format of a score, which may be one class's (``dice Anterior``); unknown ones have neither scale nor unit."""
    known, of_class = known_score(name), name.partition(" ")[2]
    if known is None:
        return Metric(name.replace("_", " "), 1.0, "")
    title = f"{known.title}, {of_class}" if of_class else known.title
    return Metric(title, known.factor, known.unit, known.better != "lower", known.meaning)


def printed(name: str) -> bool:
    """Whether a score is one that only papers print, and not to be read beside the others: the papers' Dice."""
    return name.partition(" ")[0] == "dice_papers"


def ordered(names: Iterable[str]) -> list[str]:
    """Score names without duplicates in table order: known scores first, each followed by its classes'."""
    known = list(SCORES)

    def place(name: str) -> tuple[int, str]:
        score = name.partition(" ")[0]
        return (known.index(score) if score in known else len(known)), name

    return sorted(set(names), key=place)


def interval(m: Metric, bounds: tuple[float, float] | None) -> str:
    """``[82.1, 91.0]``, or an empty string."""
    return "" if bounds is None else f"[{m.number(bounds[0])}, {m.number(bounds[1])}]"


def size(n_bytes: float) -> str:
    """A number of bytes in decimal units."""
    value = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.0f}{NO_BREAK}{unit}" if unit == "B" else f"{value:.1f}{NO_BREAK}{unit}"
        value /= 1000
    return f"{value:.1f}{NO_BREAK}TB"


def seconds(value: float) -> str:
    """A duration: ``12.3 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    if not math.isfinite(value) or value < 0:
        return "–"
    if value < 100:
        return f"{value:.1f}{NO_BREAK}s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
    return text.replace(" ", NO_BREAK)


def short(name: str, most: int = MAX_NAME_LENGTH) -> str:
    """A name that fits into a figure: control characters become spaces, and a long name loses its middle."""
    plain = "".join(letter if letter.isprintable() else " " for letter in name)
    return plain if len(plain) <= most else f"{plain[: most // 2]}…{plain[-(most // 2 - 1) :]}"


def listed(names: Sequence[str], most: int = 8) -> str:
    """``A, B and C``; with more than ``most`` names the first ones and the number of the others."""
    names = list(names)
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def counted(n: int, singular: str, plural: str | None = None) -> str:
    """A number with its noun: ``1 site``, ``2 sites``."""
    return f"{n} {singular if n == 1 else plural or singular + 's'}"


def say(key: str, **facts: Any) -> str:
    """The sentence of this name in ``sentences.j2``, with these facts."""
    text = getattr(_sentences(), key)(**facts)
    return re.sub("[ \n]+", " ", str(text)).strip(" \n")


@cache
def _sentences() -> Any:
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined)
    environment.filters.update(listed=listed, counted=counted)
    return environment.get_template("sentences.j2").module
