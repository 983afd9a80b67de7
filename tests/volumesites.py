"""Prepared sites with real NIfTI volumes in 3D: several classes and sequences, true spacing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from fedshift.data.prepared import FOLDER, image_files, mask_file
from fedshift.federation.resolve import resolve
from fedshift.schema.codes import WITHOUT_STRUCTURE
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import Manifest

BLOBS = """
name: blobs
kind: segmentation
dataset: blobs
sites: [A, B]
classes: [background, left, right]
data: {dims: 2, patch: [16, 16], samples_per_case: 6}
network: {name: monai.UNet, options: {channels: [8, 16], strides: [2]}}
loss: {name: monai.DiceCELoss, options: {batch: true}}
optimizer: {name: adam, lr: 0.01}
schedule: {rounds: 3, local_epochs: 2, batch_size: 4, precision: fp32}
"""
"""A task that learns `make_volume_site`'s cases in seconds."""
CLASSES = ("background", "left", "right")
TASK = """
name: blobs
kind: segmentation
dataset: blobs
sites: [A, B]
classes: [background, left, right]
data: %s
network:
  name: monai.DynUNet
  options: {kernel_size: [3, 3, 3], strides: [1, 2, 2], upsample_kernel_size: [2, 2], filters: [8, 16, 16]}
loss: ce_dice
optimizer: {name: adam, lr: 0.01}
schedule: %s
"""


def write_task(path: Path, *, data: str, schedule: str) -> Path:
    """A task file for the sites of `make_volume_site`; returns ``path``."""
    path.write_text(TASK % (data, schedule), encoding="utf-8")
    return path


def blob_job(folder: Path, *options: str, methods: str = "fedavg") -> JobSpec:
    """Methods on `BLOBS`, whose file is written into ``folder``."""
    (folder / "blobs.yaml").write_text(BLOBS, encoding="utf-8")
    return resolve(str(folder / "blobs.yaml"), methods, options=options, seed=1)


def make_volume_site(
    root: Path,
    site: str,
    *,
    cases: int = 4,
    val: int = 1,
    test: int = 1,
    ids: Sequence[str] = (),
    shape: tuple[int, int, int] = (12, 20, 24),
    spacing: tuple[float, float, float] = (2.0, 1.0, 1.0),
    sequences: Sequence[str] = (),
    annotated: Sequence[str] | None = None,
    empty: Sequence[int] = (),
    gain: float = 1.0,
    offset: float = 0.0,
    seed: int = 0,
) -> Path:
    """Two bright ellipsoids, one brighter than the other, on noise; ``shape`` and ``spacing`` along z, y, x.

    Without ``ids`` a case is named by its number. Each sequence has another contrast. Classes that are not
    ``annotated`` are missing from the masks. The cases numbered in ``empty`` show nothing but noise, and have no mask.
    """
    folder = root / "blobs" / site
    (folder / FOLDER).mkdir(parents=True)
    rng = np.random.default_rng([seed, sum(site.encode())])
    splits = ["train"] * (cases - val - test) + ["val"] * val + ["test"] * test
    records = []
    manifest = Manifest.model_construct(sequences=tuple(sequences))
    for number in range(cases):
        labels = ellipsoids(shape, rng) * (number not in empty)
        case = ids[number] if ids else f"case{number:02d}"
        made = []
        for k, path in enumerate(image_files(folder, manifest, case)):
            levels = np.array([0.0, 60.0 + 40 * k, 100.0 - 30 * k])
            image = gain * (50 + levels[labels] + rng.normal(0, 8, shape)) + offset
            made.append(image.astype(np.float32))
            write(path, made[-1], spacing)
        if annotated is not None:
            labels = np.where(np.isin(labels, [CLASSES.index(name) for name in annotated]), labels, 0)
        write(mask_file(folder, case), labels.astype(np.uint8), spacing)
        records.append(
            {
                "id": case,
                "sha256_image": hashlib.sha256(np.stack(made).tobytes()).hexdigest(),
                "sha256_label": hashlib.sha256(labels.tobytes()).hexdigest(),
                "split": splits[number],
                "shape": shape,
                "spacing": spacing,
                "direction": (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0),
                "array": "arrays",
                "offset": number * shape[0],
            }
        )
    content = {
        "schema": 1,
        "dataset": "blobs",
        "site": site,
        "kind": "phantom",
        "preparation": {"source": "made by the tests", **({WITHOUT_STRUCTURE: len(empty)} if empty else {})},
        "classes": CLASSES,
        "cases": records,
        "licence": "Apache-2.0",
        "citation": "none",
    }
    if sequences:
        content["sequences"] = tuple(sequences)
    if annotated is not None:
        content["annotated"] = tuple(annotated)
    Manifest.parse(content, where="test site").write(folder)
    return folder


def ellipsoids(shape: tuple[int, int, int], rng: np.random.Generator) -> np.ndarray:
    """Classes (z, y, x): 1 in the lower half of x, 2 in the upper."""
    grid = np.stack(np.meshgrid(*(np.arange(n) / n for n in shape), indexing="ij"))
    labels = np.zeros(shape, np.int64)
    for number, x in ((1, 0.28), (2, 0.72)):
        centre = np.array([0.5, 0.5, x]) + rng.uniform(-0.06, 0.06, 3)
        radius = np.array([0.3, 0.25, 0.16]) * rng.uniform(0.85, 1.15, 3)
        labels[(((grid.T - centre) / radius) ** 2).sum(-1).T < 1] = number
    return labels


def write(path: Path, voxels: np.ndarray, spacing: tuple[float, float, float]) -> None:
    """A NIfTI file whose axes are RAS."""
    image = sitk.GetImageFromArray(voxels)
    image.SetSpacing(spacing[::-1])
    image.SetDirection((-1, 0, 0, 0, -1, 0, 0, 0, 1))
    sitk.WriteImage(image, str(path))
