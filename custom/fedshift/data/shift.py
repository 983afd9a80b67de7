"""How far two sites are from each other, by aspect, from their fingerprints alone.

Each aspect has a unit that means something (standard deviations, octaves, a part of the cases), and two rules of thumb:
from which distance on it is worth a look, and from which it is large. They are no tests of significance: sites with few
cases differ by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np

from fedshift.data.tallies import merge, normalised, of_pictures, spread, worded
from fedshift.schema.fingerprint import ALL, OUTSIDE, PLACES, STEP, Fingerprint, Tally, Volumes

Level = Literal["similar", "differs", "differs much", "unknown"]
Pair = tuple[str, str]


@dataclass(frozen=True)
class Aspect:
    """A way in which sites differ; ``noun`` names it in a sentence.

    ``worth`` and ``large`` are the distances of the rules of thumb.
    """

    key: str
    title: str
    noun: str
    unit: str
    means: str
    worth: float
    large: float

    def level(self, distance: float | None) -> Level:
        if distance is None:
            return "unknown"
        return "similar" if distance < self.worth else "differs" if distance < self.large else "differs much"


_ASPECTS = """
intensity | Intensity | intensity as stored | SD | 0.3 | 1 |
    intensities as they are stored, in standard deviations over all sites
normalised | Normalised | the distribution of intensities | SD | 0.1 | 0.25 |
    intensities after each volume was brought to mean 0 and standard deviation 1
contrast | Contrast | the contrast of the labels | SD | 0.25 | 0.75 |
    mean intensity inside the labels less that outside, in standard deviations of the volume, mean of the classes
spacing | Voxel size | voxel size | octaves | 0.15 | 0.5 |
    mm between voxels; an octave is a factor of two; mean of the axes
extent | Field of view | field of view | octaves | 0.15 | 0.5 |
    mm from end to end; an octave is a factor of two; mean of the axes
volume | Label size | the labels' size | octaves | 0.4 | 1 |
    ml of a class; an octave is a factor of two; mean of the classes
prevalence | Label presence | how often a class occurs | of the cases | 0.15 | 0.4 |
    part of the cases that have a class; the class that differs most
"""


def _aspect(line: str) -> Aspect:
    key, title, noun, unit, worth, large, means = line.split(" | ")
    return Aspect(key, title, noun, unit, means, float(worth), float(large))


ASPECTS = tuple(_aspect(line) for line in _ASPECTS.replace("\n    ", " ").strip().splitlines())
INTENSITY, SHAPE, CONTRAST, SPACING, EXTENT, VOLUME, PREVALENCE = ASPECTS
OF_A_SCAN = (INTENSITY, SHAPE, CONTRAST, SPACING, EXTENT, VOLUME)
"""Aspects in which a single scan can be compared with a site."""
OF_SIZE = (SPACING, EXTENT, VOLUME)
"""Aspects in mm or ml, of which pictures have some only where their files say the size of a pixel."""
MOST_TIMES = 2.0
"""A distance counts for at most so many times what is large: one extreme aspect alone should not decide."""


@dataclass(frozen=True)
class ShiftMap:
    """Distances between sites: aspect → pair of sites → distance, or None where a site does not tell enough.

    ``placed``: sites that are on the map and not in the plan. ``silent``: sites that gave counts only. ``pictures``:
    whether the sites have pictures.
    """

    sites: tuple[str, ...]
    placed: tuple[str, ...]
    silent: tuple[str, ...]
    distances: Mapping[str, Mapping[Pair, float | None]]
    pictures: bool = False

    @property
    def aspects(self) -> tuple[Aspect, ...]:
        """Those to be shown, in words on pictures where these are compared: of sizes in mm only what is known."""
        if not self.pictures:
            return ASPECTS
        known = [each for each in ASPECTS if each not in OF_SIZE or self.largest(each) is not None]
        words = [(worded(each.title, pictures=True), worded(each.means, pictures=True)) for each in known]
        return tuple(replace(each, title=title, means=means) for each, (title, means) in zip(known, words, strict=True))

    def between(self, aspect: Aspect, first: str, second: str) -> float | None:
        """The distance of two sites; 0 of a site from itself."""
        if first == second:
            return 0.0
        distances = self.distances[aspect.key]
        return distances[first, second] if (first, second) in distances else distances[second, first]

    def overall(self, first: str, second: str) -> float | None:
        """Mean over aspects of the distance in multiples of what is large; None if no aspect is known."""
        known = [(aspect, self.between(aspect, first, second)) for aspect in ASPECTS]
        return _mean([min(distance / aspect.large, MOST_TIMES) for aspect, distance in known if distance is not None])

    @property
    def pairs(self) -> list[Pair]:
        return list(combinations(self.sites, 2))

    @property
    def farthest(self) -> Pair | None:
        """The two sites that differ most; None if no two can be compared."""
        known = {pair: value for pair in self.pairs if (value := self.overall(*pair)) is not None}
        return max(known, key=lambda pair: known[pair]) if known else None

    def largest(self, aspect: Aspect) -> tuple[Pair, float] | None:
        """The pair that differs most in one aspect, and its distance."""
        known = {pair: value for pair in self.pairs if (value := self.between(aspect, *pair)) is not None}
        if not known:
            return None
        pair = max(known, key=lambda pair: known[pair])
        return pair, known[pair]


def shift_map(fingerprints: Sequence[Fingerprint], *, placed: Sequence[str] = ()) -> ShiftMap:
    """Compare every two sites.

    Raises:
        ConfigError: sites with other classes or sequences.
    """
    answered = [site for site in fingerprints if not site.withheld]
    pooled = merge(fingerprints)
    measures: dict[str, Callable[[Fingerprint, Fingerprint], float | None]] = {
        INTENSITY.key: lambda a, b: _intensity(a, b, pooled),
        SHAPE.key: _shape,
        CONTRAST.key: _contrast,
        SPACING.key: lambda a, b: _axes(a, b, "spacing"),
        EXTENT.key: lambda a, b: _axes(a, b, "extent"),
        VOLUME.key: _volume,
        PREVALENCE.key: _prevalence,
    }
    return ShiftMap(
        sites=tuple(site.site for site in answered),
        placed=tuple(name for name in placed if any(site.site == name for site in answered)),
        silent=tuple(site.site for site in fingerprints if site.withheld),
        pictures=of_pictures(fingerprints),
        distances={
            aspect.key: {(a.site, b.site): measures[aspect.key](a, b) for a, b in combinations(answered, 2)}
            for aspect in ASPECTS
        },
    )


def from_site(scan: Fingerprint, site: Fingerprint) -> dict[str, float]:
    """How far one scan is from a site: aspect -> distance, of the `OF_A_SCAN` that are known.

    Intensities as stored are in the site's own standard deviations.
    """
    measures: dict[str, float | None] = {
        INTENSITY.key: _intensity(scan, site, site),
        SHAPE.key: _shape(scan, site),
        CONTRAST.key: _contrast(scan, site),
        SPACING.key: _axes(scan, site, "spacing"),
        EXTENT.key: _axes(scan, site, "extent"),
        VOLUME.key: _volume(scan, site),
    }
    return {key: distance for key, distance in measures.items() if distance is not None}


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _tallies_apart(first: Tally, second: Tally, scale: Callable[[float], float] = float) -> float:
    """Wasserstein's distance of two distributions: the mean way that mass has to go."""
    from scipy.stats import wasserstein_distance

    values = [[scale(value) for value, _ in tally] for tally in (first, second)]
    masses = [[mass for _, mass in tally] for tally in (first, second)]
    return float(wasserstein_distance(*values, *masses))


def _octave(value: float) -> float:
    return float(np.log2(max(value, 1e-6)))


def _intensity(a: Fingerprint, b: Fingerprint, pooled: Fingerprint) -> float | None:
    distances = []
    for sequence in a.intensities.keys() & b.intensities.keys():
        mine, theirs = (site.intensities[sequence][ALL].values for site in (a, b))
        if mine and theirs:
            unit = spread(pooled.intensities[sequence][ALL]).deviation if pooled.noise is None else 0.0
            distances.append(_tallies_apart(mine, theirs) / (unit or _deviation(mine, theirs)))
    return _mean(distances)


def _deviation(*tallies: Tally) -> float:
    """Standard deviation of tallies together; 1 if there is only one value."""
    values = np.array([value for tally in tallies for value, _ in tally])
    masses = np.array([mass for tally in tallies for _, mass in tally])
    mean = np.average(values, weights=masses)
    return float(np.sqrt(np.average((values - mean) ** 2, weights=masses))) or 1.0


def _shape(a: Fingerprint, b: Fingerprint) -> float | None:
    distances = []
    for sequence in a.intensities.keys() & b.intensities.keys():
        mine, theirs = (normalised(site.intensities[sequence][ALL]) for site in (a, b))
        if mine.any() and theirs.any():
            distances.append(float(np.abs(np.cumsum(mine - theirs)).sum() * STEP))
    return _mean(distances)


def contrasts(site: Fingerprint) -> dict[tuple[str, str], float]:
    """(Sequence, class) → mean normalised intensity inside less that outside the labels."""
    by_class = {}
    for sequence, places in site.intensities.items():
        for place, inside in places.items():
            if place not in PLACES and (outside := places.get(OUTSIDE)) is not None:
                mean = outside.normalised_mean / outside.cases
                by_class[sequence, place] = inside.normalised_mean / inside.cases - mean
    return by_class


def _contrast(a: Fingerprint, b: Fingerprint) -> float | None:
    mine, theirs = contrasts(a), contrasts(b)
    return _mean([abs(mine[key] - theirs[key]) for key in sorted(mine.keys() & theirs.keys())])


def _axes(a: Fingerprint, b: Fingerprint, what: Literal["spacing", "extent"]) -> float | None:
    if a.geometry is None or b.geometry is None or not (a.geometry.cases and b.geometry.cases):
        return None
    pairs = zip(getattr(a.geometry, what), getattr(b.geometry, what), strict=True)
    return _mean([_tallies_apart(mine, theirs, _octave) for mine, theirs in pairs])


def _volume(a: Fingerprint, b: Fingerprint) -> float | None:
    both = [(mine.values, theirs.values) for mine, theirs in _of_both(a, b)]
    return _mean([_tallies_apart(mine, theirs, _octave) for mine, theirs in both if mine and theirs])


def _prevalence(a: Fingerprint, b: Fingerprint) -> float | None:
    both = [(mine, theirs) for mine, theirs in _of_both(a, b) if mine.surveyed and theirs.surveyed]
    return max(
        (abs(mine.cases / mine.surveyed - theirs.cases / theirs.surveyed) for mine, theirs in both), default=None
    )


def _of_both(a: Fingerprint, b: Fingerprint) -> list[tuple[Volumes, Volumes]]:
    """The volumes of each class that both have."""
    return [(a.volumes[name], b.volumes[name]) for name in a.classes if name in a.volumes.keys() & b.volumes]
