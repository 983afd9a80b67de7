r"""Whether what a guarantee promises is kept, in 1,000 simulated draws of each federation.

    python benchmarks/guarantee.py --out benchmarks/results/guarantee.json

The figures go to FILE.json and, for people, to FILE.md.

**A case.** The network's logits of a structure's voxels are normal with deviation 1.5 around the case's own mean. Case
means are normal with deviation 1 around that of their site, and in 3 of 100 cases lower by 6: the structure is all but
lost. So a case's risk curve has a formula, and the expected risk of a site too. Around the structure lies three times
as much tissue, with logits of mean -3 and deviation 2: how much of it is in an outline says how wide that is.

**A federation.** 4, 8, 12 or 20 sites of 5 to 200 cases (their logarithm is uniform). Sites' means are normal around
2.5 with the given deviation, the shift. Forty federations of each kind, and of each 25 draws of its cases.

**Three ways to set levels.** Pooled: one level from the cases of all sites. Local: conformal risk control on a site's
own. Shrunk: that of `fedshift.tasks.evaluation.guarantee`. A site is *missed* if its expected share, the mean over the
25 draws, is more than one point above the promised one; *covered* counts draws of sites that get a level at all.

**Hospitals that took no part** come from the same distribution: 25 for each draw. **Selection**: of ten models that are
equally good, and err in other cases, that is taken which misses least at 0.5 on the very cases that set levels.
"""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import frame
import numpy as np
from scipy.special import ndtr

from fedshift.schema.guarantee import LEVELS
from fedshift.tasks.evaluation.guarantee import Sample, at_most, controlled, prior, shrunk
from fedshift.tasks.evaluation.spread import FEWEST

ALPHA, TOLERATED = 0.1, 0.01
LOGITS = np.log(np.array(LEVELS) / (1 - np.array(LEVELS)))
MEAN, VOXELS, CASES, LOST, LOWER = 2.5, 1.5, 1.0, 0.03, 6.0
AROUND = 3 * ndtr((-3 - LOGITS) / 2)
"""Of the tissue around a structure what is at or above each level, in volumes of the structure."""
SIZES, SITES, SHIFTS = (5, 200), (4, 8, 12, 20), (0.0, 0.5, 1.0)
FEDERATIONS, NEW, MODELS = 40, 25, 10
WAYS = ("pooled", "local", "shrunk")


def main() -> None:
    parser = frame.parser(__doc__, draws=1000, seed=0)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    args = parser.parse_args()
    started = time.monotonic()
    repeats = math.ceil(args.draws / FEDERATIONS)
    settings = [(sites, shift) for sites in SITES for shift in SHIFTS]
    content: dict[str, Any] = {"command": shlex.join(["python", *sys.argv]), "alpha": ALPHA, "draws": args.draws}
    content["sites"] = [drawn(sites, shift, repeats, args.seed) for sites, shift in settings]
    content["newcomers"] = [newcomers(sites, shift, args.draws, args.seed) for sites in (12, 20) for shift in SHIFTS]
    content["selection"] = [selection(n, args.draws, args.seed) for n in (10, 20, 50, 200)]
    content |= {"seconds": round(time.monotonic() - started), **frame.made_with("numpy")}
    frame.write(args.out, content, frame.page("guarantee", ways=WAYS, **content))


# --- what is simulated --------------------------------------------------------------------------------


def curves(n: int, mean: float, rng: np.random.Generator) -> np.ndarray:
    """Risk curves of cases of a site, (n, levels)."""
    means = rng.normal(mean, CASES, n) - LOWER * (rng.random(n) < LOST)
    return np.asarray(ndtr((LOGITS - means[:, None]) / VOXELS))


def expected(mean: float) -> np.ndarray:
    """The expected risk of a site at each level."""
    deviation = math.hypot(VOXELS, CASES)
    usual, lost = (ndtr((LOGITS - mean + lower) / deviation) for lower in (0.0, LOWER))
    return np.asarray((1 - LOST) * usual + LOST * lost)


def sample(n: int, mean: float, rng: np.random.Generator) -> Sample:
    cases = curves(n, mean, rng)
    return Sample(n, cases.mean(0), cases.var(0, ddof=1) if n >= FEWEST else None)


def sizes(number: int, rng: np.random.Generator) -> list[int]:
    low, high = np.log(SIZES)
    drawn_sizes: list[int] = np.rint(np.exp(rng.uniform(low, high, number))).astype(int).tolist()
    return drawn_sizes


# --- sites --------------------------------------------------------------------------------------------


def drawn(number: int, shift: float, repeats: int, seed: int) -> dict[str, Any]:
    """Risks of sites that took part: their mean, how many are missed, how wide the outlines are."""
    rng = np.random.default_rng([seed, number, round(10 * shift)])
    levels: dict[str, list[np.ndarray]] = {way: [] for way in WAYS}
    risks: dict[str, list[np.ndarray]] = {way: [] for way in WAYS}
    limits: list[float] = []
    for _ in range(FEDERATIONS):
        means, cases = rng.normal(MEAN, shift, number), sizes(number, rng)
        truth = np.stack([expected(mean) for mean in means])
        of_federation = {way: np.full((repeats, number), -1) for way in WAYS}
        for row in range(repeats):
            sites = [sample(n, mean, rng) for n, mean in zip(cases, means, strict=True)]
            of_federation["pooled"][row] = _number(controlled(_pooled(sites), ALPHA))
            for k, site in enumerate(sites):
                of_federation["local"][row, k] = _number(controlled(site, ALPHA))
                others = shrunk(site, prior([*sites[:k], *sites[k + 1 :]], ALPHA))
                level = controlled(site, ALPHA, others)
                of_federation["shrunk"][row, k] = _number(level)
                if level is not None:
                    limits.append(at_most(site, ALPHA, others, level))
        for way, chosen in of_federation.items():
            levels[way].append(chosen)
            risks[way].append(np.where(chosen < 0, np.nan, truth[np.arange(number), chosen]))
    ways = {way: _summed(np.concatenate(levels[way], 1), np.concatenate(risks[way], 1)) for way in WAYS}
    return {"sites": number, "shift": shift, "ways": ways, "at_most": round(float(np.mean(limits)), 4)}


def _number(level: int | None) -> int:
    return -1 if level is None else level


def _pooled(sites: Sequence[Sample]) -> Sample:
    total = sum(site.n for site in sites)
    return Sample(total, np.sum([site.n * site.risk for site in sites], axis=0) / total)


def _summed(levels: np.ndarray, risks: np.ndarray) -> dict[str, float]:
    """Of levels and risks (draws, sites), both of sites that get a level."""
    covered = levels >= 0
    ever = covered.any(0)
    of_sites = np.nanmean(risks[:, ever], axis=0)
    around = np.where(covered, AROUND[levels], np.nan)
    return {
        "covered": round(float(covered.mean()), 4),
        "risk": round(float(np.nanmean(risks)), 4),
        "missed": round(float((of_sites > ALPHA + TOLERATED).mean()), 4),
        "worst": round(float(of_sites.max()), 4),
        "around": round(float(np.nanmean(around)), 4),
    }


# --- hospitals that took no part, and selection -------------------------------------------------------


def newcomers(number: int, shift: float, draws: int, seed: int) -> dict[str, Any]:
    """Risks at new hospitals with the level that counts sites and no cases."""
    rng = np.random.default_rng([seed, number, round(10 * shift), 1])
    risks: list[np.ndarray] = []
    for _ in range(draws):
        sites = [sample(n, rng.normal(MEAN, shift), rng) for n in sizes(number, rng)]
        level = controlled(Sample(number, np.mean([site.risk for site in sites], axis=0)), ALPHA)
        if level is not None:
            risks.append(np.array([expected(rng.normal(MEAN, shift))[level] for _ in range(NEW)]))
    every = np.concatenate(risks) if risks else np.array([np.nan])
    return {
        "sites": number,
        "shift": shift,
        "covered": round(len(risks) / draws, 4),
        "risk": round(float(every.mean()), 4),
        "beyond": round(float((every > ALPHA + TOLERATED).mean()), 4),
    }


def selection(n: int, draws: int, seed: int) -> dict[str, float]:
    """Risk at one site with the level of any model, and of the one of several that misses least on the same cases."""
    rng = np.random.default_rng([seed, n, 2])
    truth, half = expected(MEAN), int(np.searchsorted(LOGITS, 0.0))
    risks: dict[str, list[float]] = {"any": [], "best": []}
    for _ in range(draws):
        models = [curves(n, MEAN, rng).mean(0) for _ in range(MODELS)]
        for name, risk in (("any", models[0]), ("best", min(models, key=lambda risk: float(risk[half])))):
            level = controlled(Sample(n, risk), ALPHA)
            if level is not None:
                risks[name].append(float(truth[level]))
    return {"cases": n, **{name: round(float(np.mean(values)), 4) for name, values in risks.items()}}


if __name__ == "__main__":
    main()
