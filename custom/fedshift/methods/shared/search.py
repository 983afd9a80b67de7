"""Distributions of options, from which a comparison draws each method's settings (as DomainBed does).

Gulrajani and Lopez-Paz, "In Search of Lost Domain Generalization", ICLR 2021: every algorithm has a default and a
distribution for each of its options, and all get the same number of draws. A method's file may define ``SEARCH``,
option → `Distribution`, or None for an option that is not to be drawn. For a number that it does not name:

- a default of 0 or below, or none: never drawn, as it switches something off;
- an option between 0 and 1: uniform between them;
- a whole number: logarithmic between a quarter and four times the default;
- any other number: logarithmic between a tenth and ten times the default.

Options that are not numbers, and ``eps``, are never drawn: they are other methods, or hardly matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Literal, Self

import annotated_types
import numpy as np
from pydantic import model_validator
from pydantic.fields import FieldInfo

from fedshift.schema.seeding import derive_seed
from fedshift.schema.strict import Strict

DIGITS = 3
"""Significant digits of a drawn number, so that settings can be read and repeated."""
EDGE = 0.001
NEVER_DRAWN = "eps"


class Distribution(Strict):
    """Where an option's values are drawn from.

    ``uniform`` and ``log`` are between ``low`` and ``high``, ``whole`` is ``log`` rounded to whole numbers, and
    ``choice`` draws one of ``values``.
    """

    kind: Literal["uniform", "log", "whole", "choice"]
    low: float = 0.0
    high: float = 0.0
    values: tuple[Any, ...] = ()

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.kind == "choice":
            if not self.values:
                raise ValueError("choice needs 'values'")
        elif not self.low < self.high or (self.kind != "uniform" and self.low <= 0):
            raise ValueError(f"{self.kind} needs 'low' below 'high'" + ("" if self.kind == "uniform" else ", above 0"))
        return self

    def draw(self, option: str, *, number: int, seed: int) -> Any:
        """The value of ``option`` in setting ``number``; it depends on nothing else."""
        rng = np.random.default_rng(derive_seed(seed, option, number, "tuning"))
        if self.kind == "choice":
            return self.values[int(rng.integers(len(self.values)))]
        share = float(rng.random())
        if self.kind == "uniform":
            return _rounded(self.low + share * (self.high - self.low))
        value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        return round(value) if self.kind == "whole" else _rounded(value)

    def __str__(self) -> str:
        """For readers: ``log 0.001 to 1``."""
        if self.kind == "choice":
            return f"one of {', '.join(map(str, self.values))}"
        return f"{self.kind} {self.low:g} to {self.high:g}"


def uniform(low: float, high: float) -> Distribution:
    return Distribution(kind="uniform", low=low, high=high)


def log(low: float, high: float) -> Distribution:
    """Logarithmic between two positive numbers."""
    return Distribution(kind="log", low=low, high=high)


def choice(*values: Any) -> Distribution:
    return Distribution(kind="choice", values=values)


def around(default: float) -> Distribution:
    """Between a tenth and ten times a positive default."""
    return log(_rounded(default / 10), _rounded(default * 10))


def space(module: ModuleType) -> dict[str, Distribution]:
    """The options of a method that are drawn, in the order of its ``Config``."""
    declared: Mapping[str, Distribution | None] = getattr(module, "SEARCH", {})
    distributions = {
        name: declared[name] if name in declared else _derived(name, field)
        for name, field in module.Config.model_fields.items()
    }
    return {name: distribution for name, distribution in distributions.items() if distribution is not None}


def _derived(name: str, field: FieldInfo) -> Distribution | None:
    default = field.default
    if name == NEVER_DRAWN or isinstance(default, bool) or not isinstance(default, int | float) or default <= 0:
        return None
    lowest, highest = _bounds(field)
    if isinstance(default, int):
        low, high = max(default / 4, lowest, 1), min(default * 4, highest)
        return Distribution(kind="whole", low=math.ceil(low), high=math.floor(high)) if low + 1 <= high else None
    if lowest >= 0 and highest <= 1:
        return uniform(*_within(lowest, highest, field))
    low, high = max(default / 10, lowest), min(default * 10, highest)
    return log(_rounded(low), _rounded(high)) if 0 < low < high else None


def _bounds(field: FieldInfo) -> tuple[float, float]:
    """The least and the largest value that an option may have."""
    low, high = -math.inf, math.inf
    for limit in field.metadata:
        if isinstance(limit, annotated_types.Ge | annotated_types.Gt):
            low = max(low, float(limit.ge if isinstance(limit, annotated_types.Ge) else limit.gt))  # type: ignore[arg-type]
        elif isinstance(limit, annotated_types.Le | annotated_types.Lt):
            high = min(high, float(limit.le if isinstance(limit, annotated_types.Le) else limit.lt))  # type: ignore[arg-type]
    return low, high


def _within(low: float, high: float, field: FieldInfo) -> tuple[float, float]:
    """The ends that may be drawn: 0.001 inside one that an option must not reach."""
    kinds = {type(limit) for limit in field.metadata}
    return low + EDGE * (annotated_types.Gt in kinds), high - EDGE * (annotated_types.Lt in kinds)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
