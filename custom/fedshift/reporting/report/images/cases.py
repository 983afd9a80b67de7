"""The worst, the median and the best test case of every site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from fedshift.reporting import figures
from fedshift.reporting.figures import Figure, LegendEntry
from fedshift.reporting.report.images.models import Looked
from fedshift.reporting.report.section import Block, Figures, Heading, Section, Text
from fedshift.reporting.report.wording import listed, metric, short
from fedshift.schema.manifest import Manifest
from fedshift.tasks.evaluation.overlap import dice

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARGIN = 0.45
"""Around the organ, in parts of its size."""
SMALLEST = 32
"""Pixels of a cut-out."""
MODEL, REFERENCE = "#ffab3d", "#4fd6ff"
"""Drawn on images, which look the same in both schemes."""


def section(looked: Sequence[Looked]) -> Section:
    """Contours on slices, or pictures with what they were taken for."""
    blocks: list[Block] = []
    bare = [site.site for site in looked if not site.complete]
    if bare:
        blocks.append(
            Text(
                f"Without the parts that {listed(bare)} keep for themselves, which are not here: the model does worse "
                "than "
                "in the tables."
            )
        )
    slices = any(site.slices for site in looked)
    if slices:
        blocks.append(Figures([], _LEGEND))
    with figures.style():
        for number, site in enumerate(looked):
            drawn = _volumes(site, number) if site.slices else _pictures(site, number)
            if drawn:
                blocks += [Heading(site.site), Figures(drawn, size="half" if site.slices else "small")]
    how = (
        "Look whether the model fails at the ends of the organ, at its edge or altogether; of each case the slice "
        "where "
        "the reference is largest, and its neighbours."
        if slices
        else "By the probability that the model gave to the right class: where it was most wrong, in the middle, and "
        "most "
        "right."
    )
    return Section("cases", "Worst, median and best cases", how, blocks)


def _swatch(colour: str, dashes: str) -> Markup:
    return Markup(
        '<svg viewBox="0 0 28 14" width="28" height="14" aria-hidden="true"><rect width="28" height="14" rx="2" '
        f'fill="#333"/><path d="M3 7h22" stroke="{colour}" stroke-width="2.4" stroke-dasharray="{dashes}"/></svg>'
    )


_LEGEND = (LegendEntry("model", _swatch(MODEL, "")), LegendEntry("reference", _swatch(REFERENCE, "4 2.5")))


@dataclass(frozen=True)
class _Picked:
    """Places of single cases in an ascending order of scores."""

    word: str
    place: int


def _pick(scores: np.ndarray) -> list[_Picked]:
    order = np.argsort(scores, kind="stable")
    places = {"worst": order[0], "median": order[(len(order) - 1) // 2], "best": order[-1]}
    picked: dict[int, str] = {}
    for word, place in places.items():
        picked.setdefault(int(place), word)
    return [_Picked(word, place) for place, word in picked.items()]


def _volumes(site: Looked, number: int) -> list[Figure]:
    owner = site.data.cases(site.part)
    cases = np.unique(owner)
    reference = site.data.labels(site.members).numpy().astype(bool)
    if site.recorded is not None and len(site.recorded) == len(cases):
        scores = np.array(site.recorded)
    else:
        counts = [
            [(masks[owner == case]).sum() for case in cases]
            for masks in (site.predicted & reference, site.predicted, reference)
        ]
        scores = dice(*(np.array(column, float) for column in counts))
    drawn = []
    for picked in _pick(scores):
        chosen = np.flatnonzero(owner == cases[picked.place])
        chosen = chosen[np.argsort(site.members[chosen])]
        said = metric("dice").with_unit(float(scores[picked.place]))
        title = f"{picked.word} of {len(cases)}: Dice {said}{_identity(site.data.manifest, int(cases[picked.place]))}"
        drawn.append(_slices(site, chosen, reference, f"case-{number}-{picked.word}", title))
    return drawn


def _identity(manifest: Manifest, entry: int) -> str:
    """The name of a case of the phantom or of a picture. Patients' scans have none here, also those of public sets."""
    return "" if manifest.kind == "patients" else f" ({short(manifest.entries[entry].id, 20)})"


def _slices(site: Looked, chosen: np.ndarray, reference: np.ndarray, key: str, title: str) -> Figure:
    largest = int(np.argmax(reference[chosen].sum((1, 2))))
    first = max(min(largest - 1, len(chosen) - 3), 0)
    shown = chosen[first : first + 3]
    images = site.data.images(site.members[shown]).numpy()
    middle = images[:, images.shape[1] // 2]
    low, high = float(middle.min()), float(middle.max())
    window = _around((site.predicted[shown] | reference[shown]).any(0))
    drawn, panels = figures.drawing(width=390, height=132, columns=len(shown))
    for axes, image, place in zip(panels, middle, shown, strict=True):
        _bare(axes)
        axes.imshow(image[window], cmap="gray", vmin=low, vmax=high, interpolation="none")
        for mask, colour, line in ((reference, REFERENCE, "--"), (site.predicted, MODEL, "-")):
            cut = mask[place][window]
            if cut.any():
                axes.contour(cut.astype(float), levels=[0.5], colors=[colour], linestyles=[line], linewidths=1.5)
    described = f"{short(site.site)}, {title}: three neighbouring slices with the contours of model and reference"
    return figures.figure(drawn, key, title=title, description=described)


def _around(mask: np.ndarray) -> tuple[slice, slice]:
    """A square around what is there, with a margin; the whole image if nothing is."""
    side = mask.shape[0]
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return slice(0, side), slice(0, side)
    widest = max(rows[-1] - rows[0], columns[-1] - columns[0]) + 1
    length = min(max(int(widest * (1 + 2 * MARGIN)), SMALLEST), side)
    starts = [min(max(int(p[0] + p[-1] + 1 - length) // 2, 0), side - length) for p in (rows, columns)]
    return slice(starts[0], starts[0] + length), slice(starts[1], starts[1] + length)


def _pictures(site: Looked, number: int) -> list[Figure]:
    labels = site.data.labels(site.members).numpy()
    names = site.job.task.classes
    truth = site.predicted[np.arange(len(labels)), labels]
    drawn = []
    for picked in _pick(truth):
        image = site.data.images(site.members[[picked.place]]).numpy()[0]
        taken = int(site.predicted[picked.place].argmax())
        right = taken == labels[picked.place]
        sure = metric("accuracy").with_unit(float(site.predicted[picked.place, taken]))
        said = f"recognised ({sure} sure)" if right else f"taken for {names[taken]} ({sure} sure)"
        name = _identity(site.data.manifest, int(site.members[picked.place]))
        title = f"{picked.word} of {len(labels)}: {names[labels[picked.place]]}, {said}{name}"
        canvas, (axes,) = figures.drawing(width=170, height=170)
        _bare(axes)
        low, high = float(image.min()), float(image.max())
        shown = np.moveaxis((image - low) / max(high - low, 1e-6), 0, -1)
        axes.imshow(shown[..., 0] if shown.shape[-1] != 3 else shown, cmap="gray", interpolation="none")
        drawn.append(figures.figure(canvas, f"case-{number}-{picked.word}", title=title, description=short(title, 200)))
    return drawn


def _bare(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
