"""p-values as text."""

from __future__ import annotations

SMALLEST = 0.001
"""Smaller ones are not told apart in reports."""


def p_text(p: float | None) -> str:
    """``0.012``, ``< 0.001``, or a dash for None."""
    if p is None:
        return "–"
    return f"< {SMALLEST}" if p < SMALLEST else f"{p:.3f}"


def p_equals(p: float) -> str:
    """As after "p": ``= 0.012`` or ``< 0.001``."""
    return p_text(p) if p < SMALLEST else f"= {p_text(p)}"


def exact_p(p: float) -> str:
    """With four decimals, and two digits if it is small: ``0.0120``, ``2.1e-05``."""
    return f"{p:.4f}" if p >= 0.0001 else f"{p:.1e}"
