"""Numbers from the sums and tallies of a fingerprint: quantiles, means and variances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10, sqrt

import numpy as np

from fedshift.schema.fingerprint import BINS, LOWEST, STEP, Fingerprint, Intensities, Tally

MIDDLES = LOWEST + STEP * (np.arange(BINS) + 0.5)
"""Middles of the bins of normalised intensities."""


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
    """The median of each."""
    return [quantile(tally, 0.5) for tally in tallies]


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of intensities; ``between`` is that of the cases' means."""

    mean: float
    deviation: float
    between: float


def spread(of: Intensities) -> Spread:
    """Exact, within and between cases and sites."""
    mean = of.mean / of.cases
    return Spread(
        mean=mean,
        deviation=sqrt(max(of.square / of.cases - mean**2, 0.0)),
        between=sqrt(max(of.squared_mean / of.cases - mean**2, 0.0)),
    )


def plain(value: float) -> str:
    """Four digits of a number, written without an exponent, such as ``24,870`` or ``0.01234``."""
    if not 1e-6 < abs(value) < 1e12:
        return f"{value:.4g}"
    places = 3 - floor(log10(abs(value)))
    text = f"{round(value, places):,.{max(places, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def normalised(of: Intensities) -> np.ndarray:
    """The histogram of normalised intensities as a distribution; zeros if it is empty."""
    histogram = np.array(of.normalised)
    total = histogram.sum()
    return histogram / total if total else histogram


def row_of_site(site: Fingerprint) -> tuple[str, str, str]:
    """Median numbers of voxels, median voxel size, and the classes' median sizes."""
    if site.withheld:
        return "–", "–", f"counts only: {site.withheld}"
    if site.geometry is None:
        return "–", "–", "histograms with noise only"
    voxels = " x ".join(f"{edge:g}" for edge in medians(site.geometry.voxels))
    spacing = " x ".join(f"{mm:g}" for mm in medians(site.geometry.spacing)) if site.geometry.cases else "not known"
    labels = []
    for name, volume in site.volumes.items():
        size = f" {quantile(volume.values, 0.5):g} ml" if volume.values else ""
        labels.append(f"{name}{size}" + ("" if volume.cases == volume.of else f" (in {volume.cases} of {volume.of})"))
    return voxels, spacing, ", ".join(labels)
