"""Does the preset ``strong`` change images as often and as far as nnU-Net's own augmentation does?

    make nnunet
    python benchmarks/nnunet_augmentation.py

One made-up image is augmented many times by both, each change alone and all together, in 2D and in 3D. Of every patch
something is measured that shows the numbers that were drawn: the angle and the scale from how ramps lie afterwards, the
factor of brightness and of contrast from deviations, the noise from the difference, a blur and a loss of resolution
from what is left of a white texture, a power from the skewness. Their distributions are compared.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frame
import numpy as np
import torch
from nnunet_yardstick import NNUNET, ROOT
from scipy import stats

from fedshift.tasks.augmentation import make_augmentation

BATCH = 100
PATCHES = {"2d": (48, 48), "3d": (24, 24, 24)}
MEASURES: dict[str, str] = {
    "rotate": "angle in degrees",
    "scale": "size of what is shown",
    "noise": "deviation of the difference",
    "blur": "deviation left",
    "brightness": "factor",
    "contrast": "factor",
    "low": "deviation left",
    "inverted": "skewness",
    "gamma": "skewness",
    "mirror": "axes mirrored",
    "all": "deviation",
}
"""Part of the preset, as nnU-Net has it, and what is measured of it."""


def main() -> int:
    """Draw, measure, compare and write."""
    parser = frame.parser(__doc__, draws=2000, seed=0)
    args = parser.parse_args()
    rows = []
    for dims, patch in PATCHES.items():
        image = probe(patch)
        theirs, ours = drawn_by_nnunet(image, patch, args), drawn_by_fedshift(image, patch, args)
        plain = centre(image, patch)
        rows += [
            {"dims": dims, "change": name, "measured": what, **compared(name, plain, ours[name], theirs[name])}
            for name, what in MEASURES.items()
        ]
    record = {
        "command": " ".join(["python benchmarks/nnunet_augmentation.py", *sys.argv[1:]]),
        **frame.made_with("torch"),
        "nnunetv2": "2.8.1",
        "draws": args.draws,
        "rows": rows,
    }
    page = frame.page("nnunet_augmentation", record=record)
    frame.write(frame.RESULTS / "nnunet" / "augmentation.json", record, page)
    print(page)
    return 0


def probe(patch: tuple[int, ...]) -> np.ndarray:
    """Channels: a skewed texture, and a ramp along each axis; with the margin that the preset needs around a patch."""
    augmentation = make_augmentation("strong", dims=len(patch), patch=patch, sequences=1 + len(patch))
    assert augmentation is not None
    shape = tuple(side + more for side, more in zip(patch, augmentation.margin, strict=True))
    texture = np.random.default_rng(0).gamma(2.0, size=shape)
    ramps = np.meshgrid(*(np.arange(side) - (side - 1) / 2 for side in shape), indexing="ij")
    return np.stack([(texture - texture.mean()) / texture.std(), *ramps]).astype(np.float32)


def centre(image: np.ndarray, patch: tuple[int, ...]) -> np.ndarray:
    """The patch in the middle."""
    starts = [(side - length) // 2 for side, length in zip(image.shape[1:], patch, strict=True)]
    return image[(slice(None), *(slice(a, a + length) for a, length in zip(starts, patch, strict=True)))]


def drawn_by_nnunet(image: np.ndarray, patch: tuple[int, ...], args: Any) -> dict[str, np.ndarray]:
    """Patches (draws, C, *patch) by change."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "image.npy", Path(folder) / "drawn.npz"
        np.save(source, image)
        script = ROOT / "benchmarks" / "nnunet_transforms.py"
        words = (source, ",".join(map(str, patch)), args.draws, args.seed, out)
        subprocess.run([str(NNUNET), str(script), *map(str, words)], check=True)
        return dict(np.load(out))


def drawn_by_fedshift(image: np.ndarray, patch: tuple[int, ...], args: Any) -> dict[str, np.ndarray]:
    """The same of the preset ``strong``."""
    batch = torch.from_numpy(image).expand(BATCH, *image.shape)
    labels = torch.zeros((BATCH, *image.shape[1:]), dtype=torch.uint8)
    every = torch.arange(args.draws) + args.seed * args.draws
    patches = {}
    for name in MEASURES:
        only = () if name == "all" else (name,)
        augment = make_augmentation("strong", dims=len(patch), patch=patch, sequences=len(image), only=only)
        assert augment is not None
        patches[name] = np.concatenate(
            [augment(batch[: len(seeds)].clone(), labels[: len(seeds)], seeds=seeds)[0] for seeds in every.split(BATCH)]
        )
    return patches


def compared(name: str, plain: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> dict[str, Any]:
    """How often each changes the patch, percentiles of what is measured where it does, and how far they are apart."""
    measured, shares = [], []
    for patches in (ours, theirs):
        texture = patches[:, 0]
        changed = np.abs(texture - plain[0]).reshape(len(texture), -1).max(1) > 1e-4
        shares.append(float(changed.mean()))
        measured.append(np.array([measure(name)(plain, patch) for patch in patches[changed]]))
    test = stats.ks_2samp(*measured)
    quantiles = [np.quantile(values, (0.05, 0.25, 0.5, 0.75, 0.95)).round(3).tolist() for values in measured]
    return {"shares": shares, "quantiles": quantiles, "distance": float(test.statistic), "p": float(test.pvalue)}


def measure(name: str) -> Callable[[np.ndarray, np.ndarray], float]:
    """What a patch shows of the number that was drawn."""
    if name in ("rotate", "scale", "mirror"):
        return lambda plain, patch: of_moves(name, patch)
    if name == "noise":
        return lambda plain, patch: float((patch[0] - plain[0]).std())
    if name in ("inverted", "gamma"):
        return lambda plain, patch: float(stats.skew(patch[0], axis=None))
    if name == "all":
        return lambda plain, patch: float(patch[0].std())
    return lambda plain, patch: float(patch[0].std() / plain[0].std())


def of_moves(name: str, patch: np.ndarray) -> float:
    """Angle, scale or number of mirrored axes, of how the ramps rise in the middle."""
    dims = len(patch) - 1
    middle = tuple(slice(side // 2 - 3, side // 2 + 3) for side in patch.shape[1:])
    rises = np.array([[np.diff(patch[1 + k][middle], axis=a).mean() for a in range(dims)] for k in range(dims)])
    if name == "mirror":
        return float((np.diag(rises) < 0).sum())
    size = float(np.abs(np.linalg.det(rises))) ** (1 / dims)
    if name == "scale":
        return size
    if dims == 2:
        return float(np.degrees(np.arctan2(rises[0, 1], rises[0, 0])))
    return float(np.degrees(np.arccos(np.clip((np.trace(rises / size) - 1) / 2, -1, 1))))


if __name__ == "__main__":
    raise SystemExit(main())
