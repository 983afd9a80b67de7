"""Prepared sites for surveys: small volumes with true geometry, several classes and sequences, and known numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from fedshift.schema.manifest import Case, Manifest, Split

CLASSES = ("background", "core", "rim")
SHAPE = (6, 12, 10)
DIRECTION = (-1.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 1.0)
"""RAS in ITK's world, so that reading turns nothing."""


def voxels(seed: int, *, gain: float = 1.0, shape: Sequence[int] = SHAPE, sequences: int = 1) -> list[np.ndarray]:
    """A case's images, and last its labels: a core in a rim, brighter than what is around them."""
    rng = np.random.default_rng(seed)
    labels = np.zeros(shape, np.uint8)
    labels[1:-1, 2:-2, 2:-2] = 2
    labels[2:-2, 4:-4, 4:-4] = 1
    images = [
        (gain * (rng.normal(100, 20, shape) + 60 * (labels == 1) - 30 * number * (labels == 2))).astype(np.float32)
        for number in range(sequences)
    ]
    return [*images, labels]


def survey_site(
    root: Path,
    site: str,
    cases: Sequence[int],
    *,
    dataset: str = "organ",
    gain: float = 1.0,
    spacing: tuple[float, float, float] = (3.0, 0.8, 0.8),
    shape: Sequence[int] = SHAPE,
    sequences: tuple[str, ...] = (),
    annotated: tuple[str, ...] | None = None,
    splits: Sequence[Split] = (),
    preparation: dict[str, object] | None = None,
    lacking: Mapping[int, Sequence[str]] | None = None,
    placeholders: Sequence[int] = (),
    ids: Sequence[str] = (),
) -> Path:
    """A prepared site with a case for each seed; returns its folder.

    ``lacking``: classes that the case of a seed does not have; ``placeholders``: seeds whose voxel size is not known.
    """
    folder = root / dataset / site
    (folder / "volumes").mkdir(parents=True)
    records = []
    for number, seed in enumerate(cases):
        *images, labels = voxels(seed, gain=gain, shape=shape, sequences=max(1, len(sequences)))
        for absent in (lacking or {}).get(seed, ()):
            labels[labels == CLASSES.index(absent)] = 0
        size = (1.0, 1.0, 1.0) if seed in placeholders else spacing
        name = ids[number] if ids else f"Patient{seed:03d}"
        for index, image in enumerate(images):
            ending = f"_{index:04d}" if len(sequences) > 1 else ""
            _write(image, folder / "volumes" / f"{name}{ending}.nii.gz", size)
        _write(labels, folder / "volumes" / f"{name}_mask.nii.gz", size)
        records.append(
            Case(
                id=name,
                sha256_image=f"image-{seed}",
                sha256_label=f"label-{seed}",
                split=splits[number] if splits else "train",
                shape=tuple(shape),  # type: ignore[arg-type]
                spacing=size,
                direction=DIRECTION,
                array="arrays",
                offset=0,
            )
        )
    Manifest(
        dataset=dataset,
        site=site,
        kind="phantom",
        preparation=preparation or {},
        classes=CLASSES,
        sequences=sequences,
        annotated=annotated,
        cases=tuple(records),
        licence="none",
        citation="none",
    ).write(folder)
    return folder


def _write(array: np.ndarray, path: Path, spacing: tuple[float, float, float]) -> None:
    image = sitk.GetImageFromArray(array)
    image.SetSpacing(spacing[::-1])
    image.SetDirection(DIRECTION)
    sitk.WriteImage(image, str(path))
