"""Cached slices or pictures of a prepared site, memory-mapped: ``images.npy`` and ``labels.npy`` in ``arrays/<size>/``.

Batches are read from these arrays without decoding. Slices are derived from ``volumes/`` and may be deleted at any
time; they are rebuilt on first use. Intensities are scaled per volume: clip above a quantile, min-max, times 255,
floor. Arrays with another quantile than the default are in ``arrays/<M>_clip<quantile>/``. Slices are in radiological
orientation: anterior at the top, the patient's right on the left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedshift.data import blocks
from fedshift.data.prepared import read_images, read_labels
from fedshift.runtime.grids import CLIP_ABOVE_QUANTILE, radiological, resample, resize_images, square, to_uint8
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import Case, Manifest, Picture, read_manifest

_FOLDER = re.compile(r"(\d+)(?:_clip([\d.]+))?")
AGAIN = "prepare the site again"
UNKNOWN = 255
"""In labels of findings: nobody has said whether the picture has it."""


@dataclass(frozen=True)
class SliceArrays:
    """All slices of all cases, stacked in manifest order, slices from inferior to superior.

    ``images`` and ``labels`` are read-only uint8 memory maps ``[S, matrix, matrix]``, images 0…255 and labels
    0 or 1; a case's slices are ``[case.offset : case.offset + case.shape[0]]``.
    """

    images: np.ndarray
    labels: np.ndarray
    manifest: Manifest
    matrix: int


@dataclass(frozen=True)
class ImageArrays:
    """All pictures in manifest order: ``images`` uint8 [N, C, S, S], or uint16 at a site with grey ones of more bits.

    ``labels`` uint8 [N], indices into the classes; or of findings [N, K]: 0, 1, or `UNKNOWN`.
    """

    images: np.ndarray
    labels: np.ndarray
    manifest: Manifest


def open_arrays(
    site_dir: Path, *, matrix: int, clip_above_quantile: float = CLIP_ABOVE_QUANTILE, full: bool = False
) -> SliceArrays:
    """Open a site's slices at ``matrix`` x ``matrix`` pixels; build the arrays from its volumes if they are missing.

    ``full``: compare all bytes with their hashes, not only as many as take no time (`fedshift.data.blocks.verify`).

    Raises:
        DataError: no prepared site there, an unreadable volume, arrays that do not match the manifest, or arrays that
            have changed since they were written.
    """
    manifest = read_manifest(site_dir)
    folder = arrays_dir(site_dir, manifest, matrix, clip_above_quantile)
    if not folder.is_dir():
        build_arrays(site_dir, manifest, matrix, clip_above_quantile)
    slices = sum(case.shape[0] for case in manifest.cases)
    images, labels = (
        blocks.open_array(folder / name, fix=rebuilt(folder), shape=(slices, matrix, matrix))
        for name in ("images.npy", "labels.npy")
    )
    blocks.verify(folder, manifest.arrays.get(folder.name), fix=rebuilt(folder), full=full)
    return SliceArrays(images=images, labels=labels, manifest=manifest, matrix=matrix)


def open_images(folder: Path, *, size: int, channels: int, full: bool = False) -> ImageArrays:
    """Open a site's pictures at ``size`` x ``size`` pixels, with 3 channels for RGB or 1 for grey; ``full`` as above.

    Raises:
        DataError: no prepared site there, none of that size, arrays that do not fit the manifest, or arrays that have
            changed since they were written.
    """
    manifest = read_manifest(folder)
    if manifest.cases:
        raise DataError("kind-of-data", f"{folder} holds volumes, this task needs pictures: name the right folder")
    arrays = folder / "arrays" / str(size)
    if not arrays.is_dir():
        sizes = sorted(int(p.name) for p in (folder / "arrays").glob("*") if p.name.isdigit())
        what = f"{folder} has no images of {size} pixels, only {sizes}"
        raise DataError("size-missing", f"{what}: prepare the site with that size")
    n = len(manifest.pictures)
    images = blocks.open_array(
        arrays / "images.npy", fix=AGAIN, shape=(n, channels, size, size), types=("uint8", "uint16")
    )
    wanted = class_labels(manifest.pictures, manifest.classes)
    # read, so that no file stays open
    labels = np.array(blocks.open_array(arrays / "labels.npy", fix=AGAIN, shape=wanted.shape))
    if (labels != wanted).any():
        row, *column = np.argwhere(labels != wanted)[0]
        stored, meant = (
            _named(array[row, *column], manifest.classes, findings=bool(column)) for array in (labels, wanted)
        )
        finding = "".join(f" {manifest.classes[k]} of" for k in column)
        what = f"says {stored} for{finding} picture {manifest.pictures[row].id}, the manifest {meant}"
        raise DataError("labels-changed", f"{arrays / 'labels.npy'} {what}: {AGAIN}")
    known = manifest.arrays.get(str(size))
    if known is None:
        raise DataError("manifest-broken", f"{folder / 'manifest.json'} has no hash of {arrays}: {AGAIN}")
    blocks.verify(arrays, known, fix=AGAIN, full=full)
    return ImageArrays(images, labels, manifest)


def _named(label: int, classes: Sequence[str], *, findings: bool) -> str:
    if findings:
        return {0: "no", 1: "yes", UNKNOWN: "unknown"}.get(label, str(label))
    return classes[label] if label < len(classes) else f"class {label}"


def class_labels(entries: Sequence[Case | Picture], classes: Sequence[str]) -> np.ndarray:
    """Labels of pictures or volumes as they are stored: uint8 (N,) or, of findings, (N, K); see `ImageArrays`."""
    number = {name: k for k, name in enumerate(classes)}
    if not any(entry.findings for entry in entries):
        return np.array([number[entry.label] for entry in entries], np.uint8)
    labels = np.full((len(entries), len(classes)), UNKNOWN, np.uint8)
    for row, entry in enumerate(entries):
        for name, has in entry.findings.items():
            labels[row, number[name]] = has
    return labels


def require_masks(site_dir: Path, manifest: Manifest) -> None:
    """Refuse a site of anything but volumes with masks.

    Raises:
        DataError: it holds pictures, or volumes to classify.
    """
    if not manifest.cases:
        raise DataError("kind-of-data", f"{site_dir} holds pictures, this task needs volumes: name the right folder")
    if not manifest.has_masks:
        what = f"{site_dir} holds volumes to classify, without masks, which this task needs"
        raise DataError("kind-of-data", f"{what}: name the right folder")


def cached_arrays(site_dir: Path) -> Iterator[tuple[Path, int, float]]:
    """Yield folder, matrix size and clip quantile of the slices that a site has already."""
    for folder in sorted((site_dir / "arrays").glob("*")):
        match = _FOLDER.fullmatch(folder.name)
        if match is not None:
            yield folder, int(match[1]), float(match[2] or CLIP_ABOVE_QUANTILE)


def arrays_dir(
    site_dir: Path, manifest: Manifest, matrix: int, clip_above_quantile: float = CLIP_ABOVE_QUANTILE
) -> Path:
    """Folder of the cached slices of one matrix size and clip quantile."""
    if matrix < 8:
        raise DataError("invalid-value", f"matrix {matrix} is too small: ask for at least 8 pixels")
    require_masks(site_dir, manifest)
    if manifest.pictured:
        what = f"{site_dir} holds pictures, this task needs volumes"
        raise DataError("kind-of-data", f"{what}: give the task data.patch and data.pictures")
    clip = "" if clip_above_quantile == CLIP_ABOVE_QUANTILE else f"_clip{clip_above_quantile}"
    return site_dir / manifest.cases[0].array / f"{matrix}{clip}"


def build_arrays(
    site_dir: Path, manifest: Manifest, matrix: int, clip_above_quantile: float = CLIP_ABOVE_QUANTILE
) -> str:
    """Write the folder of slices; returns the hash of its ``hashes.json`` (`fedshift.data.blocks.build`)."""
    shape = (sum(case.shape[0] for case in manifest.cases), matrix, matrix)

    def fill(folder: Path) -> None:
        images, labels = (
            np.lib.format.open_memmap(folder / name, mode="w+", dtype=np.uint8, shape=shape)
            for name in ("images.npy", "labels.npy")
        )
        for case in manifest.cases:
            part = slice(case.offset, case.offset + case.shape[0])
            images[part] = slices_of(read_images(site_dir, manifest, case)[0], matrix, clip_above_quantile)
            labels[part] = labels_of(read_labels(site_dir, case), matrix)
        images.flush()
        labels.flush()

    target = arrays_dir(site_dir, manifest, matrix, clip_above_quantile)
    return blocks.build(target, fill, remedy=f", or prepare the site with --matrix {matrix} beforehand")


def slices_of(voxels: np.ndarray, matrix: int, clip_above_quantile: float) -> np.ndarray:
    """The cached slices uint8 ``[z, matrix, matrix]`` of a volume ``[z, y, x]`` in RAS orientation."""
    return resize_images(to_uint8(radiological(voxels), clip_above_quantile), matrix)


def labels_of(voxels: np.ndarray, matrix: int) -> np.ndarray:
    """The cached labels uint8 ``[z, matrix, matrix]`` of a mask ``[z, y, x]`` in RAS orientation."""
    return resize_labels(radiological(voxels), matrix)


def resize_labels(slices: np.ndarray, matrix: int) -> np.ndarray:
    """Masks {0,1} like ``resize_images``; a pixel is foreground where at least half of it is covered."""
    if slices.shape[1:] == (matrix, matrix):
        return slices.astype(np.uint8)
    # The margin keeps exact halves on one side whatever the rounding of the sums.
    return np.asarray(resample(square(slices), matrix) >= 0.5 - 1e-9).astype(np.uint8)


def rebuilt(folder: Path) -> str:
    """What to do about a folder of arrays that cannot be used."""
    return f"delete the folder {folder}, it will be rebuilt"
