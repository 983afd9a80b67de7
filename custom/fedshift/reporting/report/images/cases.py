"""The worst, the median and the best test case of every site."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedshift.inference.saliency_picture import as_shown, flat, shaded
from fedshift.reporting import figures
from fedshift.reporting.figures import Figure
from fedshift.reporting.report.images import outlines
from fedshift.reporting.report.images.models import Looked, Shows
from fedshift.reporting.report.images.picks import of_pictures, pick
from fedshift.reporting.report.section import Block, Figures, Heading, Section, Text, paragraph
from fedshift.reporting.report.wording import metric, short
from fedshift.schema.manifest import Manifest
from fedshift.tasks.evaluation.by_finding import PLAIN
from fedshift.tasks.evaluation.overlap import dice

MARGIN = 0.45
"""Around the organ, in parts of its size."""
SMALLEST = 32
"""Pixels of a cut-out."""


def section(looked: Sequence[Looked]) -> Section:
    """Contours on slices, or pictures with what they were taken for."""
    blocks: list[Block] = []
    bare = [site.site for site in looked if not site.complete]
    if bare:
        blocks.append(paragraph("without_own_parts", sites=bare))
    shown = looked[0].shows if looked else "pictures"
    if shown != "pictures":
        blocks.append(Figures([], outlines.legend(looked[0].job.task.structures)))
    for number, site in enumerate(looked):
        drawn = _DRAWN[shown](site, number)
        if drawn:
            blocks += [Heading(site.site), *_not_outlined(site)]
            blocks.append(Figures(drawn, size="small" if shown == "pictures" and not site.saliency else "half"))
    pictured = shown == "volumes" and looked[0].data.manifest.pictured
    return Section("cases", "Worst, median and best cases", _PICTURED if pictured else _HOW[shown], blocks)


_PICTURED = (
    "Look whether the model fails at an edge, in thin parts, in taking one structure for another, or altogether: left "
    "are its outlines, right those of the reference."
)
_HOW: Mapping[Shows, str] = {
    "slices": "Look whether the model fails at the ends of the organ, at its edge or altogether; of each case the "
    "slice where the reference is largest, and its neighbours.",
    "volumes": "Look whether the model fails at the ends of a structure, at its edge, in taking one for another, or "
    "altogether; of each case the planes where the reference is largest, as scanned and in true proportions. R, A "
    "and S are the patient's right, front and head.",
    "pictures": "By the probability that the model gave to what is right: where it was most wrong, in the middle, and "
    "most right. Beside a picture, in colour, the places that speak for the class that the model found most likely "
    "(Grad-CAM); they are as coarse as the network's last features, and say nothing of why.",
}


def _not_outlined(site: Looked) -> list[Text]:
    """What a site's masks lack."""
    task, annotated = site.job.task, site.data.manifest.annotated
    if annotated is None:
        return []
    regions = task.made_regions
    outlined: Sequence[str] = annotated
    if regions is not None:
        outlined = [regions.names[number] for number in regions.known(task.classes.index(name) for name in annotated)]
    missing = [name for name in task.structures if name not in outlined]
    return [paragraph("not_outlined", site=site.site, classes=missing)] if missing else []


def _slices(site: Looked, number: int) -> list[Figure]:
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
    for picked in pick(scores):
        chosen = np.flatnonzero(owner == cases[picked.place])
        chosen = chosen[np.argsort(site.members[chosen])]
        score = metric("dice").with_unit(float(scores[picked.place]))
        title = f"{picked.word} of {len(cases)}: Dice {score}{_identity(site.data.manifest, int(cases[picked.place]))}"
        drawn.append(_neighbours(site, chosen, reference, f"case-{number}-{picked.word}", title))
    return drawn


def _volumes(site: Looked, number: int) -> list[Figure]:
    drawn = []
    unit = metric("dice").with_unit
    for picked in pick(np.array([volume.mean for volume in site.volumes])):
        volume = site.volumes[picked.place]
        each = ", ".join(f"{name} {unit(score)}" for name, score in volume.scores.items())
        shown_score = f"{unit(volume.mean)} ({each})" if len(volume.scores) > 1 else unit(volume.mean)
        title = f"{picked.word} of {len(site.volumes)}: Dice {shown_score}{_identity(site.data.manifest, volume.entry)}"
        key = f"case-{number}-{picked.word}"
        drawn.append(outlines.volume(volume, site.job.task.structures, key=key, title=title, site=site.site))
    return drawn


def _identity(manifest: Manifest, entry: int) -> str:
    """The name of a case of the phantom or of a picture. Patients' scans have none here, also those of public sets."""
    return "" if manifest.kind == "patients" else f" ({short(manifest.entries[entry].id, 20)})"


def _neighbours(site: Looked, chosen: np.ndarray, reference: np.ndarray, key: str, title: str) -> Figure:
    largest = int(np.argmax(reference[chosen].sum((1, 2))))
    first = max(min(largest - 1, len(chosen) - 3), 0)
    shown = chosen[first : first + 3]
    images = site.data.images(site.members[shown]).numpy()
    middle = images[:, images.shape[1] // 2]
    low, high = float(middle.min()), float(middle.max())
    window = _around((site.predicted[shown] | reference[shown]).any(0))
    with figures.drawing(width=390, height=132, columns=len(shown)) as (drawn, panels):
        for axes, image, place in zip(panels, middle, shown, strict=True):
            outlines.bare(axes)
            axes.imshow(image[window], cmap="gray", vmin=low, vmax=high, interpolation="none")
            for mask, colour, line in ((reference, outlines.REFERENCE, "--"), (site.predicted, outlines.MODEL, "-")):
                outlines.outline(axes, mask[place][window], colour, line)
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
    drawn = []
    for picked in pick(of_pictures(labels, site.predicted)):
        places = site.saliency.get(picked.place)
        whole = site.data.images(site.members[[picked.place]]).numpy()[0]
        of_image, of_places = flat(whole, None if places is None else places.map)
        image = as_shown(of_image)
        recognition = _recognition(site, labels[picked.place], site.predicted[picked.place])
        name = _identity(site.data.manifest, int(site.members[picked.place]))
        title = f"{picked.word} of {len(labels)}: {recognition}{name}"
        panels = [image] if of_places is None else [image, shaded(image, of_places)]
        if places is not None:
            title += f"; right, what speaks for {site.job.task.classes[places.number]}"
        with figures.drawing(width=170 * len(panels), height=170, columns=len(panels)) as (canvas, each):
            for axes, panel in zip(each, panels, strict=True):
                outlines.bare(axes)
                axes.imshow(panel, interpolation="none")
            drawn.append(
                figures.figure(canvas, f"case-{number}-{picked.word}", title=title, description=short(title, 200))
            )
    return drawn


def _recognition(site: Looked, label: np.ndarray, predicted: np.ndarray) -> str:
    """What a picture has and what it was taken for; of findings those that it has, each with its probability."""
    names, sure = site.job.task.classes, metric("accuracy").with_unit
    if label.ndim:
        has = [f"{names[k]} ({sure(float(predicted[k]))} sure)" for k in np.flatnonzero(label == 1)]
        lacks = [k for k in np.flatnonzero(label == 0) if predicted[k] >= PLAIN]
        wrong = [f"not {names[k]} ({sure(float(predicted[k]))} sure of it)" for k in lacks]
        return ", ".join([*has, *wrong]) or "none of the known findings"
    predicted_class = int(predicted.argmax())
    how = "recognised" if predicted_class == label else f"taken for {names[predicted_class]}"
    return f"{names[int(label)]}, {how} ({sure(float(predicted[predicted_class]))} sure)"


_DRAWN: Mapping[Shows, Callable[[Looked, int], list[Figure]]] = {
    "slices": _slices,
    "volumes": _volumes,
    "pictures": _pictures,
}
