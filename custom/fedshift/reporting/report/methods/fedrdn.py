"""FedRDN: the brightness and contrast of every site's images, which all sites use to vary theirs."""

from __future__ import annotations

import numpy as np

from fedshift.reporting import figures
from fedshift.reporting.report.runs import Run
from fedshift.reporting.report.section import Column, Figures, Row, Section, Table
from fedshift.reporting.report.wording import short
from fedshift.schema.messages import Arrays


def section(run: Run, arrays: Arrays) -> Section | None:
    """Mean and deviation, a point a site and channel."""
    means, stds = arrays.get("means"), arrays.get("stds")
    if means is None or stds is None or means.ndim != 2 or means.shape != stds.shape or not means.size:
        return None
    if not (np.isfinite(means).all() and np.isfinite(stds).all()):
        return None
    names = _names(run, len(means))
    with figures.drawing(height=260) as (drawn, (axes,)):
        for number, (mean, std) in enumerate(zip(means, stds, strict=True)):
            axes.scatter(mean, std, color=figures.colour(number), marker=figures.marker(number), s=44)
        axes.set_xlabel("mean")
        axes.set_ylabel("deviation")
        described = "; ".join(
            f"{short(name)} {m.mean():.3g} ± {s.mean():.3g}" for name, m, s in zip(names, means, stds, strict=True)
        )
        figure = figures.figure(
            drawn,
            "fedrdn",
            title="Intensities of the sites' training images",
            description=f"Mean and deviation of intensities by site: {described}",
        )
    channels = means.shape[1]
    columns = [Column("Site", numeric=False)]
    for channel in range(channels):
        detail = f"channel {channel + 1}" if channels > 1 else ""
        columns += [Column("Mean", detail=detail), Column("Deviation", detail=detail)]
    rows: list[Row] = [
        [name, *(f"{value:.4g}" for pair in zip(mean, std, strict=True) for value in pair)]
        for name, mean, std in zip(names, means, stds, strict=True)
    ]
    return Section(
        "fedrdn",
        "FedRDN: intensities of the sites",
        "A point is a channel of a site. Points far apart are sites whose images differ in brightness (to the side) "
        "or contrast (up and down); in training "
        "every image is normalised with a random site's pair.",
        [Figures([figure], figures.legend(names, lines=False)), Table(columns, rows)],
    )


def _names(run: Run, count: int) -> list[str]:
    """The pairs are in the order of the sites that answered the statistics round."""
    sites = () if run.model is None else run.model.sites
    return list(sites) if len(sites) == count else [f"site {number}" for number in range(1, count + 1)]
