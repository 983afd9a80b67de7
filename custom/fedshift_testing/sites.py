"""Small prepared sites, made on the spot: bright blobs to segment, and coloured shapes to classify."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import SimpleITK

from fedshift.data.arrays import class_labels
from fedshift.data.blocks import write_hashes
from fedshift.schema.manifest import Manifest, Picture

SHAPE_CLASSES = ("disc", "square", "bar")
SHIFTS = ((1.0, 0.0), (0.5, 20.0), (1.4, -30.0))
"""Gain and offset of each site's intensities."""
SIZES = (2, 3, 1)
"""Training cases of each site, or eighteenths of its pictures: sites take different numbers of steps."""


def small_sites(root: Path) -> dict[str, dict[str, Path]]:
    """Three sites of each kind of task whose images differ, in a new folder: kind -> site -> prepared folder."""
    segmentation, classification = {}, {}
    for site, size, (gain, offset) in zip(("BIDMC", "HK", "UCL"), SIZES, SHIFTS, strict=True):
        segmentation[site] = make_site(root, site, cases=size + 2, gain=gain, offset=offset)
    for site, size, (gain, offset) in zip("ABC", SIZES, SHIFTS, strict=True):
        classification[site] = make_image_site(root, site, images=18 * size, gain=gain, offset=offset)
    return {"segmentation": segmentation, "classification": classification}


def make_site(
    root: Path,
    site: str,
    *,
    seed: int = 0,
    cases: int = 4,
    depth: int = 8,
    matrix: int = 32,
    gain: float = 1.0,
    offset: float = 0.0,
    empty: Sequence[int] = (),
) -> Path:
    """A prepared site of bright blobs on noise, its arrays written straight; shifted by gain and offset.

    The cases numbered in ``empty`` have no blob.
    """
    rng = np.random.default_rng([seed, sum(site.encode())])
    folder = root / "prostate" / site
    y, x = np.mgrid[:matrix, :matrix]
    images, labels, records = [], [], []
    spacing = (3.0, 1.0, 1.0)
    splits = ["train"] * (cases - 2) + ["val", "test"] if cases > 2 else ["train"] * cases
    for number in range(cases):
        centre = rng.uniform(0.35, 0.65, 2) * matrix
        for z in range(depth):
            radius = matrix * 0.22 * np.sin(np.pi * (z + 0.01) / (depth - 1)) * rng.uniform(0.9, 1.1)
            mask = ((y - centre[0]) ** 2 + (x - centre[1]) ** 2 < radius**2 * (number not in empty)).astype(np.uint8)
            image = 60 + 80 * mask + rng.normal(0, 12, mask.shape)
            images.append(np.clip(gain * image + offset, 0, 255).astype(np.uint8))
            labels.append(mask)
        records.append(
            {
                "id": f"Case{number:02d}",
                "sha256_image": f"{site}-image-{number}",
                "sha256_label": f"{site}-label-{number}",
                "split": splits[number],
                "shape": (depth, matrix, matrix),
                "spacing": spacing,
                "direction": (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0),
                "array": "arrays",
                "offset": number * depth,
            }
        )
    arrays = folder / "arrays" / str(matrix)
    arrays.mkdir(parents=True)
    np.save(arrays / "images.npy", np.stack(images))
    np.save(arrays / "labels.npy", np.stack(labels))
    hashes = write_hashes(arrays)
    (folder / "volumes").mkdir()
    for number, record in enumerate(records):
        mask = SimpleITK.GetImageFromArray(np.stack(labels[number * depth :][:depth])[:, ::-1, ::-1])
        mask.SetSpacing(spacing[::-1])
        mask.SetDirection((-1, 0, 0, 0, -1, 0, 0, 0, 1))
        SimpleITK.WriteImage(mask, folder / "volumes" / f"{record['id']}_mask.nii.gz")
    Manifest.parse(
        {
            "schema": 1,
            "dataset": "prostate",
            "site": site,
            "kind": "phantom",
            "preparation": {"source": "made by the tests"},
            "classes": ["background", "prostate"],
            "cases": records,
            "arrays": {str(matrix): hashes},
            "licence": "Apache-2.0",
            "citation": "none",
        },
        where="test site",
    ).write(folder)
    return folder


def make_image_site(
    root: Path,
    site: str,
    *,
    seed: int = 0,
    images: int = 48,
    size: int = 16,
    gain: float = 1.0,
    offset: float = 0.0,
    labelled: Callable[[int, int], Mapping[str, object]] = lambda number, label: {"label": SHAPE_CLASSES[label]},
) -> Path:
    """A prepared site of coloured discs, squares and bars on noise; shifted by gain and offset.

    ``labelled``: what the manifest says of a picture, by its number and what it shows.
    """
    rng = np.random.default_rng([seed, sum(site.encode())])
    folder = root / "shapes" / site
    y, x = np.mgrid[:size, :size]
    pictures, records = [], []
    for number in range(images):
        label = number % 3
        cy, cx = rng.uniform(0.4, 0.6, 2) * size
        r = size * rng.uniform(0.2, 0.3)
        inside = (
            (y - cy) ** 2 + (x - cx) ** 2 < r**2,
            (abs(y - cy) < 0.8 * r) & (abs(x - cx) < 0.8 * r) & ((y + x) % 2 == 0),
            (abs(y - cy) < r / 3) & (abs(x - cx) < 1.5 * r),
        )[label]
        colour = rng.uniform(60, 100, 3)[:, None, None]
        picture = gain * (60 + colour * inside + rng.normal(0, 10, (3, size, size))) + offset
        pictures.append(np.clip(picture, 0, 255).astype(np.uint8))
        records.append(
            {
                "id": f"{number:04d}",
                "sha256": f"{site}-image-{number}",
                **labelled(number, label),
                "split": ("train", "train", "train", "train", "val", "test")[number // 3 % 6],
            }
        )
    arrays = folder / "arrays" / str(size)
    arrays.mkdir(parents=True)
    np.save(arrays / "images.npy", np.stack(pictures))
    stored = class_labels([Picture.parse(record, where="test site") for record in records], SHAPE_CLASSES)
    np.save(arrays / "labels.npy", stored)
    hashes = write_hashes(arrays)
    Manifest.parse(
        {
            "schema": 1,
            "dataset": "shapes",
            "site": site,
            "kind": "phantom",
            "preparation": {"source": "made by the tests"},
            "classes": SHAPE_CLASSES,
            "pictures": records,
            "arrays": {str(size): hashes},
            "licence": "Apache-2.0",
            "citation": "none",
        },
        where="test site",
    ).write(folder)
    return folder
