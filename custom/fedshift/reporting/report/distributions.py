"""How a score spreads over the test cases of every site: a box, and the cases where the site lets them out."""

from __future__ import annotations

import numpy as np

from fedshift.reporting.report import figures
from fedshift.reporting.report.runs import Run
from fedshift.reporting.report.section import Figure, Figures, Section, Text
from fedshift.reporting.report.wording import metric, ordered, short
from fedshift.schema.evaluation import QUANTILES, Distribution

MOST_POINTS = 400
"""Cases of a site that are drawn one by one; of more there is the box alone."""
MOST_SITES = 40


def of_cases(run: Run) -> Section | None:
    """Dice and distances; a score that is only right or wrong has no distribution worth drawing."""
    final = run.results.final
    if final is None:
        return None
    places = [(site, "test") for site in run.trained]
    places += [(site, "all") for site in run.results.job.held_out]
    told: dict[str, dict[str, Distribution]] = {}
    for site, part in places:
        found = final.best.evaluations.get(site, {}).get(part)
        for name, spread in ({} if found is None else found.distributions).items():
            values = spread.cases if spread.cases is not None else spread.quantiles
            if values is not None and not set(values) <= {0.0, 1.0}:
                told.setdefault(name, {})[site] = spread
    if not told:
        return None
    drawn: list[Figure] = []
    with figures.style():
        for name in ordered(told):
            drawn.append(_strip(name, dict(list(told[name].items())[:MOST_SITES])))
    whole = all(spread.cases is not None for by_site in told.values() for spread in by_site.values())
    note = (
        "Every dot is a case."
        if whole
        else "Sites whose policy keeps single scores back have a box only, from the quantiles they sent."
    )
    more = max(len(by_site) for by_site in told.values()) - MOST_SITES
    if more > 0:
        note += f" The first {MOST_SITES} sites are drawn; {more} more are in the table of scores."
    return Section(
        "distributions",
        "Spread over cases",
        "The box holds the middle half of a site's test cases, the line in it is the median and the whiskers reach "
        "from "
        "the 5th to the 95th percentile; a mean hides single cases that failed, this does not.",
        [Figures(drawn), Text(note)],
    )


def _quantiles(spread: Distribution) -> list[float]:
    """As the record has them, else of the single cases."""
    if spread.quantiles is not None:
        return list(spread.quantiles)
    found: list[float] = np.quantile(spread.cases or [spread.mean], QUANTILES).tolist()
    return found


def _strip(name: str, told: dict[str, Distribution]) -> Figure:
    of = metric(name)
    drawn, (axes,) = figures.drawing(height=90 + 30 * len(told))
    for row, spread in enumerate(told.values()):
        low, q1, middle, q3, high = (of.factor * value for value in _quantiles(spread))
        axes.plot([low, high], [row, row], color=figures.INK, linewidth=1.2)
        axes.barh(row, q3 - q1, left=q1, height=0.56, color=figures.GRID, edgecolor=figures.INK, linewidth=1.1)
        axes.plot([middle, middle], [row - 0.28, row + 0.28], color=figures.INK, linewidth=2.4)
        if spread.cases is not None and len(spread.cases) <= MOST_POINTS:
            cases = np.array([of.factor * value for value in spread.cases])
            # Spread out by their place, not at random: the same record gives the same drawing.
            offset = 0.18 * np.sin(2.4 * np.arange(len(cases)))
            axes.scatter(cases, row + offset, s=16, color=figures.colour(row), alpha=0.85, linewidths=0, zorder=3)
    values = [of.factor * v for one in told.values() for v in (*_quantiles(one), *(one.cases or ()))]
    margin = 0.04 * (max(values) - min(values)) or 1.0
    axes.set_xlim(min(values) - margin, max(values) + margin)
    axes.set_yticks(range(len(told)), [short(site, 16) for site in told])
    axes.set_ylim(len(told) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(of.unit)
    description = f"{of.title} by case: " + "; ".join(
        f"{short(site)} median {of.said(_quantiles(spread)[2])}, n {spread.n}" for site, spread in told.items()
    )
    return figures.figure(drawn, f"strip-{name}", title=of.title, description=description)
