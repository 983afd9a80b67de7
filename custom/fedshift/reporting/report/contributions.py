"""What each site contributes, as a method estimates it in every round (`fedshift.methods.base.Server.contributions`).

Sites keep the job's order: an estimate is shown with its interval over rounds, and is no ranking of hospitals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedshift.reporting import figures
from fedshift.reporting.figures import Figure
from fedshift.reporting.report.runs import Run
from fedshift.reporting.report.section import (
    Block,
    Cell,
    Column,
    Figures,
    Findings,
    Row,
    Section,
    Table,
    finding,
    paragraph,
)
from fedshift.reporting.report.wording import listed, short

FEWEST_ROUNDS = 5
"""With fewer rounds no interval is given."""
MIDDLE = (0.025, 0.975)
"""Quantiles of the rounds between which a site's interval lies."""
PLACES = {"above": "above it", "below": "below it", "open": "undecided"}


@dataclass(frozen=True)
class Share:
    """A site's share of the rounds' models: mean over rounds, and ``bounds`` where there are enough rounds.

    ``equal`` is the mean of what the site would have had if all sites of each round had the same.
    """

    n: int
    mean: float
    equal: float
    bounds: tuple[float, float] | None

    @property
    def place(self) -> str:
        """Where the interval lies, seen from an equal share: ``above``, ``below``, or ``open``."""
        if self.bounds is None or self.bounds[0] <= self.equal <= self.bounds[1]:
            return "open"
        return "above" if self.bounds[0] > self.equal else "below"


def shares(run: Run) -> dict[str, dict[str, Share]]:
    """Method -> site -> share, of the methods that estimate contributions, with sites in the job's order."""
    records = run.results.rounds
    methods = dict.fromkeys(name for record in records for name in record.contributions)
    return {
        name: _of_method([r.contributions[name] for r in records if name in r.contributions], run) for name in methods
    }


def _of_method(rounds: list[dict[str, float]], run: Run) -> dict[str, Share]:
    estimates = {}
    for site in run.trained:
        with_equal = [(estimate[site], 1 / len(estimate)) for estimate in rounds if site in estimate]
        if not with_equal:
            continue
        values, equal = (np.array(column) for column in zip(*with_equal, strict=True))
        low, high = np.quantile(values, MIDDLE)
        bounds = (float(low), float(high)) if len(values) >= FEWEST_ROUNDS else None
        estimates[site] = Share(len(values), float(values.mean()), float(equal.mean()), bounds)
    return estimates


def of_sites(run: Run) -> Section | None:
    """A table and a drawing for each method that estimates contributions; None without any."""
    estimates = shares(run)
    if not estimates:
        return None
    tables = [_table(name, by_site) for name, by_site in estimates.items()]
    drawn = [_figure(name, by_site) for name, by_site in estimates.items()]
    return Section(
        "contributions",
        f"What each site contributes, estimated by {listed(list(estimates))}",
        paragraph("contributions_how"),
        [*tables, Figures(drawn)],
    )


def of_site(run: Run, site: str) -> list[Section]:
    """What the methods estimate of one site, for its page."""
    sentences = [
        finding("result", "estimated_share", method=name, site=site, share=by_site[site])
        for name, by_site in shares(run).items()
        if site in by_site
    ]
    if not sentences:
        return []
    blocks: list[Block] = [Findings(sentences), paragraph("contributions_how")]
    return [Section("estimate", f"What {site} contributes, as estimated", "", blocks)]


def _table(method: str, by_site: Mapping[str, Share]) -> Table:
    rows: list[Row] = []
    for site, share in by_site.items():
        bounds = "" if share.bounds is None else f"[{_percent(share.bounds[0])}, {_percent(share.bounds[1])}]"
        rows.append(
            [site, str(share.n), Cell(_percent(share.mean), bounds), _percent(share.equal), PLACES[share.place]]
        )
    columns = [
        Column("Site", numeric=False),
        Column("Rounds"),
        Column("Estimated share (%)", detail="middle 95 % of rounds"),
        Column("Equal share (%)"),
        Column("Against an equal share", numeric=False),
    ]
    return Table(columns, rows, caption=f"Estimate of {method}")


def _figure(method: str, by_site: Mapping[str, Share]) -> Figure:
    with figures.drawing(height=70 + 26 * len(by_site)) as (drawn, (axes,)):
        colour = figures.colour(0)
        for place, share in enumerate(by_site.values()):
            if share.bounds is not None:
                axes.plot([100 * bound for bound in share.bounds], [place, place], color=colour, linewidth=4)
            axes.plot([100 * share.mean], [place], color=figures.INK, marker="D", markersize=6, zorder=4)
            axes.plot([100 * share.equal] * 2, [place - 0.4, place + 0.4], color=figures.FAINT, linewidth=1.5)
        axes.set_yticks(range(len(by_site)), [short(site, 16) for site in by_site])
        axes.set_ylim(len(by_site) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("estimated share of the rounds' models, %")
        named = "; ".join(f"{site} {_percent(share.mean)} %" for site, share in by_site.items())
        return figures.figure(
            drawn,
            f"contributions-{method}",
            title=f"{method}: mean and middle 95 % of rounds; upright lines: an equal share",
            description=f"Contributions estimated by {method}: {named}",
        )


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
