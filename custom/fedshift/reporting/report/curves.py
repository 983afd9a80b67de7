"""Scores and losses over rounds, a line a site."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

from fedshift.reporting.report import figures
from fedshift.reporting.report.runs import Run
from fedshift.reporting.report.section import Figure, Figures, Section, Text
from fedshift.reporting.report.wording import Metric, metric, ordered
from fedshift.schema.results import SiteRound

MOST_LINES = 12
"""Sites with a line of their own; of more there are all in grey, and the median."""
FEWEST_ROUNDS = 3
"""That make a curve; test parts are often scored in two rounds only."""
_PLAIN = Metric("", 1.0, "")

Point = tuple[int, float]


def over_rounds(run: Run) -> Section | None:
    """Validation, test where sites tell it, and the training loss."""
    records = run.results.rounds
    sites = run.trained
    drawn: list[Figure] = []
    values: list[tuple[str, str, Metric, Callable[[SiteRound], float | None]]] = []
    for part, said in (("val", "validation"), ("test", "test")):
        rounds = [told for record in records for told in record.sites.values()]
        names = {name for told in rounds for name in (getattr(told, part) or {})}
        for name in ordered(names):
            of = metric(name)
            values.append((f"{of.title}, {said}", f"{part}-{name}", of, _score(part, name)))
    values.append(("Training loss", "loss", _PLAIN, lambda told: told.train_loss))
    with figures.style():
        for number, (title, _, of, take) in enumerate(values):
            points = {
                site: [
                    (record.round, of.factor * value)
                    for record in records
                    if site in record.sites
                    and (value := take(record.sites[site])) is not None
                    and math.isfinite(value)
                    and abs(value) < 1e9
                ]
                for site in sites
            }
            if len({round_ for line in points.values() for round_, _ in line}) >= FEWEST_ROUNDS:
                best = None if of is _PLAIN or run.results.final is None else run.results.final.best.round
                drawn.append(_lines(f"curve-{number}", title, of.unit, points, best))
    if not drawn:
        return None
    many = len(sites) > MOST_LINES
    legend = [] if many else figures.legend(sites)
    note = (
        "Each grey line is a site; the thick line is their median."
        if many
        else "A dotted upright line marks the round of the best model."
    )
    return Section(
        "curves",
        "Over the rounds",
        "Lines that still rise at the right end say that training was not over; a line far below the others is a site "
        "that the shared model serves badly.",
        [Figures(drawn, legend), Text(note)],
    )


def _score(part: str, name: str) -> Callable[[SiteRound], float | None]:
    def take(told: SiteRound) -> float | None:
        scores = getattr(told, part) or {}
        value: float | None = scores.get(name)
        return value

    return take


def _lines(key: str, title: str, unit: str, points: dict[str, list[Point]], best: int | None) -> Figure:
    drawn, (axes,) = figures.drawing(height=230)
    many = len(points) > MOST_LINES
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
    whole_numbers(axes, [x for line in points.values() for x, _ in line])
    axes.set_xlabel("round")
    axes.set_ylabel(unit)
    ends = [line[-1][1] for line in points.values() if line]
    description = (
        f"{title} by round for {len(points)} sites; at the end between {min(ends):.3g} and {max(ends):.3g} {unit}"
    )
    return figures.figure(drawn, key, title=title, description=description)


def whole_numbers(axes: object, values: Sequence[int]) -> None:
    """Rounds are counted: no ticks between them."""
    from matplotlib.axes import Axes
    from matplotlib.ticker import MaxNLocator

    assert isinstance(axes, Axes)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    if len(set(values)) == 1:
        axes.set_xlim(values[0] - 1, values[0] + 1)
