"""Matplotlib figures as SVG that follows the page's colours and font: light, dark and in print.

Figures are drawn with placeholder colours, which are then replaced by CSS variables. Text stays text. Equal input gives
equal bytes.
"""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

INK, FAINT, GRID, GROUND = "#100001", "#100002", "#100003", "#100004"
SERIES_COLOURS = tuple(f"#20000{number}" for number in range(8))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", ":", "-.")
ID_PLACEHOLDER = "\ue000"
"""Start of every id in a figure, until `with_id_prefix` replaces it with a prefix that is unique in the page."""
WIDTH = 360
"""Default width of a figure, in CSS pixels."""

_VARIABLES = {INK: "var(--ink)", FAINT: "var(--faint)", GRID: "var(--grid)", GROUND: "var(--ground)"}
_VARIABLES |= {colour: f"var(--series-{number})" for number, colour in enumerate(SERIES_COLOURS)}
_PLACEHOLDER_COLOUR = re.compile(r"#[12]0000[0-9]")
_FONT = re.compile(r"font: ([\d.]+)px [^;]*")
_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "axes.unicode_minus": False,
    "font.size": 11,
    "axes.labelsize": 11,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
}


@dataclass(frozen=True)
class LegendEntry:
    """A name and its ``mark``, a small drawing of its line and marker."""

    text: str
    mark: Markup


@dataclass(frozen=True)
class Figure:
    """A drawing. ``description`` is its text alternative for screen readers."""

    title: str
    svg: Markup
    description: str
    legend: Sequence[LegendEntry] = ()


def colour(number: int) -> str:
    """The placeholder colour of a series; repeats after eight series."""
    return SERIES_COLOURS[number % len(SERIES_COLOURS)]


def marker(number: int) -> str:
    """The marker of a series, so that series differ in more than colour."""
    return MARKERS[(number + number // len(SERIES_COLOURS)) % len(MARKERS)]


def dashes(number: int) -> str:
    """The line style of a series: solid for the first eight, then dashed styles."""
    return DASHES[number // len(SERIES_COLOURS) % len(DASHES)]


@contextmanager
def drawing(
    width: float = WIDTH, height: float = 240, *, rows: int = 1, columns: int = 1
) -> Iterator[tuple[Drawing, list[Axes]]]:
    """A figure with ``rows`` x ``columns`` axes, to be drawn and converted within; width and height in CSS pixels.

    Matplotlib has the report's settings there, and does not warn of glyphs that its fonts lack.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure as Drawing

    log = logging.getLogger("matplotlib")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with mpl.rc_context(_STYLE), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            drawn = Drawing(figsize=(width / 72, height / 72), layout="constrained")
            drawn.patch.set_visible(False)
            grid = drawn.subplots(rows, columns, squeeze=False)
            for axes in grid.flat:
                axes.patch.set_visible(False)
            yield drawn, list(grid.flat)
    finally:
        log.setLevel(level)


def figure(drawn: Drawing, key: str, *, title: str, description: str, legend: Sequence[LegendEntry] = ()) -> Figure:
    """Convert a Matplotlib figure to a report figure; ``key`` is unique in its chapter. Call it within `drawing`."""
    return Figure(title, markup(drawn, key, description), description, legend)


def markup(drawn: Drawing, key: str, description: str) -> Markup:
    """The ``<svg>`` element of a Matplotlib figure, with ids that contain ``key``."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    with mpl.rc_context({"svg.hashsalt": key}), io.BytesIO() as file:
        # As `savefig`, which draws everything once more, without output, to arrange it: this drawing does so itself.
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        FigureCanvasSVG(drawn).print_svg(file, metadata=metadata)  # type: ignore[no-untyped-call]
        root = ElementTree.fromstring(file.getvalue())  # trusted: written by Matplotlib above
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        _use_page_style(element, key)
    root.attrib.pop("width", None)
    root.attrib.pop("height", None)
    root.set("role", "img")
    root.set("aria-label", description)
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _LINK)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def standalone(drawn: Drawing, key: str, description: str) -> str:
    """The figure as a stand-alone SVG file in the page's light colour scheme. Call it within `drawing`."""
    light = _light_colours()
    svg = str(markup(drawn, key, description)).replace(ID_PLACEHOLDER, "")
    svg = re.sub(r"var\(--([\w-]+)\)", lambda match: light[match.group(1)], svg)
    _, _, width, height = ElementTree.fromstring(svg).attrib["viewBox"].split()
    family = "font-family: 'DejaVu Sans', Verdana, sans-serif; white-space: pre"
    ground = f'<rect width="{width}" height="{height}" style="fill: {light["ground"]}"/>'
    start, end = svg.split(">", 1)
    return f'{start} width="{width}" height="{height}" style="{family}">{ground}{end}\n'


def _light_colours() -> dict[str, str]:
    """The colours of the page's light scheme, by the names of their CSS variables."""
    css = (Path(__file__).parent / "report" / "style.css").read_text(encoding="utf-8")
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", css.partition("@media")[0]))


def with_id_prefix(drawn: Figure, prefix: str) -> Figure:
    """The figure with ids that start with ``prefix``."""
    return replace(drawn, svg=Markup(str(drawn.svg).replace(ID_PLACEHOLDER, f"{prefix}-")))


def _use_page_style(element: ElementTree.Element, key: str) -> None:
    """Make the element's ids unique to this figure, and use the page's colours and font."""
    for name, value in list(element.attrib.items()):
        if name == "id":
            value = f"{ID_PLACEHOLDER}{key}-{value}"
        elif name == f"{{{_LINK}}}href" and value.startswith("#"):
            value = f"#{ID_PLACEHOLDER}{key}-{value[1:]}"
        elif "url(#" in value:
            value = value.replace("url(#", f"url(#{ID_PLACEHOLDER}{key}-")
        if name == "style":
            value = _FONT.sub(r"font-size: \1px", value)
            value = _PLACEHOLDER_COLOUR.sub(lambda match: _VARIABLES.get(match.group(), match.group()), value)
        element.set(name, value)


def legend(names: Sequence[str], *, lines: bool = True) -> list[LegendEntry]:
    """Legend entries for series 0, 1, … in the order of ``names``; ``lines`` draws the line behind the marker."""
    return [LegendEntry(name, _mark(number, lines=lines)) for number, name in enumerate(names)]


_DASH = {"-": "", "--": "5 3", ":": "2 3", "-.": "6 2 2 2"}
_SHAPES = {
    "o": '<circle cx="14" cy="7" r="4"/>',
    "s": '<rect x="10.5" y="3.5" width="7" height="7"/>',
    "^": '<path d="M14 2.5l4.5 8h-9z"/>',
    "v": '<path d="M14 11.5l4.5 -8h-9z"/>',
    "D": '<path d="M14 2l5 5l-5 5l-5 -5z"/>',
    "P": '<path d="M12.3 2.5h3.4v2.8h2.8v3.4h-2.8v2.8h-3.4v-2.8h-2.8v-3.4h2.8z"/>',
    "X": '<path d="M10 5l2 -2l2 2l2 -2l2 2l-2 2l2 2l-2 2l-2 -2l-2 2l-2 -2l2 -2z"/>',
    "*": '<path d="M14 2l1.3 3.4l3.7 .2l-2.9 2.3l1 3.6l-3.1 -2l-3.1 2l1 -3.6l-2.9 -2.3l3.7 -.2z"/>',
}


def _mark(number: int, *, lines: bool) -> Markup:
    colour_ = f"var(--series-{number % len(SERIES_COLOURS)})"
    line = (
        f'<path d="M1 7h26" fill="none" style="stroke: {colour_}" stroke-width="2" '
        f'stroke-dasharray="{_DASH[dashes(number)]}"/>'
    )
    shape = f'<g style="fill: {colour_}">{_SHAPES[marker(number)]}</g>'
    return Markup(f'<svg viewBox="0 0 28 14" width="28" height="14" aria-hidden="true">{line * lines}{shape}</svg>')


def integer_ticks(axes: object, values: Sequence[int]) -> None:
    """Put ticks of the x axis at whole rounds only."""
    from matplotlib.axes import Axes
    from matplotlib.ticker import MaxNLocator

    assert isinstance(axes, Axes)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    if len(set(values)) == 1:
        axes.set_xlim(values[0] - 1, values[0] + 1)
