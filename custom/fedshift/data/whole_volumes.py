"""Volumes to classify, each cut to one size around its centre: ``arrays/whole_…``, memory-mapped.

They are resampled and normalised as volumes to segment are (`fedshift.data.resampled`), then cropped or padded with 0.
The arrays are derived from ``volumes/`` and may be deleted at any time; they are rebuilt on first use. The folder's
name ends in a hash of the settings and of the site's cases.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedshift.data import blocks
from fedshift.data.arrays import class_labels, rebuilt
from fedshift.data.prepared import image_files, read_images
from fedshift.data.resampled import STANDARD, Preparation
from fedshift.runtime.grids import INNER
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import Manifest, read_manifest

PREFIX = "whole_"
FORMAT = 1  # raised when other voxels come out of the same settings
Centre = Literal["volume", "nonzero"]


@dataclass(frozen=True)
class Cut:
    """How a volume becomes the network's input.

    ``preparation``: spacing and intensities. ``patch``: voxels along z, y, x. ``centre``: that of the volume, or of the
    box around the voxels of its first sequence that are not 0. ``margin``: how many voxels more there are around the
    patch, on each axis in all, for augmentation.
    """

    preparation: Preparation
    patch: tuple[int, int, int]
    centre: Centre = "volume"
    margin: tuple[int, ...] = (0, 0, 0)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a stored volume, along z, y, x."""
        return tuple(side + more for side, more in zip(self.patch, self.margin, strict=True))

    def volume(
        self, voxels: np.ndarray, spacing: Sequence[float] | None, standard: np.ndarray | None = None
    ) -> np.ndarray:
        """The input (S, *shape) float16 of sequences (S, z, y, x) as stored, with voxels of ``spacing`` mm (z, y, x).

        ``standard`` and errors: as of `fedshift.runtime.grids.network_volume`.
        """
        whole = self.preparation.volume(voxels, spacing, standard)
        middle = [0.5] * 3
        if self.centre == "nonzero" and (voxels[0] != 0).any():
            middle = [_middle(voxels[0], axis) for axis in range(3)]
        return cut(whole, self.patch, middle, margin=self.margin)


def _middle(voxels: np.ndarray, axis: int) -> float:
    """The middle of the voxels that are not 0 along an axis, from 0 to 1."""
    others = tuple(other for other in range(3) if other != axis)
    places = np.flatnonzero((voxels != 0).any(axis=others))
    return float((places[0] + places[-1] + 1) / (2 * voxels.shape[axis]))


def cut(
    volume: np.ndarray, patch: Sequence[int], middle: Sequence[float], *, margin: Sequence[int] = (0, 0, 0)
) -> np.ndarray:
    """A box of a volume (S, z, y, x) around a place, each from 0 to 1, and a margin around it; 0 beyond the volume.

    At the edge of a volume that is larger than it, the box without its margin stays inside.
    """
    result = np.zeros((len(volume), *(side + more for side, more in zip(patch, margin, strict=True))), volume.dtype)
    source, target = [slice(None)], [slice(None)]
    for size, side, place, more in zip(volume.shape[1:], patch, middle, margin, strict=True):
        first = round(size * place - side / 2)
        if size >= side:
            first = min(max(first, 0), size - side)
        first -= more // 2
        source.append(slice(max(first, 0), max(min(first + side + more, size), 0)))
        target.append(slice(max(-first, 0), max(-first, 0) + source[-1].stop - source[-1].start))
    result[tuple(target)] = volume[tuple(source)]
    return result


@dataclass(frozen=True)
class WholeVolumes:
    """All volumes of a site in manifest order: ``images`` float16 (N, sequences, *shape), a read-only memory map.

    ``labels``: see `fedshift.data.arrays.ImageArrays`; ``standard``: `fedshift.data.resampled.ResampledVolumes`.
    """

    images: np.ndarray
    labels: np.ndarray
    manifest: Manifest
    standard: np.ndarray | None


def open_whole(site_dir: Path, how: Cut, *, full: bool = False) -> WholeVolumes:
    """Open a site's volumes; make the arrays if they are missing.

    ``full``: compare all bytes with their hashes, not only as many as take no time (`fedshift.data.blocks.verify`).

    Raises:
        DataError: no volumes to classify there, an unreadable volume, a sequence that the site lacks, or arrays that
            have changed since they were written.
    """
    manifest = read_manifest(site_dir)
    if manifest.has_masks or not manifest.cases:
        what = "volumes with masks" if manifest.cases else "pictures"
        raise DataError("kind-of-data", f"{site_dir} holds {what}, this task classifies volumes: name the right folder")
    numbers = how.preparation.numbers(manifest, site_dir)
    shape = (len(manifest.cases), len(numbers), *how.shape)
    folder = _folder(site_dir, manifest, how)

    on_landmarks = how.preparation.normalise == "landmarks"

    def fill(partial: Path) -> None:
        standard = np.zeros((*shape[:2], INNER)) if on_landmarks else None
        images = np.lib.format.open_memmap(partial / "images.npy", mode="w+", dtype=np.float16, shape=shape)
        for row, case in enumerate(manifest.cases):
            voxels = read_images(site_dir, manifest, case)[numbers]
            try:
                of_case = None if standard is None else standard[row]
                images[row] = how.volume(voxels, manifest.known_spacing(case), of_case)
            except ValueError as error:
                file = image_files(site_dir, manifest, case.id)[numbers[0]]
                raise DataError("intensities", f"{file} {error}") from None
        images.flush()
        if standard is not None:
            np.save(partial / f"{STANDARD}.npy", standard)

    if not folder.is_dir():
        blocks.build(folder, fill)
    blocks.verify(folder, None, fix=rebuilt(folder), full=full)
    images = blocks.open_array(folder / "images.npy", fix=rebuilt(folder), shape=shape, types=("float16",))
    standard = blocks.open_array(folder / f"{STANDARD}.npy", fix=rebuilt(folder)) if on_landmarks else None
    return WholeVolumes(images, class_labels(manifest.cases, manifest.classes), manifest, standard)


def cached_whole(site_dir: Path) -> list[Path]:
    """Folders of the arrays that a site has already."""
    return sorted((site_dir / "arrays").glob(f"{PREFIX}*"))


def _folder(site_dir: Path, manifest: Manifest, how: Cut) -> Path:
    preparation = how.preparation
    key = {
        "format": FORMAT,
        **preparation.key,
        "patch": how.patch,
        "centre": how.centre,
        "margin": [*how.margin],
        "cases": [[case.id, case.sha256_image, case.shape, manifest.known_spacing(case)] for case in manifest.cases],
    }
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]
    return site_dir / "arrays" / f"{PREFIX}{'x'.join(map(str, how.patch))}_{preparation.normalise}_{digest}"
