"""Scores and losses over rounds, one line per site."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

from fedshift.reporting import figures
from fedshift.reporting.figures import Figure
from fedshift.reporting.report.runs import Run
from fedshift.reporting.report.section import Figures, Section, paragraph
from fedshift.reporting.report.wording import Metric, metric, ordered, printed
from fedshift.schema.results import RoundRecord, SiteRound

MAX_LINES = 12
"""With more sites, all lines are grey and their median is added."""
MIN_ROUNDS = 3
"""Rounds needed for a curve; test parts are often evaluated in two rounds only."""
MAX_DRAWN = 1e9
_LOSS = Metric("", 1.0, "")

Point = tuple[int, float]


def over_rounds(run: Run) -> Section | None:
    """Curves of validation scores, test scores (if sites report them) and training loss; None if all are too short."""
    records = run.results.scored_rounds
    sites = run.trained
    drawn: list[Figure] = []
    values: list[tuple[str, str, Metric, Callable[[SiteRound], float | None]]] = []
    for part, split_name in (("val", "validation"), ("test", "test")):
        site_rounds = [site_round for record in records for site_round in record.sites.values()]
        names = {name for site_round in site_rounds for name in (getattr(site_round, part) or {})}
        for name in ordered(name for name in names if not printed(name) or printed(run.results.job.metric)):
            m = metric(name)
            values.append((f"{m.title}, {split_name}", f"{part}-{name}", m, _score(part, name)))
    values.append(("Training loss", "loss", _LOSS, lambda site_round: site_round.train_loss))
    for number, (title, _, m, take) in enumerate(values):
        points = {site: _points(records, site, m, take) for site in sites}
        if len({round_ for line in points.values() for round_, _ in line}) >= MIN_ROUNDS:
            best = None if m is _LOSS or run.results.final is None else run.results.final.best.round
            drawn.append(_lines(f"curve-{number}", title, m.unit, points, best))
    if not drawn:
        return None
    many = len(sites) > MAX_LINES
    legend = [] if many else figures.legend(sites)
    marked = run.results.final is not None
    return Section(
        "curves",
        "Scores over rounds",
        "If scores still rise at the right end, more rounds may help. A line far below the others is a site for which "
        "the shared model works badly.",
        [Figures(drawn, legend), *([paragraph("curve_lines", many=many, marked=marked)] if many or marked else [])],
    )


def _points(
    records: Sequence[RoundRecord], site: str, m: Metric, take: Callable[[SiteRound], float | None]
) -> list[Point]:
    """A site's rounds and scaled values, without values that are missing, not finite or too large to draw."""
    points: list[Point] = []
    for record in records:
        value = take(record.sites[site]) if site in record.sites else None
        if value is not None and math.isfinite(value) and abs(value) < MAX_DRAWN:
            points.append((record.round, m.factor * value))
    return points


def _score(part: str, name: str) -> Callable[[SiteRound], float | None]:
    def take(site_round: SiteRound) -> float | None:
        scores = getattr(site_round, part) or {}
        value: float | None = scores.get(name)
        return value

    return take


def _lines(key: str, title: str, unit: str, points: dict[str, list[Point]], best: int | None) -> Figure:
    with figures.drawing(height=230) as (drawn, (axes,)):
        many = len(points) > MAX_LINES
        for number, line in enumerate(points.values()):
            if not line:
                continue
            x, y = zip(*line, strict=True)
            if many:
                axes.plot(x, y, color=figures.FAINT, alpha=0.35, linewidth=0.8)
            else:
                axes.plot(
                    x,
                    y,
                    color=figures.colour(number),
                    linestyle=figures.dashes(number),
                    marker=figures.marker(number),
                    markevery=max(len(x) // 8, 1),
                )
        if many:
            rounds = sorted({x for line in points.values() for x, _ in line})
            middle = [median(y for line in points.values() for x, y in line if x == round_) for round_ in rounds]
            axes.plot(rounds, middle, color=figures.colour(0), linewidth=2.4)
        if best is not None:
            axes.axvline(best, color=figures.FAINT, linestyle=":", linewidth=1.4)
        figures.integer_ticks(axes, [x for line in points.values() for x, _ in line])
        axes.set_xlabel("round")
        axes.set_ylabel(unit)
        ends = [line[-1][1] for line in points.values() if line]
        description = (
            f"{title} by round for {len(points)} sites; at the end between {min(ends):.3g} and {max(ends):.3g} {unit}"
        )
        return figures.figure(drawn, key, title=title, description=description)
