"""Volumes to classify with a table of their labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import SimpleITK as sitk


def write_volume(path: Path, seed: int, *, spacing: tuple[float, float, float] = (1, 1, 2), size: int = 16) -> Path:
    """A ball in noise; ``spacing`` along x, y, z."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    shape = (8, size, size)
    place = np.indices(shape) - np.array(shape)[:, None, None, None] / 2
    voxels = rng.integers(1, 50, shape) + 200 * ((place**2).sum(0) < 12)
    image = sitk.GetImageFromArray(voxels.astype(np.int16))
    image.SetSpacing(spacing)
    image.SetOrigin((-spacing[0] * size / 2,) * 2 + (0.0,))
    sitk.WriteImage(image, str(path))
    return path


def write_table(folder: Path, n: int = 10) -> Path:
    lines = ["id,file pre,file post,label,patient"]
    for k in range(n):
        write_volume(folder / f"p{k}" / "pre.nii.gz", k)
        write_volume(folder / f"p{k}" / "post.nii.gz", 100 + k, spacing=(0.5, 0.5, 2), size=32)
        lines.append(f"p{k},p{k}/pre.nii.gz,p{k}/post.nii.gz,{'Benign' if k % 2 else 'malignant'},S{k // 2}")
    (folder / "labels.csv").write_text("\n".join(lines), encoding="utf-8")
    return folder / "labels.csv"
