"""One colour for each class, the same in overlays and in the images of a report."""

from __future__ import annotations

import colorsys

CLASS_COLOURS = ("#ffab3d", "#4fd6ff", "#f0e442", "#ff7ab8", "#35d29a", "#b79bff", "#ff6a3d")
"""Of the first classes, drawn on grey images."""
GOLDEN = 0.618034
"""Of the circle of hues, from one further class to the next: no two of them are alike."""


def class_colour(number: int) -> str:
    """Of a foreground class, from 1, as ``#rrggbb``."""
    if number <= len(CLASS_COLOURS):
        return CLASS_COLOURS[number - 1]
    red, green, blue = colorsys.hsv_to_rgb(number * GOLDEN % 1, 0.5, 0.85)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
