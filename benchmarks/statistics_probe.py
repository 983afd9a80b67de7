r"""What FedRDN's and FedFA's statistics give away at small sites, and what noise on them costs.

    python benchmarks/statistics_probe.py --prostate ROOT/prostate --digits ROOT/digits \
        --out benchmarks/results/statistics_probe.json

ROOT is where ``fedshift data prepare prostate`` and ``fedshift data prepare digits`` have put their sites. The figures
go to FILE.json and, for people, to FILE.md.

**Membership.** The attacker is the server: it sees what a site sent, knows how many cases and slices the site has, has
the images of a candidate, and some cases of others to know how people differ. It asks: was the candidate among the
site's cases? It takes the likelihood ratio of normal distributions, for FedFA in the leading principal components.
Sites are drawn at random from all cases; the figure is the area under the ROC curve over many such draws, 0.5 for a
guess and 1 for certainty. Of FedFA the probe takes the statistics as if the network did not move during the round, and
as plain means (p = 1, momentum 0), which is more than its default lets out in a round; its network was trained a little
on everybody. No attack on a message with this noise can exceed Φ(μ/√2), which is given below them.

**Reading.** How far the sent brightness (contrast) is from that of a case of the site, in deviations over patients.

**Cost.** Accuracy of FedRDN on three sets of digits in one process, where every image is a case, with the noise of a
site's policy; and of FedAvg with noise on the network.
"""

from __future__ import annotations

import math
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import frame
import numpy as np
import torch
from torch.nn import functional

from fedshift.data.arrays import open_images
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.federation.site.privacy.accounting import epsilon_of, noise_multiplier
from fedshift.methods.fedfa import feature_statistics
from fedshift.methods.shared.image_statistics import image_statistics
from fedshift.schema.errors import QuorumError
from fedshift.schema.manifest import read_manifest
from fedshift.schema.policy import Policy
from fedshift.tasks.losses import ce_dice_loss
from fedshift.tasks.networks.unet import UNet

DELTA = 1e-5
EPSILONS = (None, 10.0, 3.0, 1.0)
SITES = ("mnist", "mnistm", "usps")
COMPONENTS = 8
SIDE = 64
"""Pixels to which slices are reduced."""


def main() -> None:
    parser = frame.parser(__doc__)
    parser.add_argument("--prostate", type=Path, required=True, help="folder of prepared prostate sites")
    parser.add_argument("--digits", type=Path, required=True, help="folder of prepared sites mnist, mnistm and usps")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--trials", type=int, default=2000, help="sites that are drawn")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    patients, counts, slices = prostate(args.prostate)
    pictures = digits(args.digits)
    ones = np.ones(len(pictures), int)
    features = features_of(slices, steps=60)
    content: dict[str, Any] = {
        "command": shlex.join(["python", *sys.argv]),
        "delta": DELTA,
        "patients": len(patients),
        "digits": len(pictures),
        "membership": {
            "fedrdn, prostate": membership(patients, counts, (1, 3, 10), args.trials, images_noise),
            "fedrdn, digits": membership(pictures, ones, (1, 3, 10, 30, 100), args.trials, images_noise),
            "fedfa, prostate": membership(features, counts, (1, 3, 10), args.trials, features_noise),
        },
        "reading": {
            "prostate": reading(patients, counts, (1, 3, 10), args.trials),
            "digits": reading(pictures, ones, (1, 3, 10, 30, 100), args.trials),
        },
        "cost": cost(args.digits, rounds=args.rounds, seeds=range(args.seeds)),
    }
    content["seconds"] = round(time.monotonic() - started)
    frame.write(args.out, content, page(content))


# --- what a case is -----------------------------------------------------------------------------------


def prostate(root: Path) -> tuple[np.ndarray, np.ndarray, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Of every patient: mean brightness and contrast of the slices (N, 2), their number (N,), slices and masks."""
    vectors, counts, slices = [], [], []
    for folder in sorted(path.parent for path in root.glob("*/manifest.json")):
        size = max(int(path.name) for path in (folder / "arrays").iterdir())
        images, labels = (np.load(folder / "arrays" / str(size) / f"{n}.npy", "r") for n in ("images", "labels"))
        for case in read_manifest(folder).cases:
            part = slice(case.offset, case.offset + case.shape[0])
            x = torch.from_numpy(images[part].copy()).float()[:, None] / 255
            y = torch.from_numpy(labels[part].copy()).float()[:, None]
            vectors.append(torch.cat([s.mean(0) for s in image_statistics(x)]).numpy())
            counts.append(len(x))
            slices.append((functional.adaptive_avg_pool2d(x, SIDE), functional.adaptive_max_pool2d(y, SIDE)[:, 0]))
    return np.stack(vectors), np.array(counts), slices


def digits(root: Path) -> np.ndarray:
    """Mean and deviation of every image of MNIST, (N, 2)."""
    images = open_images(root / "mnist", size=32, channels=3).images[:, :1]  # grey: three equal channels
    return torch.cat(image_statistics(torch.from_numpy(np.array(images)).float() / 255), 1).numpy()


def features_of(slices: Sequence[tuple[torch.Tensor, torch.Tensor]], *, steps: int) -> np.ndarray:
    """FedFA's statistics of every patient, at all stages of a U-Net that was trained a little on all of them."""
    torch.manual_seed(0)
    net = UNet(in_channels=1, features=8)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    x, y = (torch.cat(parts) for parts in zip(*slices, strict=True))
    for _ in range(steps):
        chosen = torch.randint(len(x), (16,))
        optimizer.zero_grad()
        ce_dice_loss(net(x[chosen]), y[chosen].long()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    maps: list[torch.Tensor] = []

    def look(features: torch.Tensor) -> torch.Tensor:
        maps.extend(part.mean(0) for part in feature_statistics(features, eps=1e-6, unbiased=False))
        return features

    for stage in net.stages:
        stage.hook(look)
    vectors = []
    with torch.no_grad():
        for part, _ in slices:
            maps.clear()
            net.eval()(part)
            vectors.append(torch.cat(maps).double().numpy())
    return np.stack(vectors)


# --- attacks ------------------------------------------------------------------------------------------


def images_noise(epsilon: float, vectors: np.ndarray, counts: np.ndarray, all_counts: np.ndarray) -> np.ndarray:
    """Deviation of the noise on (brightness, contrast), (2,), of a site whose cases have ``counts`` images.

    All three channels say the same, so who reads them averages the noise of three.
    """
    scale = noise_multiplier(epsilon, DELTA, 1) * counts.max() / counts.sum() * math.sqrt(6) / math.sqrt(3)
    return np.array([scale, scale / 2])


def features_noise(epsilon: float, vectors: np.ndarray, counts: np.ndarray, all_counts: np.ndarray) -> np.ndarray:
    """Deviation of the noise on every statistic where ``clip`` is how far patients are from their mean, typically."""
    clip = float(np.median(np.linalg.norm(vectors - vectors.mean(0), axis=1)))
    return np.full(vectors.shape[1], 2 * clip * noise_multiplier(epsilon, DELTA, 1))


def membership(
    vectors: np.ndarray, counts: np.ndarray, sizes: Sequence[int], trials: int, noise: Any
) -> dict[str, Any]:
    """Area under the curve by number of cases and epsilon."""
    return {
        str(n): {str(epsilon): area(vectors, counts, n, trials, epsilon, noise) for epsilon in EPSILONS} for n in sizes
    }


def area(vectors: np.ndarray, counts: np.ndarray, n: int, trials: int, epsilon: float | None, noise: Any) -> float:
    """Area under the ROC curve of telling members from others."""
    rng = np.random.default_rng([n, int(1000 * (epsilon or 0))])
    members, others = [], []
    for _ in range(trials):
        order = rng.permutation(len(vectors))[: n + 1 + 500]
        inside, outside, rest = order[:n], order[n], order[n + 1 :]
        share = counts[inside] / counts[inside].sum()
        deviation = np.zeros(vectors.shape[1])
        if epsilon is not None:
            deviation = noise(epsilon, vectors, counts[inside], counts)
        sent = share @ vectors[inside] + deviation * rng.standard_normal(len(deviation))
        basis = principal(vectors[rest])
        known, heard = vectors[rest] @ basis, sent @ basis
        spread = np.diag(deviation**2) @ basis
        covariance = np.cov(known.T) + 1e-12 * np.eye(basis.shape[1]) * known.var(0).max()
        hidden = basis.T @ spread
        for candidate, scores in ((inside[0], members), (outside, others)):
            part = min(counts[candidate] / counts[inside].sum(), 1.0) if n > 1 else 1.0
            shifted = part * (vectors[candidate] @ basis) + (1 - part) * known.mean(0)
            narrow = (1 - part) ** 2 * covariance / max(n - 1, 1) + hidden + 1e-9 * covariance
            scores.append(density(heard, shifted, narrow) - density(heard, known.mean(0), covariance / n + hidden))
    merged = np.argsort(np.argsort(np.concatenate([members, others])))[:trials]
    return round(float((merged.sum() - trials * (trials - 1) / 2) / trials**2), 3)


def principal(vectors: np.ndarray) -> np.ndarray:
    """The leading directions, (d, at most COMPONENTS)."""
    if vectors.shape[1] <= COMPONENTS:
        return np.eye(vectors.shape[1])
    directions: np.ndarray = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)[2][:COMPONENTS].T
    return directions


def density(x: np.ndarray, centre: np.ndarray, covariance: np.ndarray) -> float:
    """Logarithm of a normal density, but for a constant."""
    difference = x - centre
    return float(-difference @ np.linalg.solve(covariance, difference) / 2 - np.linalg.slogdet(covariance)[1] / 2)


def reading(vectors: np.ndarray, counts: np.ndarray, sizes: Sequence[int], trials: int) -> dict[str, list[float]]:
    """Root mean square error of taking what was sent for a case's own, in deviations: [brightness, contrast].

    The last entry is that of taking everybody's mean.
    """
    rng = np.random.default_rng(0)
    deviation = vectors.std(0)
    result = {}
    for n in sizes:
        errors = []
        for _ in range(trials):
            inside = rng.permutation(len(vectors))[:n]
            share = counts[inside] / counts[inside].sum()
            errors.append((share @ vectors[inside] - vectors[inside[0]]) / deviation)
        result[str(n)] = [round(float(e), 2) for e in np.sqrt(np.square(errors).mean(0))]
    return {**result, "without": [1.0, 1.0]}


# --- cost ---------------------------------------------------------------------------------------------


def cost(root: Path, *, rounds: int, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Mean accuracy on the test parts of the last model."""
    rows: list[tuple[str, int, dict[str, Any] | None]] = []
    for images in (300, 30):
        rows.append(("fedavg", images, None))
        rows += [
            ("fedrdn", images, None if e is None else {"statistics": {"epsilon": e, "delta": DELTA}}) for e in EPSILONS
        ]
    rows.append(("fedavg", 300, {"weights": {"epsilon": 100.0, "delta": DELTA, "clip": 0.5}}))
    rows += [("fedavg", 300, {"weights": {"multiplier": z, "delta": DELTA, "clip": 0.5}}) for z in (0.02, 0.005)]
    result = []
    for method, images, rules in rows:
        row: dict[str, Any] = {"method": method, "images": images, "privacy": rules, "accuracy": None, "sd": None}
        for options in (rules or {}).values():
            z = options.get("multiplier")
            row["epsilon"] = options["epsilon"] if z is None else round(epsilon_of(DELTA, math.sqrt(rounds) / z))
        try:
            scores = [accuracy(root, method, images, rules, rounds=rounds, seed=seed) for seed in seeds]
            row["accuracy"] = round(mean(scores), 3)
            row["sd"] = round(stdev(scores), 3) if len(scores) > 1 else None
        except QuorumError as error:
            row["ended"] = "the training loss is not finite" if "training loss" in str(error) else str(error)
        print(row, flush=True)
        result.append(row)
    return result


def accuracy(root: Path, method: str, images: int, rules: Mapping[str, Any] | None, *, rounds: int, seed: int) -> float:
    """One run of three sites."""
    options = [
        *("network.name=lenet5", "network.options={size: 32}", "schedule.precision=fp32"),
        *(f"schedule.rounds={rounds}", "schedule.local_steps=10", "schedule.batch_size=30"),
        *(f"data.images={images}", "optimizer.lr=0.05", "optimizer.momentum=0.5"),
        *("federation.max_update_norm=1e6", "federation.max_norm_ratio=null"),
    ]
    job = resolve("digits", method, sites=SITES, options=options, seed=seed)
    policy = {} if rules is None else dict.fromkeys(SITES, Policy.parse(rules, where="the probe"))
    with tempfile.TemporaryDirectory() as folder:
        finished = run_in_process(job, {site: root / site for site in SITES}, Path(folder), privacy=policy)
    assert finished.results.final is not None
    return mean(finished.results.final.last.sites[site]["test"]["accuracy"] for site in SITES)


def page(content: Mapping[str, Any]) -> str:
    """Markdown."""
    epsilons = [epsilon for epsilon in EPSILONS if epsilon is not None]
    names = ["no noise", *(f"ε = {epsilon:g}" for epsilon in epsilons)]
    bounds = [math.erfc(-1 / (2 * noise_multiplier(epsilon, DELTA, 1))) / 2 for epsilon in epsilons]
    return frame.page("statistics_probe", names=names, bounds=bounds, **content)


if __name__ == "__main__":
    main()
