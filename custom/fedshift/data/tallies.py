"""Numbers from the sums and tallies of fingerprints, and the sum of several sites' fingerprints.

The sum is what one folder with all their cases would say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import floor, log10, sqrt
from typing import TypeVar

import numpy as np

from fedshift.schema.errors import ConfigError
from fedshift.schema.fingerprint import (
    BINS,
    LOWEST,
    STEP,
    Fingerprint,
    Geometry,
    Intensities,
    Tally,
    ThreeTallies,
    Volumes,
)

K = TypeVar("K")
T = TypeVar("T")
EVERYONE = "all_sites"  # name of the sum
MIDDLES = LOWEST + STEP * (np.arange(BINS) + 0.5)  # middles of the bins of normalised intensities


def quantile(tally: Tally, q: float) -> float:
    """The value below which a part ``q`` of the mass is; halfway between two values if it is between them."""
    values = np.array([value for value, _ in tally])
    masses = np.array([mass for _, mass in tally])
    reached = np.cumsum(masses) / masses.sum()
    index = int(np.searchsorted(reached, q - 1e-12))
    index = min(index, len(values) - 1)
    if abs(reached[index] - q) < 1e-12 and index + 1 < len(values):
        return float((values[index] + values[index + 1]) / 2)
    return float(values[index])


def medians(tallies: Sequence[Tally]) -> list[float]:
    return [quantile(tally, 0.5) for tally in tallies]


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of intensities; ``between`` is that of the cases' means."""

    mean: float
    deviation: float
    between: float


def spread(intensities: Intensities) -> Spread:
    """Exact, within and between cases and sites."""
    cases = intensities.cases
    mean = intensities.mean / cases
    return Spread(
        mean=mean,
        deviation=sqrt(max(intensities.square / cases - mean**2, 0.0)),
        between=sqrt(max(intensities.squared_mean / cases - mean**2, 0.0)),
    )


def plain(value: float) -> str:
    """Four digits of a number, written without an exponent, such as ``24,870`` or ``0.01234``."""
    if not 1e-6 < abs(value) < 1e12:
        return f"{value:.4g}"
    places = 3 - floor(log10(abs(value)))
    text = f"{round(value, places):,.{max(places, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def normalised(intensities: Intensities) -> np.ndarray:
    """The histogram of normalised intensities as a distribution; zeros if it is empty."""
    histogram = np.array(intensities.normalised)
    total = histogram.sum()
    return histogram / total if total else histogram


def of_pictures(sites: Iterable[Fingerprint]) -> bool:
    """Whether the sites that tell of their cases have pictures."""
    described = [site for site in sites if site.geometry is not None]
    return bool(described) and all(site.of_pictures for site in described)


def worded(text: str, *, pictures: bool) -> str:
    """A sentence on volumes as one on pictures, where it is about these."""
    if not pictures:
        return text
    for word, other in (("volume", "picture"), ("Volume", "Picture"), ("voxel", "pixel"), ("Voxel", "Pixel")):
        text = text.replace(word, other)
    return text


def row_of_site(site: Fingerprint) -> tuple[str, str, str]:
    """Median numbers of voxels, median voxel size, and the classes' median sizes; of pictures rows and columns."""
    if site.withheld:
        return "–", "–", f"counts only: {site.withheld}"
    if site.geometry is None:
        return "–", "–", "histograms with noise only"
    axes = slice(1 if site.of_pictures else 0, None)
    voxels = " x ".join(f"{edge:g}" for edge in medians(site.geometry.voxels)[axes])
    known = site.geometry.cases
    spacing = " x ".join(f"{mm:g}" for mm in medians(site.geometry.spacing)[axes]) if known else "not known"
    labels = []
    for name, volume in site.volumes.items():
        size = f" {quantile(volume.values, 0.5):g} ml" if volume.values else ""
        labels.append(
            f"{name}{size}" + ("" if volume.cases == volume.surveyed else f" (in {volume.cases} of {volume.surveyed})")
        )
    return voxels, spacing, ", ".join(labels)


# --- the sum of several sites -----------------------------------------------------------------------------------------


def merge(fingerprints: Sequence[Fingerprint], *, name: str = EVERYONE) -> Fingerprint:
    """Add up fingerprints. Sites that gave counts only add these; noise adds up too.

    Raises:
        ConfigError: there are none, or two have other classes, sequences, or kinds of data.
    """
    if not fingerprints:
        raise ConfigError("no-site", "no site answered the survey: prepare their data, or ask them why")
    check_alike(fingerprints)
    first = fingerprints[0]
    annotated = [site.classes[1:] if site.annotated is None else site.annotated for site in fingerprints]
    outlined = {cls for classes in annotated for cls in classes}
    all_outlined = outlined == set(first.classes[1:])
    noises = [site.noise for site in fingerprints if site.noise is not None]
    scanners = [site.scanners for site in fingerprints if site.scanners is not None]
    answered = [site for site in fingerprints if not site.withheld]
    geometries = [site.geometry for site in answered if site.geometry is not None]
    return Fingerprint(
        site=name,
        dataset=first.dataset,
        kind=first.kind,
        simulated=next((site.simulated for site in fingerprints if site.simulated), None),
        cases=_dicts([site.cases for site in fingerprints], _add),
        classes=first.classes,
        sequences=first.sequences,
        annotated=None if all_outlined else tuple(cls for cls in first.classes if cls in outlined),
        surveyed=sum(site.surveyed for site in fingerprints),
        withheld="" if answered else first.withheld,
        noise=sum(noise**2 for noise in noises) ** 0.5 if noises else None,
        geometry=reduce(_geometries, geometries) if geometries else None,
        volumes=_dicts([site.volumes for site in answered], _volumes),
        intensities=_dicts([site.intensities for site in answered], lambda a, b: _dicts([a, b], add_intensities)),
        scanners=_dicts(scanners, _add) if scanners else None,
    )


def check_alike(fingerprints: Sequence[Fingerprint]) -> None:
    """See that sites can be compared."""
    first = fingerprints[0]
    for other in fingerprints[1:]:
        for what, mine, theirs in (
            ("classes", first.classes, other.classes),
            ("sequences", first.channels, other.channels),
        ):
            if mine != theirs:
                raise ConfigError(
                    "other-classes",
                    f"site {first.site} has the {what} {', '.join(mine)}, site {other.site} has {', '.join(theirs)}: "
                    "prepare them with the same names in the same order (nnU-Net's data sets with --classes), or "
                    "survey one without the other (--sites)",
                )
        if (first.kind == "phantom") != (other.kind == "phantom"):
            raise ConfigError(
                "phantom-mixed",
                f"site {first.site} has data of kind {first.kind}, site {other.site} of kind {other.kind}: a survey "
                "does not mix simulated and real data",
            )


def require_every_class(fingerprints: Sequence[Fingerprint]) -> None:
    """See that each class can be learnt at some site.

    Raises:
        ConfigError: the masks of no site outline a class, or no case of theirs has it.
    """
    for name in fingerprints[0].classes[1:]:
        outlining = [site for site in fingerprints if site.annotated is None or name in site.annotated]
        if all(name in site.volumes and not site.volumes[name].cases for site in outlining):
            has = "has a case with" if outlining else "outlines"
            raise ConfigError(
                "class-missing",
                f"no site {has} the class {name}, so none can learn it: prepare a site whose training cases have it, "
                "or prepare all of them without this class (--label)",
            )


def _add(a: int, b: int) -> int:
    return a + b


def _dicts(parts: Iterable[Mapping[K, T]], add: Callable[[T, T], T]) -> dict[K, T]:
    total: dict[K, T] = {}
    for part in parts:
        for key, value in part.items():
            total[key] = add(total[key], value) if key in total else value
    return total


def _tallies(a: Tally, b: Tally) -> Tally:
    total = dict(a)
    for value, mass in b:
        total[value] = total.get(value, 0.0) + mass
    return tuple(sorted(total.items()))


def _three(a: ThreeTallies, b: ThreeTallies) -> ThreeTallies:
    return tuple(_tallies(mine, theirs) for mine, theirs in zip(a, b, strict=True))  # type: ignore[return-value]


def _geometries(a: Geometry, b: Geometry) -> Geometry:
    return Geometry(
        cases=a.cases + b.cases,
        spacing=_three(a.spacing, b.spacing),
        extent=_three(a.extent, b.extent),
        voxels=_three(a.voxels, b.voxels),
    )


def _volumes(a: Volumes, b: Volumes) -> Volumes:
    return Volumes(
        cases=a.cases + b.cases,
        surveyed=a.surveyed + b.surveyed,
        ml=a.ml + b.ml,
        square=a.square + b.square,
        values=_tallies(a.values, b.values),
    )


def add_intensities(a: Intensities, b: Intensities) -> Intensities:
    return Intensities(
        cases=a.cases + b.cases,
        mean=a.mean + b.mean,
        square=a.square + b.square,
        squared_mean=a.squared_mean + b.squared_mean,
        values=_tallies(a.values, b.values),
        normalised_mean=a.normalised_mean + b.normalised_mean,
        normalised=tuple(mine + theirs for mine, theirs in zip(a.normalised, b.normalised, strict=True)),
    )
