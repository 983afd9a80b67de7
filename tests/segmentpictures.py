"""Small pictures to segment: bright discs on a coloured ground, with masks, in a folder as a clinic has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from data_prep.own_scans import prepare_own

TASK = """
name: discs
kind: segmentation
dataset: discs
sites: [A, B]
classes: [background, disc]
data: {pictures: true, dims: 2, patch: [16, 16], sequences: [red, green, blue], samples_per_case: 4}
network: {name: monai.UNet, options: {channels: [8, 16], strides: [2]}}
loss: {name: monai.DiceCELoss, options: {batch: true}}
optimizer: {name: adam, lr: 0.01}
schedule: {rounds: 2, local_epochs: 1, batch_size: 4, precision: fp32}
"""
COLOURS = ("red", "green", "blue")


def disc(seed: int, *, size: tuple[int, int] = (24, 32)) -> tuple[np.ndarray, np.ndarray]:
    """Colours (rows, columns, 3) uint8, and whether each pixel is of the disc (rows, columns)."""
    rng = np.random.default_rng(seed)
    rows, columns = size
    y, x = np.mgrid[:rows, :columns]
    inside = (y - rng.uniform(0.3, 0.5) * rows) ** 2 + (x - rng.uniform(0.3, 0.7) * columns) ** 2 < (rows / 4.5) ** 2
    ground = np.array([90, 60, 40]) + rng.normal(0, 8, (rows, columns, 3))
    picture = np.where(inside[..., None], ground + np.array([90, 60, 20]), ground)
    return np.clip(picture, 0, 255).astype(np.uint8), inside


def write_discs(folder: Path, *, cases: int = 6, seed: int = 0, grey: bool = False, suffix: str = ".png") -> Path:
    """``images`` and ``masks`` of so many cases below a folder, which is returned."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for number in range(cases):
        picture, inside = disc(100 * seed + number)
        image = Image.fromarray(picture)
        (image.convert("L") if grey else image).save(folder / "images" / f"p{number}{suffix}")
        Image.fromarray(np.uint8(255) * inside).save(folder / "masks" / f"p{number}.png")
    return folder


def prepare_discs(folder: Path, root: Path, site: str = "A", *, cases: int = 6, seed: int = 0) -> Path:
    """A prepared site of colour pictures, whose pictures are written into ``folder``."""
    source = write_discs(folder, cases=cases, seed=seed)
    return prepare_own(
        None, None, site, root, dataset="discs", source=source, classes=("background", "disc"), wanted=COLOURS
    )
