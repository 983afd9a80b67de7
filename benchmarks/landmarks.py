"""How far the intensities of four prostate sites are from each other, by how scans are normalised.

    python benchmarks/landmarks.py --data ROOT --out benchmarks/results/landmarks.json

ROOT is where ``fedshift data prepare prostate`` has put the sites. No network is trained. Of every way: the mean and
the largest distance between two sites' histograms (Wasserstein-1 of voxels at random, in standard deviations of all);
that of each site from the others if the standard is made of the others alone, as for a new hospital; and how the
prostate's median intensity, and that less the median around it, differ between sites' means and within sites (standard
deviations). Eight minutes on a core, nearly all of them for N4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import frame
import numpy as np

from fedshift.data.prepared import read_images, read_labels
from fedshift.runtime.bias_field import corrected
from fedshift.runtime.grids import LANDMARKS, SCALE, normalised, piecewise_linear
from fedshift.schema.manifest import read_manifest

SITES = ("BIDMC", "HK", "RUNMC", "UCL")
AROUND = 15
"""Voxels around the prostate in its slices."""
VOXELS = 20_000
"""Of each scan, at random."""


@dataclass(frozen=True)
class Scan:
    """``voxels`` and ``prostate`` are (z, y, x)."""

    site: str
    voxels: np.ndarray
    prostate: np.ndarray


Ways = dict[str, Callable[[Sequence[Scan], Sequence[Scan]], list[np.ndarray]]]
"""Maps scans, with a standard of others."""


def plain(normalise: str) -> Callable[[Sequence[Scan], Sequence[Scan]], list[np.ndarray]]:
    """A normalisation that knows nothing of other scans."""
    return lambda scans, _: [normalised(s.voxels, normalise, nonzero=False, fixed=None) for s in scans]  # type: ignore[arg-type]


def to_standard(*, above_mean: bool) -> Callable[[Sequence[Scan], Sequence[Scan]], list[np.ndarray]]:
    """The method ``landmarks``; ``above_mean``: with deciles of what is brighter than the mean, as in the paper."""

    def knots(scan: Scan) -> np.ndarray:
        landmarks = np.quantile(scan.voxels, LANDMARKS)
        if above_mean:
            bright = scan.voxels[scan.voxels > scan.voxels.mean()]
            landmarks[1:-1] = np.clip(np.quantile(bright, LANDMARKS[1:-1]), landmarks[0], landmarks[-1])
        return landmarks

    def mapped(scans: Sequence[Scan], others: Sequence[Scan]) -> list[np.ndarray]:
        stretched = [(k - k[0]) / (k[-1] - k[0]) for k in map(knots, others)]
        standard = SCALE[0] + np.mean(stretched, 0) * (SCALE[-1] - SCALE[0])
        return [np.clip(piecewise_linear(s.voxels, knots(s), standard), -10, 10) for s in scans]

    return mapped


WAYS: Ways = {
    "volume": plain("volume"),
    "percentile": plain("percentile"),
    "landmarks": plain("landmarks"),
    "landmarks, with the method": to_standard(above_mean=False),
    "landmarks, with the method, of what is brighter than the mean": to_standard(above_mean=True),
}


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Wasserstein-1 of two sets of numbers, equally many quantiles of each."""
    at = (np.arange(500) + 0.5) / 500
    return float(np.abs(np.quantile(a, at) - np.quantile(b, at)).mean())


def of_prostate(scan: Scan, values: np.ndarray) -> tuple[float, float]:
    """Its median intensity, and that less the median around it."""
    z, y, x = np.nonzero(scan.prostate)
    box = (slice(z.min(), z.max() + 1), *(slice(max(k.min() - AROUND, 0), k.max() + AROUND + 1) for k in (y, x)))
    inside = float(np.median(values[scan.prostate > 0]))
    return inside, inside - float(np.median(values[box][scan.prostate[box] == 0]))


def measured(scans: Sequence[Scan], way: Callable[[Sequence[Scan], Sequence[Scan]], list[np.ndarray]]) -> dict:
    """All figures of one way."""
    rng = np.random.default_rng(0)
    places = [rng.integers(scan.voxels.size, size=VOXELS) for scan in scans]

    def pooled(values: Sequence[np.ndarray], *sites: str) -> np.ndarray:
        chosen = [v.ravel()[p] for s, v, p in zip(scans, values, places, strict=True) if s.site in sites]
        return np.concatenate(chosen)

    values = way(scans, scans)
    unit = float(pooled(values, *SITES).std())
    pairs = {f"{a}, {b}": distance(pooled(values, a), pooled(values, b)) / unit for a, b in combinations(SITES, 2)}
    new = {}
    for site in SITES:
        others = [name for name in SITES if name != site]
        without = way(scans, [scan for scan in scans if scan.site != site])
        spread = pooled(without, *others).std()
        new[site] = distance(pooled(without, site), pooled(without, *others)) / float(spread)
    figures = np.array([of_prostate(scan, v) for scan, v in zip(scans, values, strict=True)]) / unit
    groups = [figures[[scan.site == site for scan in scans]] for site in SITES]
    between = np.std([group.mean(0) for group in groups], 0, ddof=1)
    within = np.sqrt(np.mean([group.var(0, ddof=1) for group in groups], 0))
    return rounded(
        {
            "histograms": {"mean": np.mean([*pairs.values()]), "largest": max(pairs.values()), "pairs": pairs},
            "new_site": {"mean": np.mean([*new.values()]), "sites": new},
            "prostate": {"between_sites": between[0], "within_sites": within[0]},
            "contrast": {"mean": figures[:, 1].mean(), "between_sites": between[1], "within_sites": within[1]},
        }
    )


def rounded(content: dict) -> dict:
    """With three decimals."""
    return {k: rounded(v) if isinstance(v, dict) else round(float(v), 3) for k, v in content.items()}


def read(root: Path) -> list[Scan]:
    """All cases of the four sites."""
    scans = []
    for site in SITES:
        folder = root / "prostate" / site
        manifest = read_manifest(folder)
        scans += [Scan(site, read_images(folder, manifest, c)[0], read_labels(folder, c)) for c in manifest.cases]
    return scans


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write."""
    parser = frame.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="ROOT")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    args = parser.parse_args(arguments)
    scans = read(args.data)
    flat = [Scan(scan.site, corrected(scan.voxels, nonzero=False), scan.prostate) for scan in scans]
    ways_measured = {name: measured(scans, way) for name, way in WAYS.items()}
    ways_measured |= {f"N4, {name}": measured(flat, WAYS[name]) for name in ("volume", "landmarks, with the method")}
    about = {"command": "python benchmarks/landmarks.py --data ROOT --out FILE.json", "cases": len(scans)}
    frame.write(args.out, {**about, **frame.made_with("numpy", "SimpleITK"), "normalised by": ways_measured})


if __name__ == "__main__":
    main()
