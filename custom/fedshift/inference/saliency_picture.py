"""Draw a picture beside itself with the places that speak for a class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fedshift.inference.overlay import BACKGROUND_COLOUR, FAINT_TEXT_COLOUR, GAP, LINE_HEIGHT, TEXT_COLOUR
from fedshift.schema.errors import DataError

SIDE = 320
"""Of each of the two pictures, in pixels."""
COLOURS = np.array([(0, 0, 0), (120, 20, 60), (240, 110, 30), (255, 225, 90)], np.float64)
"""From places that say nothing to those that speak most for the class."""
STRONGEST = 0.65
"""How much of the colour covers the picture there."""


def shaded(image: np.ndarray, places: np.ndarray) -> np.ndarray:
    """A picture (H, W, 3) uint8 with its places (H, W), from 0 to 1, in colour."""
    steps = np.linspace(0, 1, len(COLOURS))
    colour = np.stack([np.interp(places, steps, COLOURS[:, channel]) for channel in range(3)], -1)
    cover = STRONGEST * places[..., None]
    return np.asarray((1 - cover) * image + cover * colour).round().astype(np.uint8)


def flat(image: np.ndarray, places: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """A picture (C, H, W) and its places (H, W); of a volume, the first sequence's slice with the strongest place."""
    if image.ndim == 3:
        return image, places
    number = image.shape[1] // 2
    if places is not None and places.any():
        number = int(places.max((1, 2)).argmax())
    return image[:1, number], None if places is None else places[number]


def as_shown(image: np.ndarray) -> np.ndarray:
    """An image (C, H, W) as the network gets it, from its smallest to its largest value: (H, W, 3) uint8."""
    low, high = float(image.min()), float(image.max())
    grey = np.moveaxis((image - low) / max(high - low, 1e-6), 0, -1)
    return np.asarray(255 * np.broadcast_to(grey, (*grey.shape[:2], 3))).round().astype(np.uint8)


def write(path: Path, image: np.ndarray, places: np.ndarray, lines: Sequence[str]) -> None:
    """Write a PNG: the image (C, *spatial) as the task prepares it, and beside it with its ``places`` (*spatial).

    ``lines``: what is said above. Raises `DataError` if it cannot be written.
    """
    image, of_slice = flat(image, places)
    shown, places = as_shown(image), places if of_slice is None else of_slice
    height = round(SIDE * shown.shape[0] / shown.shape[1])
    top = GAP + LINE_HEIGHT * len(lines)
    page = Image.new("RGB", (2 * SIDE + 3 * GAP, top + height + GAP), BACKGROUND_COLOUR)
    for number, pixels in enumerate((shown, shaded(shown, places))):
        picture = Image.fromarray(pixels).resize((SIDE, height), Image.Resampling.BICUBIC)
        page.paste(picture, (GAP + number * (SIDE + GAP), top))
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(size=13)
    for number, line in enumerate(lines):
        colour = FAINT_TEXT_COLOUR if number else TEXT_COLOUR
        pen.text((GAP, GAP // 2 + number * LINE_HEIGHT), line, fill=colour, font=font)
    try:
        page.save(path)
    except OSError as error:
        message = f"{path} cannot be written ({error.strerror or error}): name another folder with --out"
        raise DataError("file-unwritable", message) from None
