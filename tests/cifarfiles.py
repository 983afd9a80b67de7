"""Small downloads of CIFAR-10 for Python, unpacked and as the archive."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from picklefiles import python2_pickle

from data_prep.cifar10 import FOLDER, TAR, TEST, TRAIN


def batch(seed: int, n: int = 40) -> dict[bytes, Any]:
    """A batch as Python 2 pickled it: the classes in turn, rows of red, green, blue."""
    pixels = np.random.default_rng(seed).integers(0, 256, (n, 3072), dtype=np.uint8)
    names = [f"image_{seed}_{k}.png".encode() for k in range(n)]
    return {b"batch_label": b"x", b"labels": [k % 10 for k in range(n)], b"data": pixels, b"filenames": names}


def write_cifar(root: Path, **changes: bytes) -> Path:
    """The unpacked folder, 40 images a batch, numbered 0 to 5; ``changes`` are the contents of other batches."""
    folder = root / FOLDER
    folder.mkdir(parents=True)
    for number, name in enumerate((*TRAIN, TEST)):
        (folder / name).write_bytes(changes.get(name, python2_pickle(batch(number))))
    (folder / "batches.meta").write_bytes(python2_pickle({b"label_names": [b"airplane"]}))
    (folder / "readme.html").write_text("<meta>", encoding="utf-8")
    return root


def write_tar(root: Path, inner: Path, prefix: str = "") -> Path:
    """The archive of the folder in ``inner``."""
    root.mkdir(exist_ok=True)
    with tarfile.open(root / TAR, "w:gz") as archive:
        archive.add(inner / FOLDER, f"{prefix}{FOLDER}")
    return root
