"""A survey in the terminal: the sites, the map of the shift, and what it suggests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedshift.data.shift import MOST_TIMES, Aspect, Level, Pair, ShiftMap
from fedshift.data.tallies import of_pictures, plain, row_of_site, spread, worded
from fedshift.reporting.table import PHANTOM_NOTE
from fedshift.schema.fingerprint import Fingerprint
from fedshift_survey.suggestions import Suggestion

MAX_SITES = 12
"""With more sites than this, a map is too wide for a terminal."""
STYLE: dict[Level, str] = {
    "similar": "black on green3",
    "differs": "black on yellow3",
    "differs much": "white on red3",
    "unknown": "dim",
}
MARK = {"result": "■", "good": "✓", "caution": "!", "note": "i"}


def sites_table(fingerprints: Sequence[Fingerprint], *, placed: Sequence[str] = ()) -> Table:
    """What each site told, in a row."""
    phantom = any(fingerprint.kind == "phantom" for fingerprint in fingerprints)
    table = Table(
        title="Sites", title_justify="left", caption=PHANTOM_NOTE if phantom else None, caption_justify="left"
    )
    voxels = worded("voxels", pictures=of_pictures(fingerprints))
    for heading in ("site", "cases\n(surveyed)", voxels, "mm", "labels"):
        table.add_column(heading, justify="left" if heading in ("site", "labels") else "right")
    for fingerprint in fingerprints:
        name = f"{fingerprint.site} (on the map only)" if fingerprint.site in placed else fingerprint.site
        table.add_row(*map(escape, (name, f"{fingerprint.total} ({fingerprint.surveyed})", *row_of_site(fingerprint))))
    return table


def map_tables(shift: ShiftMap) -> Iterator[Table]:
    """The heat map: all aspects together as a square of sites; or the pairs that differ most, if there are many."""
    if 2 <= len(shift.sites) <= MAX_SITES:
        yield _square(shift)
    yield _by_aspect(shift)


def _square(shift: ShiftMap) -> Table:
    table = Table(
        title="How far the sites are from each other, all aspects together (1 = large)", title_justify="left", box=None
    )
    table.add_column("")
    for site in shift.sites:
        table.add_column(escape(site), justify="right")
    for site in shift.sites:
        cells: list[RenderableType] = []
        for other in shift.sites:
            value = None if site == other else shift.overall(site, other)
            text = "·" if site == other else "–" if value is None else f" {value:.2f} "
            cells.append(Text(text, style=_warmth(value)))
        table.add_row(escape(site), *cells)
    return table


def _warmth(value: float | None) -> str:
    """A colour from green (0) by way of yellow to red."""
    if value is None:
        return "dim"
    part = min(value / (MOST_TIMES / 2), 1.0)
    red, green = round(min(1.0, 2 * part) * 200), round(min(1.0, 2 - 2 * part) * 180)
    return f"{'white' if part > 0.75 else 'black'} on rgb({red},{green},60)"


def _by_aspect(shift: ShiftMap) -> Table:
    """A row for each aspect: the pair that differs most, and each of the few pairs."""
    table = Table(title="By aspect, the two sites that differ most", title_justify="left", caption_justify="left")
    for heading, justify in (("aspect", "left"), ("distance", "right"), ("", "left"), ("between", "left")):
        table.add_column(heading, justify=justify)
    for aspect in shift.aspects:
        largest = shift.largest(aspect)
        if largest is None:
            table.add_row(aspect.title, "–", Text("not known", style="dim"), "")
            continue
        pair, distance = largest
        level = aspect.level(distance)
        between = escape(" and ".join(pair)) if distance else ""
        table.add_row(aspect.title, number(distance, aspect), Text(level, style=STYLE[level]), between)
    return table


def number(distance: float | None, aspect: Aspect) -> str:
    """A distance with its unit."""
    return "–" if distance is None else f"{distance:.2f} {aspect.unit}"


def pair_table(shift: ShiftMap, pair: Pair, fingerprints: Sequence[Fingerprint]) -> Table:
    """The two sites that differ most, side by side."""
    by_name = {first.site: first for first in fingerprints}
    first, other = (by_name[site] for site in pair)
    table = Table(title=f"The two that differ most: {escape(pair[0])} and {escape(pair[1])}", title_justify="left")
    table.add_column("")
    table.add_column(escape(pair[0]), justify="right")
    table.add_column(escape(pair[1]), justify="right")
    table.add_column("distance", justify="right")
    voxels, spacing, labels = zip(row_of_site(first), row_of_site(other), strict=True)
    pictures = of_pictures((first, other))
    table.add_row(worded("voxels", pictures=pictures), *voxels, "")
    table.add_row("mm", *spacing, "")
    table.add_row("labels", *map(escape, labels), "")
    for (sequence, place), values in intensity_rows(first, other).items():
        table.add_row(escape(worded(f"{sequence}, {place}", pictures=pictures)), *values, "")
    table.add_section()
    for aspect in shift.aspects:
        distance = shift.between(aspect, *pair)
        level = aspect.level(distance)
        table.add_row(aspect.title, "", "", Text(number(distance, aspect), style=STYLE[level]))
    return table


def intensity_rows(first: Fingerprint, other: Fingerprint) -> dict[tuple[str, str], tuple[str, str]]:
    """(Sequence, place) → mean and standard deviation at each of two sites."""
    rows = {}
    for sequence in first.intensities:
        for place, mine in first.intensities[sequence].items():
            theirs = other.intensities.get(sequence, {}).get(place)
            if theirs is not None and mine.values and theirs.values:
                a, b = (f"{plain(v.mean)} ± {plain(v.deviation)}" for v in (spread(mine), spread(theirs)))
                rows[sequence, place] = (a, b)
    return rows


def suggestion_lines(suggestions: Sequence[Suggestion]) -> list[Text]:
    """What the map suggests, a paragraph each."""
    return [Text(f"{MARK[suggestion.tone]} {suggestion.text}") for suggestion in suggestions]
