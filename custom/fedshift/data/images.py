"""Cached pictures of a prepared site: ``arrays/<S>/images.npy`` and ``labels.npy``, memory-mapped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedshift.data import blocks
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import Manifest, read_manifest

AGAIN = "prepare the site again"


@dataclass(frozen=True)
class ImageArrays:
    """All images in manifest order: ``images`` uint8 [N, C, S, S], ``labels`` uint8 [N], indices into the classes."""

    images: np.ndarray
    labels: np.ndarray
    manifest: Manifest


def open_images(folder: Path, *, size: int, channels: int, full: bool = False) -> ImageArrays:
    """Open a site's images at ``size`` x ``size`` pixels.

    Args:
        folder: the prepared site.
        size: rows and columns of an image.
        channels: 3 for RGB, 1 for grey.
        full: compare all bytes with their hashes, not only as many as take no time (`fedshift.data.blocks.verify`).

    Raises:
        DataError: no prepared site there, none of that size, arrays that do not fit the manifest, or arrays that have
            changed since they were written.
    """
    manifest = read_manifest(folder)
    if manifest.cases:
        raise DataError("kind-of-data", f"{folder} holds volumes, this task needs pictures: name the right folder")
    arrays = folder / "arrays" / str(size)
    if not arrays.is_dir():
        found = sorted(int(p.name) for p in (folder / "arrays").glob("*") if p.name.isdigit())
        raise DataError(
            "size-missing", f"{folder} has no images of {size} pixels, only {found}: prepare the site with that size"
        )
    n = len(manifest.pictures)
    images = blocks.open_array(arrays / "images.npy", fix=AGAIN, shape=(n, channels, size, size))
    labels = np.array(
        blocks.open_array(arrays / "labels.npy", fix=AGAIN, shape=(n,))
    )  # small, so copied: no file stays open
    if labels.max() >= len(manifest.classes):
        raise DataError(
            "labels-changed",
            f"{arrays / 'labels.npy'} names class {labels.max()}, the manifest has {len(manifest.classes)} "
            "classes: prepare the site again",
        )
    wanted = np.array([manifest.classes.index(picture.label) for picture in manifest.pictures], np.uint8)
    if (labels != wanted).any():
        row = int((labels != wanted).argmax())
        raise DataError(
            "labels-changed",
            f"{arrays / 'labels.npy'} says {manifest.classes[labels[row]]} of picture {manifest.pictures[row].id}, the "
            f"manifest {manifest.pictures[row].label}: prepare the site again",
        )
    known = manifest.arrays.get(str(size))
    if known is None:
        raise DataError(
            "manifest-broken", f"{folder / 'manifest.json'} has no hash of {arrays}: prepare the site again"
        )
    blocks.verify(arrays, known, fix=AGAIN, full=full)
    return ImageArrays(images, labels, manifest)
