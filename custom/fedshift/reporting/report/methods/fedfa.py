"""FedFA: how much the sites' feature statistics differ, layer by layer, and how that is shared out over channels."""

from __future__ import annotations

import re

import numpy as np

from fedshift.reporting import figures
from fedshift.reporting.figures import Figure
from fedshift.reporting.report.runs import Run
from fedshift.reporting.report.section import Column, Figures, Section, Table, Text
from fedshift.schema.messages import Arrays

_GAMMA = re.compile(r"gamma_(mean|std)\.(\d{1,4})")
_TITLES = {"mean": "Means of features", "std": "Deviations of features"}


def section(run: Run, arrays: Arrays) -> Section | None:
    """A box of γ over channels for every layer, of means and of deviations."""
    layers: dict[str, dict[int, np.ndarray]] = {"mean": {}, "std": {}}
    for name, values in arrays.items():
        match = _GAMMA.fullmatch(name)
        if match and values.ndim == 1 and len(values) and np.isfinite(values).all():
            layers[match.group(1)][int(match.group(2))] = values
    if not any(layers.values()):
        return None
    drawn = [_boxes(what, dict(sorted(by_layer.items()))) for what, by_layer in layers.items() if by_layer]
    rows = []
    for layer in sorted({*layers["mean"], *layers["std"]}):
        cells = [f"stage {layer}", str(len(layers["mean"].get(layer, layers["std"].get(layer, []))))]
        for what in ("mean", "std"):
            gamma = layers[what].get(layer)
            cells += ["–", "–"] if gamma is None else [f"{gamma.min():.2f} to {gamma.max():.2f}", f"{gamma.std():.2f}"]
        rows.append(cells)
    return Section(
        "fedfa",
        "FedFA: variances shared between sites",
        "γ says how strongly the sites differ in a channel, beside the other channels of its layer, whose mean is 1; "
        "training varies features more where γ is large. A layer with all γ near 1 has no channel that stands out.",
        [
            Figures(drawn),
            Table(
                [
                    Column("Layer", numeric=False),
                    Column("Channels"),
                    Column("γ of means", detail="range"),
                    Column("γ of means", detail="deviation"),
                    Column("γ of deviations", detail="range"),
                    Column("γ of deviations", detail="deviation"),
                ],
                rows,
            ),
            Text("Boxes hold the middle half of the channels, whiskers all of them."),
        ],
    )


def _boxes(what: str, by_layer: dict[int, np.ndarray]) -> Figure:
    with figures.drawing(height=230) as (drawn, (axes,)):
        axes.boxplot(
            list(by_layer.values()),
            whis=(0, 100),
            widths=0.55,
            patch_artist=True,
            boxprops={"facecolor": figures.GRID, "edgecolor": figures.INK, "linewidth": 1.1},
            medianprops={"color": figures.colour(0), "linewidth": 2.4},
            whiskerprops={"color": figures.INK},
            capprops={"color": figures.INK},
        )
        axes.set_xticks(range(1, len(by_layer) + 1), [str(layer) for layer in by_layer])
        axes.axhline(1, color=figures.FAINT, linestyle="--", linewidth=1)
        axes.set_xlabel("stage of the network")
        axes.set_ylabel("γ")
        described = "; ".join(f"stage {layer} from {v.min():.2f} to {v.max():.2f}" for layer, v in by_layer.items())
        return figures.figure(
            drawn, f"fedfa-{what}", title=_TITLES[what], description=f"γ of {what}s by stage: {described}"
        )
