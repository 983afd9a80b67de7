"""The map of the shift as a chapter of a report: one self-contained HTML file, with histograms and no images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from fedshift.data.shift import Pair, ShiftMap
from fedshift.data.tallies import MIDDLES, normalised, of_pictures, row_of_site, worded
from fedshift.reporting import figures
from fedshift.reporting.figures import Figure
from fedshift.reporting.report.section import (
    Block,
    Cell,
    Chapter,
    Column,
    Commands,
    Facts,
    Figures,
    Finding,
    Findings,
    Row,
    Section,
    Table,
    Tables,
    Text,
)
from fedshift.reporting.report.wording import short
from fedshift.schema.fingerprint import STEP, Fingerprint
from fedshift_survey.shift_table import intensity_rows, number
from fedshift_survey.suggestions import Suggestion

MAX_SITES = 30
"""With more sites than this, the squares are left out and the farthest pairs are listed."""
MOST_PAIRS = 20


def chapter(
    shift: ShiftMap,
    fingerprints: Sequence[Fingerprint],
    suggested: Sequence[Suggestion],
    *,
    dataset: str,
    command: str,
    plan: str = "",
) -> Chapter:
    """The chapter; ``plan`` is the text of the planned task file, ``command`` what made the survey."""
    sections = [_summary(suggested), _sites(shift, fingerprints)]
    if shift.pairs:
        sections.append(_map(shift))
    if shift.farthest is not None:
        sections.append(_pair(shift, shift.farthest, fingerprints))
    sections.append(_histograms(shift, fingerprints))
    if plan:
        how = "The task file that was written, with the reason for each number above it. It may be changed by hand."
        sections.append(Section("plan", "Plan", how, [Commands(plan.splitlines())]))
    sections.append(Section("again", "How to repeat it", "The command that made this page.", [Commands([command])]))
    return Chapter(
        "shift",
        "Map of the shift",
        [section for section in sections if section.blocks],
        about=f"How far the sites of {dataset} are from each other",
        phantom=any(fingerprint.kind == "phantom" for fingerprint in fingerprints),
    )


def _summary(suggested: Sequence[Suggestion]) -> Section:
    return Section(
        "summary",
        "What it suggests",
        "Read with care: which family of methods was made for such a shift, not which will win. Distances come from "
        "sums over each site's cases; no case's numbers left a site.",
        [Findings([Finding(suggestion.tone, Text(suggestion.text)) for suggestion in suggested])],
    )


def _sites(shift: ShiftMap, fingerprints: Sequence[Fingerprint]) -> Section:
    columns = [
        Column("site", numeric=False),
        Column("cases"),
        Column("surveyed"),
        Column(worded("voxels", pictures=of_pictures(fingerprints)), detail="median"),
        Column("mm", detail="median"),
        Column("labels", numeric=False, detail="median size"),
    ]
    rows: list[Row] = []
    for fingerprint in fingerprints:
        name = Cell(fingerprint.site, "on the map only" if fingerprint.site in shift.placed else "")
        rows.append([name, str(fingerprint.total), str(fingerprint.surveyed), *row_of_site(fingerprint)])
    scanners = [
        (fingerprint.site, ", ".join(f"{name} ({count})" for name, count in fingerprint.scanners.items()))
        for fingerprint in fingerprints
        if fingerprint.scanners
    ]
    blocks: list[Block] = [Table(columns, rows)]
    blocks += [Text("Scanners, where the site's policy lets them be told:"), Facts(scanners)] if scanners else []
    return Section("sites", "Sites", "Slices, rows and columns; the cases of the test part are not looked at.", blocks)


def _map(shift: ShiftMap) -> Section:
    blocks: list[Block] = []
    if len(shift.sites) <= MAX_SITES:
        blocks.append(_overall(shift))
        blocks.append(Tables(_by_aspect(shift)))
    else:
        blocks.append(_farthest_pairs(shift))
    unknown = [aspect.title.lower() for aspect in shift.aspects if shift.largest(aspect) is None]
    if unknown:
        blocks.append(Text(f"Not known: {', '.join(unknown)}."))
    blocks.append(_legend(shift))
    return Section(
        "map",
        "How far the sites are from each other",
        "The darker, the farther. First all aspects together, where 1 is large in every aspect, then each aspect in "
        "its own unit. Distances of distributions are Wasserstein's: how far the mass has to go. The limits in the "
        "last table are rules of thumb, no tests.",
        blocks,
    )


def _legend(shift: ShiftMap) -> Table:
    """What each aspect's number is."""
    columns = [
        Column("aspect", numeric=False),
        Column("what it is", numeric=False),
        Column("worth a look from"),
        Column("large from"),
    ]
    rows: list[Row] = [
        [f"{aspect.title} ({aspect.unit})", aspect.means, f"{aspect.worth:g}", f"{aspect.large:g}"]
        for aspect in shift.aspects
    ]
    return Table(columns, rows, caption="What the numbers are")


def _overall(shift: ShiftMap) -> Table:
    return _square(shift, "All aspects together", shift.overall, large=1.0)


def _by_aspect(shift: ShiftMap) -> list[Table]:
    return [
        _square(shift, f"{aspect.title} ({aspect.unit})", partial(shift.between, aspect), large=aspect.large)
        for aspect in shift.aspects
        if shift.largest(aspect) is not None
    ]


def _square(shift: ShiftMap, caption: str, distance: Callable[[str, str], float | None], *, large: float) -> Table:
    """A row and a column for each site."""
    rows: list[Row] = []
    for site in shift.sites:
        row: list[Cell | str] = [site]
        for other in shift.sites:
            value = None if site == other else distance(site, other)
            text = "·" if site == other else "–" if value is None else f"{value:.2f}"
            row.append(Cell(text, shade=None if value is None else min(value / large, 1.0)))
        rows.append(row)
    return Table(_columns(shift), rows, caption=caption)


def _columns(shift: ShiftMap) -> list[Column]:
    return [Column("", numeric=False), *(Column(short(site, 12)) for site in shift.sites)]


def _farthest_pairs(shift: ShiftMap) -> Table:
    known = {pair: value for pair in shift.pairs if (value := shift.overall(*pair)) is not None}
    farthest = sorted(known, key=lambda pair: -known[pair])[:MOST_PAIRS]
    rows: list[Row] = [
        [
            " and ".join(pair),
            Cell(f"{known[pair]:.2f}", shade=min(known[pair], 1.0)),
            *(number(shift.between(aspect, *pair), aspect) for aspect in shift.aspects),
        ]
        for pair in farthest
    ]
    columns = [
        Column("sites", numeric=False),
        Column("all aspects"),
        *(Column(aspect.title) for aspect in shift.aspects),
    ]
    return Table(columns, rows, caption=f"The {len(rows)} pairs that differ most of {len(shift.pairs)}")


def _pair(shift: ShiftMap, pair: Pair, fingerprints: Sequence[Fingerprint]) -> Section:
    by_name = {first.site: first for first in fingerprints}
    first, other = (by_name[site] for site in pair)
    pictures = of_pictures(fingerprints)
    rows: list[Row] = [
        [name, *values]
        for name, values in zip(
            (worded("voxels", pictures=pictures), "mm", "labels"),
            zip(row_of_site(first), row_of_site(other), strict=True),
            strict=True,
        )
    ]
    rows += [
        [worded(f"{sequence}, {place}", pictures=pictures), *values]
        for (sequence, place), values in intensity_rows(first, other).items()
    ]
    columns = [Column("", numeric=False), *(Column(site) for site in pair)]
    apart: list[Row] = [
        [
            aspect.title,
            Cell(
                number(distance, aspect),
                aspect.level(distance),
                shade=None if distance is None else min(distance / aspect.large, 1.0),
            ),
        ]
        for aspect in shift.aspects
        if (distance := shift.between(aspect, *pair)) is not None
    ]
    drawn = [
        figure
        for sequence in first.intensities
        for place in first.intensities[sequence]
        if place in other.intensities.get(sequence, {})
        and (figure := _curves([first, other], sequence, place)) is not None
    ]
    image_word = worded("volume", pictures=pictures)
    return Section(
        "pair",
        f"The two that differ most: {pair[0]} and {pair[1]}",
        "Their numbers side by side, as mean ± standard deviation over all their cases, and their histograms after "
        f"each {image_word} was normalised. There are no images here: none left the sites.",
        [
            Tables(
                [
                    Table(columns, rows, caption="Side by side"),
                    Table([Column("aspect", numeric=False), Column("distance")], apart),
                ]
            ),
            Figures(drawn, legend=figures.legend(list(pair)), size="third"),
        ],
    )


def _histograms(shift: ShiftMap, fingerprints: Sequence[Fingerprint]) -> Section:
    """All sites' histograms, a figure for each sequence and place."""
    drawn = [site for site in fingerprints if site.site in shift.sites][: len(figures.SERIES_COLOURS)]
    places = {
        (sequence, place): None
        for site in drawn
        for sequence, by_place in site.intensities.items()
        for place in by_place
    }
    with_curves = [figure for key in places if (figure := _curves(drawn, *key, key="all")) is not None]
    blocks: list[Block] = []
    if with_curves and len(drawn) > 2:
        blocks.append(Figures(with_curves, legend=figures.legend([site.site for site in drawn]), size="third"))
    if len(shift.sites) > len(drawn):
        blocks.append(Text(f"The first {len(drawn)} of {len(shift.sites)} sites are drawn."))
    return Section(
        "histograms",
        "Histograms",
        worded(
            "Intensities after each volume was brought to mean 0 and standard deviation 1: what shift is left for "
            "methods.",
            pictures=of_pictures(fingerprints),
        ),
        blocks if with_curves and len(drawn) > 2 else [],
    )


def _curves(sites: Sequence[Fingerprint], sequence: str, place: str, *, key: str = "pair") -> Figure | None:
    """The sites' histograms of one sequence in one place."""
    densities = {
        number: normalised(fingerprint.intensities[sequence][place]) / STEP
        for number, fingerprint in enumerate(sites)
        if place in fingerprint.intensities.get(sequence, {})
    }
    densities = {number: density for number, density in densities.items() if density.any()}
    if not densities:
        return None
    title = worded(place if sequence == "image" else f"{sequence}, {place}", pictures=of_pictures(sites))
    with figures.drawing(height=200) as (drawn, (axes,)):
        for number_, density in densities.items():
            axes.plot(
                MIDDLES,
                density,
                color=figures.colour(number_),
                linestyle=figures.dashes(number_),
                drawstyle="steps-mid",
            )
        shown = np.flatnonzero(np.max(list(densities.values()), axis=0) > 0.002)
        axes.set_xlim(MIDDLES[shown[0]] - STEP, MIDDLES[shown[-1]] + STEP)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("standard deviations")
        description = f"Histogram, {title}: " + "; ".join(
            f"{short(sites[number_].site)} mean {float((density * MIDDLES).sum() * STEP):.2f}"
            for number_, density in densities.items()
        )
        return figures.figure(
            drawn, f"{key}-{sequence}-{place}".replace(" ", "-"), title=title, description=description
        )
