"""How bright the sites' images are, before and after what methods do to them on the way into the network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedshift.reporting import figures
from fedshift.reporting.figures import Figure
from fedshift.reporting.report.images.models import Looked
from fedshift.reporting.report.section import Block, Figures, Section, paragraph
from fedshift.reporting.report.wording import short

BINS = 60


def section(looked: Sequence[Looked]) -> Section:
    """A line a site."""
    changed = any(
        len(site.before) != len(site.after) or not np.allclose(site.before, site.after, atol=1e-2) for site in looked
    )
    patches = any(site.shows == "volumes" for site in looked)
    title = "As the task prepares the images" if patches else "As the images are"
    drawn = [_lines("before", title, [site.before for site in looked], looked)]
    if changed:
        title = "As the network gets them"
        drawn.append(_lines("after", title, [site.after for site in looked], looked))
    blocks: list[Block] = [Figures(drawn, figures.legend([site.site for site in looked]))]
    if not changed:
        blocks.append(paragraph("images_unchanged"))
    return Section(
        "intensities",
        "Intensities of the sites' test images",
        "Curves that lie on each other are sites whose images look alike to the network; a normalisation such as "
        "FedRDN's "
        "should bring them closer.",
        blocks,
    )


def _lines(key: str, title: str, values: Sequence[np.ndarray], looked: Sequence[Looked]) -> Figure:
    together = np.concatenate(values)
    low, high = np.quantile(together, (0.002, 0.998))
    edges = np.linspace(low, max(high, low + 1e-6), BINS + 1)
    with figures.drawing(height=230) as (drawn, (axes,)):
        for number, sample in enumerate(values):
            counts, _ = np.histogram(sample, edges)
            share = 100 * np.where(counts, counts, np.nan) / max(len(sample), 1)
            axes.plot(
                (edges[1:] + edges[:-1]) / 2,
                share,
                color=figures.colour(number),
                linestyle=figures.dashes(number),
                marker=figures.marker(number),
                markevery=(3 * number % 10, 10),
            )
        # Background makes a peak that would flatten all the rest.
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("intensity")
        axes.set_ylabel("share of pixels (%)")
        described = "; ".join(
            f"{short(site.site)} mean {sample.mean():.3g}" for site, sample in zip(looked, values, strict=True)
        )
        return figures.figure(
            drawn, f"intensities-{key}", title=title, description=f"Histograms of intensities: {described}"
        )
