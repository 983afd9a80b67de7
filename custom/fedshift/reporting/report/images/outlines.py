"""Outlines of a model and its reference drawn on images: colours, line styles, legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup, escape
from scipy.ndimage import binary_erosion

from fedshift.inference.overlay import CLASS_COLOURS, class_colour
from fedshift.reporting import figures
from fedshift.reporting.figures import Figure, LegendEntry
from fedshift.reporting.report.images.volumes import Plane, Volume
from fedshift.reporting.report.wording import listed, short
from fedshift.runtime.regions import MOST_REGIONS, voxels_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MODEL, REFERENCE = CLASS_COLOURS[:2]
"""Drawn on images, which look the same in both schemes. Several classes have colours (`class_colour`) and numbers."""
NEUTRAL = "#ffffff"
DASHED = "4 2.5"
PANEL = 132
"""Height of a row of images, in CSS pixels."""


def legend(classes: Sequence[str]) -> list[LegendEntry]:
    """The lines of model and reference; of several foreground classes also their numbers and colours."""
    if len(classes) < 2:
        return [LegendEntry("model", _line(MODEL, "")), LegendEntry("reference", _line(REFERENCE, DASHED))]
    named = [LegendEntry(name, _number(number)) for number, name in enumerate(classes, start=1)]
    return [*named, LegendEntry("model", _line(NEUTRAL, "")), LegendEntry("reference", _line(NEUTRAL, DASHED))]


def _line(colour: str, dashes: str) -> Markup:
    return _swatch(f'<path d="M3 7h22" stroke="{colour}" stroke-width="2.4" stroke-dasharray="{dashes}"/>')


def _number(number: int) -> Markup:
    colour = escape(class_colour(number))
    text = f'<text x="14" y="11" text-anchor="middle" font-size="11" font-weight="700" fill="{colour}">{number}</text>'
    lines = f'<path d="M2 7h6M20 7h6" stroke="{colour}" stroke-width="2.4"/>'
    # The number is in the picture too, so it is read out: the mark is no decoration.
    return _swatch(text + lines, label=f"number {number}:")


def _swatch(content: str, *, label: str = "") -> Markup:
    role = f'role="img" aria-label="{label}"' if label else 'aria-hidden="true"'
    return Markup(
        f'<svg viewBox="0 0 28 14" width="28" height="14" {role}><rect width="28" height="14" rx="2" '
        f'fill="#333"/>{content}</svg>'
    )


def volume(shown: Volume, classes: Sequence[str], *, key: str, title: str, site: str) -> Figure:
    """Planes side by side, a row for each sequence.

    Args:
        shown: the case.
        classes: foreground classes.
        key: unique in the chapter.
        title: of the figure.
        site: its name.
    """
    if shown.planes[0].images[0].ndim == 3:
        return _on_picture(shown.planes[0], classes, key=key, title=title, site=site)
    rows = len(shown.planes[0].images)
    with figures.drawing(width=390, height=PANEL * rows + 16, rows=rows, columns=len(shown.planes)) as (drawn, panels):
        for row in range(rows):
            for plane, axes in zip(shown.planes, panels[row * len(shown.planes) :], strict=False):
                _panel(axes, plane, plane.images[row], several=len(classes) > 1)
                if row == 0:
                    axes.set_title(plane.name, fontsize=9, pad=3)
            if shown.sequences:
                panels[row * len(shown.planes)].set_ylabel(short(shown.sequences[row], 16), fontsize=9)
        named = "" if len(classes) < 2 else f" of {listed([f'{n} {name}' for n, name in enumerate(classes, start=1)])}"
        on = f" on {listed(list(shown.sequences))}" if shown.sequences else ""
        planes = ", ".join(plane.name for plane in shown.planes)
        who = "by the model (solid) and of the reference (dashed)"
        described = f"{short(site)}, {title}: {planes}{on}, with the outlines{named} {who}"
        return figures.figure(drawn, key, title=title, description=described)


def _on_picture(plane: Plane, classes: Sequence[str], *, key: str, title: str, site: str) -> Figure:
    """A picture twice, with the outlines of the model and of the reference in its pixels: thin structures have many."""
    with figures.drawing(width=390, height=PANEL + 46, columns=2) as (drawn, panels):
        for axes, name, mask, colour in zip(
            panels, ("model", "reference"), (plane.predicted, plane.reference), (MODEL, REFERENCE), strict=True
        ):
            bare(axes)
            image = plane.images[0].copy()
            for number in (n for n in _numbers_in(plane) if n):
                inside = voxels_of(mask, number, regions=plane.regions)
                shown = class_colour(number) if len(classes) > 1 else colour
                image[inside & ~binary_erosion(inside)] = [int(shown[k : k + 2], 16) for k in (1, 3, 5)]
            axes.imshow(image, aspect=plane.aspect)
            axes.set_title(name, fontsize=9, pad=3)
        described = f"{short(site)}, {title}: the picture with the outlines of the model, and of the reference"
        return figures.figure(drawn, key, title=title, description=described)


def _panel(axes: Axes, plane: Plane, image: np.ndarray, *, several: bool) -> None:
    bare(axes)
    axes.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="none", aspect=plane.aspect)
    numbers = [n for n in _numbers_in(plane) if n]
    for mask, line, colour in ((plane.predicted, "-", MODEL), (plane.reference, "--", REFERENCE)):
        for number in numbers:
            outline(
                axes, voxels_of(mask, number, regions=plane.regions), class_colour(number) if several else colour, line
            )
    for side, x, y, horizontal, vertical in (
        (plane.sides[0], 0.02, 0.5, "left", "center"),
        (plane.sides[1], 0.5, 0.98, "center", "top"),
    ):
        axes.text(x, y, side, color="#ddd", fontsize=8, transform=axes.transAxes, ha=horizontal, va=vertical)
    if several:
        _numbers(axes, plane, numbers)


def _numbers_in(plane: Plane) -> list[int]:
    """Of the classes or regions that are in a plane."""
    values: list[int] = np.union1d(plane.predicted, plane.reference).tolist()
    if not plane.regions:
        return values
    return [number for number in range(1, MOST_REGIONS + 1) if any(value >> (number - 1) & 1 for value in values)]


def outline(axes: Axes, mask: np.ndarray, colour: str, line: str) -> None:
    """The contour of a mask (rows, columns), if there is anything in it."""
    from matplotlib.patheffects import withStroke

    if mask.any():
        lines = axes.contour(mask.astype(float), levels=[0.5], colors=[colour], linestyles=[line], linewidths=1.5)
        lines.set_path_effects([withStroke(linewidth=2.7, foreground="#000000", alpha=0.6)])  # on bright tissue


def _numbers(axes: Axes, plane: Plane, numbers: Sequence[int]) -> None:
    """Each class's number beside it, on the side that is away from the rest."""
    stretch = np.array([plane.aspect, 1.0])
    everything = np.argwhere((plane.predicted > 0) | (plane.reference > 0))
    middle = everything.mean(0) * stretch
    for number in numbers:
        drawn = (voxels_of(mask, number, regions=plane.regions) for mask in (plane.reference, plane.predicted))
        mask = next(each for each in drawn if each.any())
        places = np.argwhere(mask) * stretch
        away = places.mean(0) - middle
        length = float(np.hypot(*away))
        away = away / length if length > 1 else np.array([-1.0, 0.0])
        end = places[int((places @ away).argmax())] / stretch
        axes.annotate(
            str(number),
            (float(end[1]), float(end[0])),
            xytext=(9 * float(away[1]), -9 * float(away[0])),
            textcoords="offset points",
            color=class_colour(number),
            fontsize=9,
            fontweight="bold",
            ha="center",
            va="center",
            annotation_clip=False,
            bbox={"facecolor": "#111111", "alpha": 0.6, "linewidth": 0, "pad": 0.8},
        )


def bare(axes: Axes) -> None:
    """Without ticks, grid and frame."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
