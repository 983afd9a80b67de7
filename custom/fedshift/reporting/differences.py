"""Differences of two scores as text: with a sign, and with two digits where the scores' own format would print 0."""

from __future__ import annotations

ROUNDING = 1e-9
"""Smaller differences, in the unit of the tables, are none."""


def points(difference: float, *, decimals: int = 1) -> str:
    """``3.4``, ``-0.021`` or ``0.0``; ``difference`` is in the unit of the tables."""
    if abs(difference) < ROUNDING:
        return f"{0:.{decimals}f}"
    text = f"{difference:.{decimals}f}"
    return text if float(text) else f"{difference:.2g}"


def signed(difference: float, *, decimals: int = 1) -> str:
    """As `points`, with a plus before one above 0."""
    return f"{'+' if difference >= ROUNDING else ''}{points(difference, decimals=decimals)}"
