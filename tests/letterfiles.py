"""Small downloads of EMNIST and of FEMNIST as LEAF makes it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
from digitfiles import idx

from data_prep.emnist import CLASSES


def letters(n: int, seed: int = 0) -> np.ndarray:
    """Upright images (n, 28, 28), all different: a bar on top, noise below."""
    images = np.random.default_rng(seed).integers(0, 30, (n, 28, 28), dtype=np.uint8)
    images[:, 2:5, 4:24] = 255
    return images


def write_idx(folder: Path, form: str = "letters", *, first: int = 1, each: int = 12, packed: bool = True) -> Path:
    """As in gzip.zip: rows and columns exchanged, labels in turn."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (part, count) in enumerate((("train", each), ("test", each // 3))):
        n = len(CLASSES[form]) * count
        images = letters(n, seed).transpose(0, 2, 1)
        labels = (np.arange(n) % len(CLASSES[form]) + first).astype(np.uint8)
        for kind, array in (("images-idx3", np.ascontiguousarray(images)), ("labels-idx1", labels)):
            path = folder / f"emnist-{form}-{part}-{kind}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    return folder


def write_leaf(path: Path, sizes: dict[str, int], *, seed: int = 0, paper: float = 1.0) -> Path:
    """As LEAF: rows of 784 numbers from 0 to 1, paper 1, classes 0 to 61."""
    rng = np.random.default_rng(seed)
    data = {}
    for writer, n in sizes.items():
        ink = letters(n, int(rng.integers(2**31))) / 255
        values = abs(paper - ink).reshape(n, 784).round(6)
        data[writer] = {"x": values.tolist(), "y": [(7 * k) % 62 for k in range(n)]}
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"users": list(sizes), "num_samples": list(sizes.values()), "user_data": data}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
