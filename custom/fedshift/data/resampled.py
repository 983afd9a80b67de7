"""Cached volumes of a prepared site at a task's spacing, normalised: ``arrays/volumes_…``, memory-mapped.

Patches are cut from these arrays without decoding. They are derived from ``volumes/`` and may be deleted at any time;
they are rebuilt on first use. The folder's name ends in a hash of the settings and of the site's cases, so that other
settings, or a site with other cases, have a folder of their own.

Voxels of all cases lie one after another in ``images.npy`` (float16; sequence after sequence within a case) and
``labels.npy`` (uint8). ``places.npy`` has voxels of each class in each case, for patches around them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedshift.data import blocks
from fedshift.data.arrays import rebuilt
from fedshift.data.prepared import image_files, read_images, read_labels
from fedshift.data.voxels import Fixed, places, resized_labels
from fedshift.runtime.grids import Normalise, network_volume, shape_at
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import Case, Manifest, read_manifest
from fedshift.schema.strict import nearest

PREFIX = "volumes_"
FORMAT = 2
"""Raised when other voxels come out of the same settings."""
MOST_PLACES = 5000
"""Voxels of a class that are kept for each case."""


@dataclass(frozen=True)
class Preparation:
    """How volumes become arrays.

    ``spacing``: mm along z, y, x; None keeps each volume's own, and so does None for an axis. ``matrix``: voxels along
    the longer side of a slice, of volumes without a voxel size (`fedshift.runtime.grids.shape_at`). ``normalise``,
    ``nonzero`` and ``fixed``: see `fedshift.data.voxels.normalised`. ``sequences``: which of a site's, in this order;
    empty for a site's only one.
    """

    spacing: tuple[float | None, float | None, float | None] | None = None
    matrix: int | None = None
    normalise: Normalise = "volume"
    nonzero: bool = False
    fixed: Fixed | None = None
    sequences: tuple[str, ...] = ()

    def numbers(self, manifest: Manifest, where: Path) -> list[int]:
        """The places of the sequences among the manifest's.

        Raises:
            DataError: the site lacks one, or has several and none is named.
        """
        known = manifest.sequences
        if not self.sequences:
            if len(known) > 1:
                raise DataError(
                    "sequence-unnamed",
                    f"{where} has the sequences {', '.join(known)}, and the task names none: set data.sequences",
                )
            return [0]
        unknown = next((name for name in self.sequences if name not in known), None)
        if unknown is not None:
            raise DataError("sequence-unknown", f"{where} has no sequence {unknown!r}{nearest(unknown, known)}")
        return [known.index(name) for name in self.sequences]


@dataclass(frozen=True)
class ResampledVolumes:
    """The volumes of all cases. Arrays are read-only memory maps; cases are numbered as in the manifest."""

    manifest: Manifest
    channels: int
    shapes: np.ndarray
    _images: np.ndarray
    _labels: np.ndarray
    _places: np.ndarray
    _starts: np.ndarray
    _offsets: np.ndarray

    def images(self, case: int) -> np.ndarray:
        """(sequences, z, y, x) float16."""
        start, end = (int(offset) * self.channels for offset in self._offsets[case : case + 2])
        volume: np.ndarray = self._images[start:end].reshape(self.channels, *self.shapes[case])
        return volume

    def labels(self, case: int) -> np.ndarray:
        """(z, y, x) uint8."""
        start, end = self._offsets[case : case + 2]
        volume: np.ndarray = self._labels[start:end].reshape(self.shapes[case])
        return volume

    def places(self, case: int, number: int) -> np.ndarray:
        """Voxels (n, 3) int32 of a foreground class of a case, at most `MOST_PLACES`."""
        start, end = self._starts[case, number - 1 : number + 1]
        found: np.ndarray = self._places[start:end]
        return found


def open_volumes(site_dir: Path, preparation: Preparation, *, full: bool = False) -> ResampledVolumes:
    """Open a site's volumes; resample and normalise them if the arrays are missing.

    Args:
        site_dir: the prepared site.
        preparation: spacing, normalisation and sequences.
        full: compare all bytes with their hashes, not only as many as take no time (`fedshift.data.blocks.verify`).

    Raises:
        DataError: no prepared site there, an unreadable volume, a sequence that the site lacks, or arrays that have
            changed since they were written.
    """
    manifest = read_manifest(site_dir)
    folder = volumes_dir(site_dir, manifest, preparation)
    channels = len(preparation.numbers(manifest, site_dir))
    if not folder.is_dir():
        build_volumes(site_dir, manifest, preparation)
    blocks.verify(folder, manifest.arrays.get(folder.name), fix=rebuilt(folder), full=full)
    loaded = {
        name: blocks.open_array(folder / f"{name}.npy", fix=rebuilt(folder))
        for name in ("images", "labels", "places", "starts", "shapes")
    }
    offsets = _offsets(loaded["shapes"])
    if len(loaded["labels"]) != offsets[-1] or len(loaded["images"]) != offsets[-1] * channels:
        raise DataError("arrays-damaged", f"{folder} does not hold the site's volumes: {rebuilt(folder)}")
    return ResampledVolumes(
        manifest,
        channels,
        loaded["shapes"],
        loaded["images"],
        loaded["labels"],
        loaded["places"],
        loaded["starts"],
        offsets,
    )


def volumes_dir(site_dir: Path, manifest: Manifest, preparation: Preparation) -> Path:
    """Folder of the arrays of one preparation."""
    if not manifest.cases:
        raise DataError("kind-of-data", f"{site_dir} holds pictures, this task needs volumes: name the right folder")
    spacing = preparation.spacing
    key = {
        "format": FORMAT,
        "spacing": spacing,
        "matrix": preparation.matrix,
        "normalise": preparation.normalise,
        "nonzero": preparation.nonzero,
        "fixed": None if preparation.fixed is None else preparation.fixed.model_dump(),
        "sequences": [*preparation.sequences],
        "classes": [*manifest.classes],
        "cases": [
            [case.id, case.sha256_image, case.sha256_label, case.shape, manifest.known_spacing(case)]
            for case in manifest.cases
        ],
    }
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]
    if spacing is None:
        at = "own" if preparation.matrix is None else f"matrix{preparation.matrix}"
    else:
        at = "x".join("own" if length is None else f"{length:g}" for length in spacing)
    return site_dir / manifest.cases[0].array / f"{PREFIX}{at}_{preparation.normalise}_{digest}"


def cached_volumes(site_dir: Path) -> list[Path]:
    """Folders of the volumes that a site has already, of any preparation."""
    return sorted((site_dir / "arrays").glob(f"{PREFIX}*"))


def build_volumes(site_dir: Path, manifest: Manifest, preparation: Preparation) -> str:
    """Write the folder of arrays; returns the hash of its ``hashes.json`` (`fedshift.data.blocks.build`)."""
    numbers = preparation.numbers(manifest, site_dir)
    shapes = np.array(
        [
            shape_at(case.shape, manifest.known_spacing(case), preparation.spacing, preparation.matrix)
            for case in manifest.cases
        ],
        np.int64,
    )
    offsets = _offsets(shapes)
    n_classes = len(manifest.classes)

    def fill(folder: Path) -> None:
        images = _create(folder / "images.npy", np.float16, int(offsets[-1]) * len(numbers))
        labels = _create(folder / "labels.npy", np.uint8, int(offsets[-1]))
        found: list[np.ndarray] = []
        starts = np.zeros((len(shapes), n_classes), np.int64)
        for number, case in enumerate(manifest.cases):
            start, end = offsets[number : number + 2]
            images[start * len(numbers) : end * len(numbers)] = _images(
                site_dir, manifest, case, preparation, numbers, tuple(shapes[number])
            ).ravel()
            volume = resized_labels(_labels(site_dir, case, n_classes), tuple(shapes[number]))
            labels[start:end] = volume.ravel()
            starts[number, 0] = starts[number - 1, -1] if number else 0
            for of_class in range(1, n_classes):
                found.append(places(volume, of_class, most=MOST_PLACES, seed=(number, of_class)))
                starts[number, of_class] = starts[number, of_class - 1] + len(found[-1])
        images.flush()
        labels.flush()
        np.save(folder / "places.npy", np.concatenate(found))
        np.save(folder / "starts.npy", starts)
        np.save(folder / "shapes.npy", shapes)

    return blocks.build(volumes_dir(site_dir, manifest, preparation), fill)


def _images(
    site_dir: Path,
    manifest: Manifest,
    case: Case,
    preparation: Preparation,
    numbers: list[int],
    shape: tuple[int, ...],
) -> np.ndarray:
    try:
        return network_volume(
            read_images(site_dir, manifest, case)[numbers],
            shape,
            normalise=preparation.normalise,
            nonzero=preparation.nonzero,
            fixed=None if preparation.fixed is None else preparation.fixed.numbers,
        )
    except ValueError as error:
        raise DataError("intensities", f"{image_files(site_dir, manifest, case.id)[numbers[0]]} {error}") from None


def _labels(site_dir: Path, case: Case, n_classes: int) -> np.ndarray:
    labels = read_labels(site_dir, case)
    if labels.max(initial=0) >= n_classes:
        raise DataError(
            "mask-values",
            f"{site_dir}: the mask of case {case.id} has the value {labels.max()}, and the site has {n_classes} "
            "classes: prepare the site again",
        )
    return labels


def _offsets(shapes: np.ndarray) -> np.ndarray:
    offsets: np.ndarray = np.concatenate([[0], np.cumsum(shapes.prod(axis=1))])
    return offsets


def _create(path: Path, dtype: type[np.generic], length: int) -> np.memmap:
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(length,))
