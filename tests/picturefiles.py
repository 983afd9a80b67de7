"""Small trees of pictures in the layout of the public data sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from data_prep.pictures import PictureSet

TREE = PictureSet(
    dataset="things",
    name="Things",
    sites=("here", "there"),
    classes=("cup", "pen"),
    described="the download is described at nowhere",
    licence="none",
    citation="none",
)


def pixels(seed: int, *, rows: int = 20, columns: int = 24, channels: int = 3) -> np.ndarray:
    """Smooth colours, so that no compression changes them much."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (3, 3, channels), dtype=np.uint8)
    layers = [
        Image.fromarray(coarse[..., k]).resize((columns, rows), Image.Resampling.BICUBIC) for k in range(channels)
    ]
    return np.stack([np.asarray(layer) for layer in layers], axis=-1)


def write_picture(path: Path, seed: int) -> Path:
    """An RGB picture in the format of its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(seed)).save(path)
    return path


def write_tree(
    root: Path, sites: Sequence[str], classes: Sequence[str], *, each: int = 5, suffix: str = ".png"
) -> Path:
    """``each`` pictures, all different, in every class of every site."""
    for s, site in enumerate(sites):
        for c, label in enumerate(classes):
            for k in range(each):
                write_picture(root / site / label / f"frame_{k + 1:04d}{suffix}", 10_000 * s + 100 * c + k)
    return root
