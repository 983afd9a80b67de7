"""Draw a scan with the outlines of its classes: the slice with the largest area, and an overview of the other slices.

Slices are in radiological orientation and true proportions. Outlines follow the voxels of the written mask, so they
show exactly what is in the file. Several classes have a colour each, which a legend names.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont
from scipy.ndimage import binary_erosion

from fedshift.data.picture_scan import COLOURS, as_picture
from fedshift.data.scans import Scan
from fedshift.runtime.grids import radiological, to_uint8
from fedshift.runtime.regions import voxels_of
from fedshift.schema.errors import DataError

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
Colour = tuple[int, ...]

LARGE_SIDE, SMALL_SIDE = 520, 170
"""Length of the longer side of the large slice and of the small slices, in pixels."""
PICTURE_SIDE, FEWEST_WIDE = 1024, 320
"""Of a picture: the longer side at most, and the width of the sheet at least."""
COLUMNS, ROWS = 5, 3
GAP, LINE_HEIGHT = 8, 20
SWATCH = 10
"""Side of the square of a class's colour in the legend."""
OUTLINE_COLOUR, BACKGROUND_COLOUR, TEXT_COLOUR, FAINT_TEXT_COLOUR = (
    (255, 196, 0),
    (18, 20, 24),
    (235, 235, 235),
    (150, 155, 165),
)
CLASS_COLOURS = ("#ffab3d", "#4fd6ff", "#f0e442", "#ff7ab8", "#35d29a", "#b79bff", "#ff6a3d")
"""Of the first classes, drawn on grey images."""
GOLDEN = 0.618034
"""Of the circle of hues, from one further class to the next: no two of them are alike."""
DATA_NOTES = {"phantom": "trained on simulated data (phantom)"}


def class_colour(number: int) -> str:
    """Of a foreground class, from 1, as ``#rrggbb``."""
    if number <= len(CLASS_COLOURS):
        return CLASS_COLOURS[number - 1]
    red, green, blue = colorsys.hsv_to_rgb(number * GOLDEN % 1, 0.5, 0.85)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def draw(
    scan: Scan,
    mask: np.ndarray,
    path: Path,
    *,
    title: str,
    classes: Sequence[str],
    kind: str,
    regions: bool = False,
    voxels: np.ndarray | None = None,
) -> None:
    """Write a PNG; of a picture in its colours.

    Args:
        scan: the scan, in RAS.
        mask: classes, or sets of ``regions``, uint8, same shape as ``scan.voxels``.
        path: the PNG file.
        title: of the scan, in a few words.
        classes: what is said of each foreground class.
        kind: kind of the model's training data; for ``phantom`` a note is added.
        regions: whether classes are regions, of which a later one is drawn over those before it.
        voxels: of all sequences (S, z, y, x), which a picture is drawn from; by default the scan's.

    Raises:
        DataError: the file cannot be written.
    """
    slices, masks = radiological(to_uint8(scan.voxels)), radiological(mask)
    spacing = scan.spacing[1], scan.spacing[0]
    numbers = range(1, len(classes) + 1)
    if scan.is_picture:
        shown = scan.voxels[None] if voxels is None else voxels
        _draw_picture(shown, mask, path, title=title, classes=classes, kind=kind, regions=regions)
        return
    areas = np.stack([np.count_nonzero(voxels_of(masks, n, regions=regions), axis=(1, 2)) for n in numbers])
    colours = [ImageColor.getrgb(class_colour(number)) for number in numbers] if len(classes) > 1 else [OUTLINE_COLOUR]
    largest = int(areas.sum(0).argmax()) if areas.any() else len(slices) // 2
    chosen = _shown_slices(areas, COLUMNS * ROWS)
    big = _tile(slices[largest], masks[largest], colours, spacing, LARGE_SIDE, regions=regions)
    small = [_tile(slices[k], masks[k], colours, spacing, SMALL_SIDE, regions=regions) for k in chosen]
    width, height = small[0].size
    sheet_width = big.width + GAP + COLUMNS * (width + GAP)
    font = ImageFont.load_default(14)
    lines = list(_legend_lines(classes, font, sheet_width)) if len(classes) > 1 else []
    top = GAP + (1 + len(lines)) * LINE_HEIGHT + 4
    sheet_height = top + max(big.height, ROWS * (height + GAP)) + 2 * LINE_HEIGHT + GAP - 4
    sheet = Image.new("RGB", (sheet_width + GAP, sheet_height), BACKGROUND_COLOUR)
    pen = ImageDraw.Draw(sheet)
    title = title if len(classes) > 1 else f"{title}: {classes[0]}"
    pen.text((GAP, GAP), _truncated(title, font, sheet_width), TEXT_COLOUR, font)
    _draw_legend(pen, lines, colours, font)
    sheet.paste(big, (GAP, top))
    _label_directions(pen, (GAP, top), big.size, font)
    _label_slice(pen, (GAP, top), f"slice {largest + 1} of {len(slices)}", font)
    for place, (k, tile) in enumerate(zip(chosen, small, strict=True)):
        corner = 2 * GAP + big.width + place % COLUMNS * (width + GAP), top + place // COLUMNS * (height + GAP)
        sheet.paste(tile, corner)
        _label_slice(pen, corner, str(k + 1), font)
    pen.text((GAP, sheet_height - LINE_HEIGHT - 2), _footer(kind), FAINT_TEXT_COLOUR, font)
    _save(sheet, path)


def shown_picture(voxels: np.ndarray) -> np.ndarray:
    """Sequences (S, 1, y, x) of a picture as RGB, (rows, columns, 3) uint8: three as they are, one as grey."""
    planes = [as_picture(plane) for plane in voxels]
    if len(planes) == len(COLOURS) and all(plane.dtype == np.uint8 for plane in planes):
        return np.stack(planes, -1)
    return np.repeat(to_uint8(planes[0])[..., None], 3, axis=-1)


def _draw_picture(
    voxels: np.ndarray, mask: np.ndarray, path: Path, *, title: str, classes: Sequence[str], kind: str, regions: bool
) -> None:
    numbers = range(1, len(classes) + 1)
    colours = [ImageColor.getrgb(class_colour(number)) for number in numbers] if len(classes) > 1 else [OUTLINE_COLOUR]
    picture = shown_picture(voxels)
    longest = min(max(picture.shape[:2]), PICTURE_SIDE)
    tile = _tile(picture, as_picture(mask), colours, (1.0, 1.0), longest, regions=regions)
    font, width = ImageFont.load_default(14), max(tile.width, FEWEST_WIDE)
    lines = list(_legend_lines(classes, font, width)) if len(classes) > 1 else []
    top = GAP + (1 + len(lines)) * LINE_HEIGHT + 4
    size = (width + 2 * GAP, top + tile.height + LINE_HEIGHT + 2 * GAP)
    sheet = Image.new("RGB", size, BACKGROUND_COLOUR)
    pen = ImageDraw.Draw(sheet)
    title = title if len(classes) > 1 else f"{title}: {classes[0]}"
    pen.text((GAP, GAP), _truncated(title, font, width), TEXT_COLOUR, font)
    _draw_legend(pen, lines, colours, font)
    sheet.paste(tile, (GAP, top))
    pen.text((GAP, size[1] - LINE_HEIGHT - 2), _truncated(_footer(kind), font, width), FAINT_TEXT_COLOUR, font)
    _save(sheet, path)


def _draw_legend(
    pen: ImageDraw.ImageDraw,
    lines: Sequence[Sequence[tuple[int, int, str]]],
    colours: Sequence[Colour],
    font: Font,
) -> None:
    for row, line in enumerate(lines, start=1):
        for x, number, text in line:
            y = GAP + row * LINE_HEIGHT
            pen.rectangle((GAP + x, y + 3, GAP + x + SWATCH, y + 3 + SWATCH), colours[number - 1])
            pen.text((GAP + x + SWATCH + 6, y), text, TEXT_COLOUR, font)


def _footer(kind: str) -> str:
    footer = "research use only, not a medical device"
    return f"{footer}; {DATA_NOTES[kind]}" if kind in DATA_NOTES else footer


def _save(sheet: Image.Image, path: Path) -> None:
    try:
        sheet.save(path, optimize=True)
    except OSError as error:
        message = (
            f"{path} cannot be written ({error.strerror or error}): free disk space or name another folder with --out"
        )
        raise DataError("file-unwritable", message) from None


def _legend_lines(classes: Sequence[str], font: Font, width: int) -> Iterator[list[tuple[int, int, str]]]:
    """Place, number and text of the classes in each line of the legend."""
    line: list[tuple[int, int, str]] = []
    x = 0
    for number, name in enumerate(classes, start=1):
        text = _truncated(name, font, width - SWATCH - 6)
        needed = SWATCH + 6 + round(font.getlength(text))
        if line and x + needed > width:
            yield line
            line, x = [], 0
        line.append((x, number, text))
        x += needed + 2 * GAP
    yield line


def _shown_slices(areas: np.ndarray, most: int) -> list[int]:
    """Indices of at most ``most`` slices to show, from the areas of each class in each slice (classes, slices).

    They are evenly spaced over the foreground and one slice on either side, with slices of the classes that would
    otherwise not be seen.
    """
    inside = np.flatnonzero(areas.any(0)) if areas.any() else np.arange(areas.shape[1])
    first, last = max(int(inside[0]) - 1, 0), min(int(inside[-1]) + 1, areas.shape[1] - 1)

    def spaced(count: int) -> list[int]:
        return [round(k) for k in np.linspace(first, last, min(count, last - first + 1))]

    present = areas[areas.any(1)]
    if present[:, spaced(most)].any(1).all():
        return spaced(most)
    needed: list[int] = []
    for area in present:
        if not area[needed].any():
            needed.append(int(area.argmax()))
    return sorted({*needed[:most], *spaced(max(most - len(needed), 0))})


def _tile(
    image: np.ndarray,
    mask: np.ndarray,
    colours: Sequence[Colour],
    spacing: tuple[float, float],
    longest: int,
    *,
    regions: bool,
) -> Image.Image:
    """Draw a slice (rows, columns), or a picture (rows, columns, 3), with the outlines of its classes.

    ``colours`` are those of the classes, ``spacing`` is the pixel size in mm (row, column); ``longest`` is the length
    of the longer side in pixels.
    """
    height, width = image.shape[0] * spacing[0], image.shape[1] * spacing[1]
    size = tuple(max(1, round(side * longest / max(height, width))) for side in (width, height))
    resized = Image.fromarray(np.ascontiguousarray(image)).resize(size, Image.Resampling.BICUBIC)
    inside = np.asarray(Image.fromarray(np.ascontiguousarray(mask)).resize(size, Image.Resampling.NEAREST))
    shown = np.array(resized.convert("RGB"))
    for number, colour in enumerate(colours, start=1):
        shown[_outline(voxels_of(inside, number, regions=regions), thick=longest >= LARGE_SIDE)] = colour
    return Image.fromarray(shown)


def _outline(mask: np.ndarray, *, thick: bool) -> np.ndarray:
    """Pixels of a mask (rows, columns) at its border: one pixel wide, or two if ``thick``."""
    line: np.ndarray = mask & ~binary_erosion(mask, iterations=1 + thick)
    return line


def _label_directions(pen: ImageDraw.ImageDraw, corner: tuple[int, int], size: tuple[int, int], font: Font) -> None:
    """Label the patient's right, left, anterior and posterior side."""
    (x, y), (width, height) = corner, size
    for word, place, anchor in (
        ("R", (x + 6, y + height // 2), "lm"),
        ("L", (x + width - 6, y + height // 2), "rm"),
        ("A", (x + width // 2, y + 4), "mt"),
        ("P", (x + width // 2, y + height - 4), "mb"),
    ):
        pen.text(place, word, TEXT_COLOUR, font, anchor=anchor, stroke_width=2, stroke_fill=BACKGROUND_COLOUR)


def _label_slice(pen: ImageDraw.ImageDraw, corner: tuple[int, int], text: str, font: Font) -> None:
    pen.text((corner[0] + 4, corner[1] + 2), text, TEXT_COLOUR, font, stroke_width=2, stroke_fill=BACKGROUND_COLOUR)


def _truncated(text: str, font: Font, width: int) -> str:
    """Shorten ``text`` with an ellipsis so that it fits into ``width`` pixels."""
    while text and font.getlength(text) > width:
        text = text[:-2].rstrip("…") + "…"
    return text
