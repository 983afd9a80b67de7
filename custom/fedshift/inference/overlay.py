"""A picture of a scan with the outline of what was found: the largest slice, and the slices around it.

Slices are shown as a radiologist sees them, in true proportions; the outline runs along the voxels of the mask that was
written, so it shows what is in the file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fedshift.data.arrays import radiological, to_uint8
from fedshift.data.scans import Scan
from fedshift.schema.errors import DataError

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

LARGE, SMALL = 520, 170
"""Pixels of the longer side of the large slice and of the small ones."""
COLUMNS, ROWS = 5, 3
GAP, LINE = 8, 20
OUTLINE, BACKGROUND, TEXT, FAINT = (255, 196, 0), (18, 20, 24), (235, 235, 235), (150, 155, 165)
LABELS = {"phantom": "trained on simulated data (phantom)"}


def draw(scan: Scan, mask: np.ndarray, path: Path, *, title: str, kind: str) -> None:
    """Write a PNG.

    Args:
        scan: RAS.
        mask: bool, as ``scan.voxels``.
        path: where.
        title: one line.
        kind: of the data that the model was trained on.

    Raises:
        DataError: it cannot be written.
    """
    slices, masks = radiological(to_uint8(scan.voxels)), radiological(mask)
    spacing = scan.spacing[1], scan.spacing[0]
    areas = masks.sum((1, 2))
    largest = int(areas.argmax()) if areas.any() else len(slices) // 2
    chosen = _around(areas, COLUMNS * ROWS)
    big = _tile(slices[largest], masks[largest], spacing, LARGE)
    small = [_tile(slices[k], masks[k], spacing, SMALL) for k in chosen]
    width, height = small[0].size
    sheet_width = big.width + GAP + COLUMNS * (width + GAP)
    sheet_height = max(big.height, ROWS * (height + GAP)) + 3 * LINE + 2 * GAP
    sheet = Image.new("RGB", (sheet_width + GAP, sheet_height), BACKGROUND)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    pen.text((GAP, GAP), _fitted(title, font, sheet_width), TEXT, font)
    top = GAP + LINE + 4
    sheet.paste(big, (GAP, top))
    _sides(pen, (GAP, top), big.size, font)
    _number(pen, (GAP, top), f"slice {largest + 1} of {len(slices)}", font)
    for place, (k, tile) in enumerate(zip(chosen, small, strict=True)):
        corner = 2 * GAP + big.width + place % COLUMNS * (width + GAP), top + place // COLUMNS * (height + GAP)
        sheet.paste(tile, corner)
        _number(pen, corner, str(k + 1), font)
    words = ["research use only, not a medical device", *([LABELS[kind]] if kind in LABELS else [])]
    pen.text((GAP, sheet_height - LINE - 2), "; ".join(words), FAINT, font)
    try:
        sheet.save(path, optimize=True)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error.strerror or error}): make room there") from None


def _around(areas: np.ndarray, most: int) -> list[int]:
    """Slices to show: those with something in them and one on either side, thinned out evenly if they are many."""
    inside = np.flatnonzero(areas) if areas.any() else np.arange(len(areas))
    first, last = max(int(inside[0]) - 1, 0), min(int(inside[-1]) + 1, len(areas) - 1)
    count = min(most, last - first + 1)
    return [round(k) for k in np.linspace(first, last, count)]


def _tile(image: np.ndarray, mask: np.ndarray, spacing: tuple[float, float], longest: int) -> Image.Image:
    """A slice (rows, columns) of pixels of ``spacing`` mm with its outline, ``longest`` pixels on its longer side."""
    height, width = image.shape[0] * spacing[0], image.shape[1] * spacing[1]
    size = tuple(max(1, round(side * longest / max(height, width))) for side in (width, height))
    grey = Image.fromarray(np.ascontiguousarray(image)).resize(size, Image.Resampling.BICUBIC)
    inside = np.asarray(Image.fromarray(np.ascontiguousarray(mask)).resize(size, Image.Resampling.NEAREST))
    shown = np.repeat(np.asarray(grey)[..., None], 3, axis=2).copy()
    shown[_outline(inside, thick=longest >= LARGE)] = OUTLINE
    return Image.fromarray(shown)


def _outline(mask: np.ndarray, *, thick: bool) -> np.ndarray:
    """Pixels inside a mask (rows, columns) that touch its outside."""
    edge = mask.copy()
    for _ in range(1 + thick):
        edge = _shrunk(edge)
    line: np.ndarray = mask & ~edge
    return line


def _shrunk(mask: np.ndarray) -> np.ndarray:
    padded = np.pad(mask, 1)
    inner: np.ndarray = padded[2:, 1:-1] & padded[:-2, 1:-1] & padded[1:-1, 2:] & padded[1:-1, :-2] & mask
    return inner


def _sides(pen: ImageDraw.ImageDraw, corner: tuple[int, int], size: tuple[int, int], font: Font) -> None:
    """Patient's right and left, anterior and posterior."""
    (x, y), (width, height) = corner, size
    for word, place, anchor in (
        ("R", (x + 6, y + height // 2), "lm"),
        ("L", (x + width - 6, y + height // 2), "rm"),
        ("A", (x + width // 2, y + 4), "mt"),
        ("P", (x + width // 2, y + height - 4), "mb"),
    ):
        pen.text(place, word, TEXT, font, anchor=anchor, stroke_width=2, stroke_fill=BACKGROUND)


def _number(pen: ImageDraw.ImageDraw, corner: tuple[int, int], text: str, font: Font) -> None:
    pen.text((corner[0] + 4, corner[1] + 2), text, TEXT, font, stroke_width=2, stroke_fill=BACKGROUND)


def _fitted(text: str, font: Font, width: int) -> str:
    """Cut off what is too long for a line."""
    while text and font.getlength(text) > width:
        text = text[:-2].rstrip("…") + "…"
    return text
