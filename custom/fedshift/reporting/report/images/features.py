"""Where test samples lie among the network's features: t-SNE, coloured by site and by what is on the image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedshift.reporting import figures
from fedshift.reporting.figures import Figure
from fedshift.reporting.report.images.models import Looked
from fedshift.reporting.report.section import Block, Figures, Section, paragraph

MOST_OF_A_SITE = 150
FEWEST = 8
PERPLEXITY = 30.0
MOST_CLASSES = 10
"""With a colour; what is left is grey."""
OTHERS = "others"


def section(looked: Sequence[Looked]) -> Section:
    """Two drawings of the same points."""
    return Section(
        "features",
        "Features of test samples (t-SNE)",
        "Neighbours look alike to the network: sites in heaps of their own are a shift that the network sees, classes "
        "in heaps of their own are what it has learned; distances between heaps mean nothing.",
        _drawn(looked),
    )


def of_own_models(looked: Sequence[Looked]) -> Section:
    """The same where each site's samples went through its own model (FedRDN, Figure 3 a and b)."""
    return Section(
        "own-features",
        "Features of test samples, each site's by its own model (t-SNE)",
        "Where sites lie in heaps of their own, their models see images in ways of their own, which an average of "
        "these models has to reconcile; distances between heaps mean nothing.",
        _drawn(looked, key="own-"),
    )


def _drawn(looked: Sequence[Looked], *, key: str = "") -> list[Block]:
    rng = np.random.default_rng(0)
    picked = [np.sort(rng.permutation(len(site.features))[:MOST_OF_A_SITE]) for site in looked]
    features = np.concatenate([site.features[index] for site, index in zip(looked, picked, strict=True)])
    owner = np.concatenate([[site.site] * len(index) for site, index in zip(looked, picked, strict=True)])
    if len(features) < FEWEST:
        return [paragraph("few_to_arrange", fewest=FEWEST)]
    points = _arranged(features)
    by_site = _scatter(f"{key}site", "By site", points, owner, [site.site for site in looked])
    if looked[0].shows == "volumes":  # a volume has all classes
        return [Figures([by_site])]
    groups = _groups(looked, picked)
    names = list(dict.fromkeys(groups))
    order = sorted(names, key=lambda name: (name == OTHERS, name))
    title = "By foreground on the slice" if looked[0].shows == "slices" else "By class"
    by_group = _scatter(f"{key}group", title, points, groups, order)
    return [Figures([by_site, by_group])]


def _groups(looked: Sequence[Looked], picked: Sequence[np.ndarray]) -> np.ndarray:
    """A word for each sample: its class, or how much foreground its slice has."""
    words: list[str] = []
    for site, index in zip(looked, picked, strict=True):
        labels = site.data.labels(site.members[index]).numpy()
        if site.shows == "slices":
            words += [_amount(100 * float(share)) for share in labels.reshape(len(labels), -1).mean(1)]
        else:
            words += [_label(label, site.job.task.classes) for label in labels]
    groups = np.array(words)
    names, counts = np.unique(groups, return_counts=True)
    if len(names) > MOST_CLASSES:
        common = names[np.argsort(-counts, kind="stable")[: MOST_CLASSES - 1]]
        groups = np.where(np.isin(groups, common), groups, OTHERS)
    return groups


def _label(label: np.ndarray, classes: Sequence[str]) -> str:
    """A class, or the findings that are there."""
    if not label.ndim:
        return classes[int(label)]
    return ", ".join(classes[k] for k in np.flatnonzero(label == 1).tolist()) or "none known"


def _amount(percent: float) -> str:
    if percent == 0:
        return "0: none"
    return "1: below 2 %" if percent < 2 else "2: 2 to 5 %" if percent < 5 else "3: 5 % and more"


def _arranged(features: np.ndarray) -> np.ndarray:
    """(n, d) -> (n, 2), the same for the same features."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    scaled = (features - features.mean(0)) / (features.std(0) + 1e-6)
    fewer = PCA(min(50, *scaled.shape), random_state=0).fit_transform(scaled)
    perplexity = min(PERPLEXITY, (len(fewer) - 1) / 3)
    init = "pca" if fewer.shape[1] > 1 else "random"
    points: np.ndarray = TSNE(2, perplexity=perplexity, init=init, random_state=0).fit_transform(fewer)
    return points


def _scatter(key: str, title: str, points: np.ndarray, words: np.ndarray, order: Sequence[str]) -> Figure:
    with figures.drawing(height=320) as (drawn, (axes,)):
        for number, word in enumerate(order):
            x, y = points[words == word].T
            colour = figures.FAINT if word == OTHERS else figures.colour(number)
            axes.scatter(x, y, s=16, color=colour, marker=figures.marker(number), alpha=0.75, linewidths=0)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(visible=False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        shown = figures.legend([word.partition(": ")[2] or word for word in order], lines=False)
        described = f"{len(points)} test samples arranged by their features, coloured {title.lower()}"
        return figures.figure(drawn, f"features-{key}", title=title, description=described, legend=shown)
