"""Each score over the test cases of every site: a dot for each case that a site sent, a box where they are enough."""

from __future__ import annotations

import numpy as np

from fedshift.reporting import figures
from fedshift.reporting.figures import Figure
from fedshift.reporting.report.runs import Run
from fedshift.reporting.report.section import Block, Figures, Section, paragraph
from fedshift.reporting.report.wording import metric, ordered, short
from fedshift.schema.evaluation import QUANTILES, Distribution

MIN_CASES_FOR_BOX = 5
"""With fewer cases there are only dots: quartiles of one or two cases would look like a spread."""
MAX_POINTS = 400
"""With more cases at a site, only the box is drawn."""
MAX_SITES = 40
"""Sites drawn in one figure."""


def score_distributions(run: Run) -> Section | None:
    """Box plots of Dice and distances; scores that are 0 or 1 at all sites are left out. None if nothing is left."""
    final = run.results.final
    if final is None:
        return None
    places = [(site, "test") for site in run.trained]
    places += [(site, "all") for site in run.results.job.held_out]
    by_metric: dict[str, dict[str, Distribution]] = {}
    graded: set[str] = set()
    for site, part in places:
        result = final.best.evaluations.get(site, {}).get(part)
        for name, spread in ({} if result is None else result.distributions).items():
            values = spread.cases if spread.cases is not None else spread.quantiles
            drawable = spread.cases is not None or has_box(spread)
            if values is not None and drawable:
                by_metric.setdefault(name, {})[site] = spread
                if not set(values) <= {0.0, 1.0}:
                    graded.add(name)
    by_metric = {name: by_site for name, by_site in by_metric.items() if name in graded}
    if not by_metric:
        return None
    drawn = [strip(name, dict(list(by_metric[name].items())[:MAX_SITES])) for name in ordered(by_metric)]
    spreads = [spread for by_site in by_metric.values() for spread in by_site.values()]
    boxes = any(has_box(spread) for spread in spreads)
    withheld = any(spread.cases is None for spread in spreads)
    few = boxes and not all(has_box(spread) for spread in spreads)
    more = max(max(len(by_site) for by_site in by_metric.values()) - MAX_SITES, 0)
    limits = {"fewest": MIN_CASES_FOR_BOX, "most": MAX_SITES}
    notes = paragraph("distribution_notes", withheld=withheld, few=few, more=more, **limits)
    blocks: list[Block] = [Figures(drawn), *([notes] if withheld or few or more else [])]
    dots = "test case" if any(spread.cases is not None for spread in spreads) else ""
    return Section("distributions", "Scores over cases", paragraph("distribution_how", dots=dots, boxes=boxes), blocks)


def has_box(spread: Distribution) -> bool:
    """Whether there are enough cases for one."""
    return spread.n >= MIN_CASES_FOR_BOX


def _quantiles(spread: Distribution) -> list[float]:
    """The quantiles in the record, or those computed from the single cases."""
    if spread.quantiles is not None:
        return list(spread.quantiles)
    quantiles: list[float] = np.quantile(spread.cases or [spread.mean], QUANTILES).tolist()
    return quantiles


def strip(name: str, by_site: dict[str, Distribution]) -> Figure:
    """A score's cases as dots and boxes, a row for each site, or for each of what else the keys are."""
    m = metric(name)
    with figures.drawing(height=90 + 30 * len(by_site)) as (drawn, (axes,)):
        for row, spread in enumerate(by_site.values()):
            if has_box(spread):
                low, q1, middle, q3, high = (m.factor * value for value in _quantiles(spread))
                axes.plot([low, high], [row, row], color=figures.INK, linewidth=1.2)
                axes.barh(row, q3 - q1, left=q1, height=0.56, color=figures.GRID, edgecolor=figures.INK, linewidth=1.1)
                axes.plot([middle, middle], [row - 0.28, row + 0.28], color=figures.INK, linewidth=2.4)
            if spread.cases is not None and len(spread.cases) <= MAX_POINTS:
                cases = np.array([m.factor * value for value in spread.cases])
                # Deterministic jitter, so that the same record gives the same drawing.
                offset = 0.18 * np.sin(2.4 * np.arange(len(cases)))
                axes.scatter(
                    cases,
                    row + offset,
                    s=16 if has_box(spread) else 30,
                    color=figures.colour(row),
                    alpha=0.85,
                    linewidths=0,
                    zorder=3,
                )
        values = [m.factor * v for spread in by_site.values() for v in (*_quantiles(spread), *(spread.cases or ()))]
        margin = 0.04 * (max(values) - min(values)) or 1.0
        axes.set_xlim(min(values) - margin, max(values) + margin)
        axes.set_yticks(range(len(by_site)), [short(site, 16) for site in by_site])
        axes.set_ylim(len(by_site) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(m.unit)
        description = f"{m.title} by case: " + "; ".join(
            f"{short(site)} median {m.with_unit(_quantiles(spread)[2])}, n {spread.n}"
            for site, spread in by_site.items()
        )
        return figures.figure(drawn, f"strip-{name}", title=m.title, description=description)
