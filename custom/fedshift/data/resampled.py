"""Cached volumes of a prepared site at a task's spacing, normalised: ``arrays/volumes_…``, memory-mapped.

Patches are cut from these arrays without decoding. They are derived from ``volumes/`` and may be deleted at any time;
they are rebuilt on first use. The folder's name ends in a hash of the settings and of the site's cases, so that other
settings, or a site with other cases, have a folder of their own.

Voxels of all cases lie one after another in ``images.npy`` (float16; sequence after sequence within a case) and
``labels.npy`` (uint8). ``places.npy`` has voxels of each class in each case, for patches around them; where masks have
voxels to ignore, also some of all others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from fedshift.data import blocks
from fedshift.data.arrays import rebuilt, require_masks
from fedshift.data.prepared import image_files, read_images, read_labels
from fedshift.runtime.bias_field import BiasField
from fedshift.runtime.grids import (
    INNER,
    MOST_DEVIATIONS,
    MOST_PLAIN,
    Normalise,
    network_volume,
    resized,
    shape_at,
)
from fedshift.runtime.nnunet import Placement, network_labels, network_spacing, placed
from fedshift.runtime.nnunet import network_volume as nnunet_volume
from fedshift.runtime.regions import IGNORED
from fedshift.runtime.segmentation import Convention
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import Case, Manifest, read_manifest
from fedshift.schema.strict import Strict, nearest

Ready = Callable[[Case, Placement], tuple[np.ndarray, np.ndarray]]
PREFIX = "volumes_"
FORMAT = 2  # raised when other voxels come out of the same settings
STANDARD, BOXES = "standard_landmarks", "boxes"
MOST_PLACES = 5000  # voxels of a class that are kept for each case


class Fixed(Strict):
    """``normalise: fixed``: clip to ``low`` … ``high``, subtract ``mean``, divide by ``std``; numbers for all sites.

    For images with a unit, such as Hounsfield units of CT.
    """

    low: float
    high: float
    mean: float
    std: float = Field(gt=0)

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"'low' must be below 'high', not {self.low:g} and {self.high:g}")
        if max(abs(edge) for edge in self.range) > MOST_PLAIN:
            raise ValueError(f"gives intensities beyond {MOST_PLAIN:g}: divide by a larger 'std'")
        return self

    @property
    def numbers(self) -> tuple[float, float, float, float]:
        """For `fedshift.runtime.grids.normalised`."""
        return self.low, self.high, self.mean, self.std

    @property
    def range(self) -> tuple[float, float]:
        """Smallest and largest normalised intensity."""
        return (self.low - self.mean) / self.std, (self.high - self.mean) / self.std


def refuse_bias_field(bias_field: BiasField, normalise: Normalise) -> None:
    """Refuse to correct images with a unit, whose numbers it would change (ValueError)."""
    if bias_field != "none" and normalise in ("fixed", "none"):
        raise ValueError(f"'bias_field' changes intensities, and normalise: {normalise} takes them as numbers")


def intensity_range(
    normalise: Normalise, fixed: Fixed | None, convention: Convention = "fedshift"
) -> tuple[float, float]:
    """The smallest and the largest intensity that the network sees.

    0 is between them: it is what surrounds a volume that is smaller than a patch, and what ``nonzero`` keeps.
    """
    if fixed is not None:
        low, high = fixed.range
        return min(low, 0.0), max(high, 0.0)
    if convention == "nnunet":  # standard scores as they are
        return -MOST_PLAIN, MOST_PLAIN
    most = {"volume": MOST_DEVIATIONS, "landmarks": MOST_DEVIATIONS, "percentile": 1.0}.get(normalise, MOST_PLAIN)
    return (0.0 if normalise == "percentile" else -most), most


def black_and_white(normalise: Normalise, fixed: Fixed | None) -> tuple[float, float] | None:
    """The intensities of a picture's black and white as the network sees them; None if each picture has its own."""
    if fixed is not None:
        return fixed.range
    return (0.0, 1.0) if normalise == "percentile" else None


@dataclass(frozen=True)
class Preparation:
    """How volumes become arrays.

    ``spacing``: mm along z, y, x; None keeps each volume's own, and so does None for an axis. ``matrix``: voxels along
    the longer side of a slice, of volumes without a voxel size (`fedshift.runtime.grids.shape_at`). ``normalise``,
    ``nonzero``, ``fixed`` and ``bias_field``: see `fedshift.runtime.grids.network_volume`. ``sequences``: which of a
    site's, in this order; empty for a site's only one.
    """

    spacing: tuple[float | None, float | None, float | None] | None = None
    matrix: int | None = None
    normalise: Normalise = "volume"
    nonzero: bool = False
    fixed: Fixed | None = None
    sequences: tuple[str, ...] = ()
    bias_field: BiasField = "none"
    convention: Convention = "fedshift"

    @property
    def key(self) -> dict[str, object]:
        """What arrays of it depend on, for their folder's name."""
        return {
            "spacing": self.spacing,
            "matrix": self.matrix,
            "normalise": self.normalise,
            "nonzero": self.nonzero,
            "fixed": None if self.fixed is None else self.fixed.model_dump(),
            "sequences": [*self.sequences],
            **({} if self.bias_field == "none" else {"bias_field": self.bias_field}),
            **({} if self.convention == "fedshift" else {"convention": self.convention}),
        }

    def volume(
        self, voxels: np.ndarray, spacing: Sequence[float] | None, standard: np.ndarray | None = None
    ) -> np.ndarray:
        """The network's grid (S, z, y, x) float16 of sequences (S, z, y, x) as stored, of ``spacing`` mm.

        ``standard`` and errors: as of `fedshift.runtime.grids.network_volume`.
        """
        fixed = None if self.fixed is None else self.fixed.numbers
        if self.convention == "nnunet":
            where = placed(voxels, spacing, self.spacing)
            prepared = nnunet_volume(voxels, where, normalise=self.normalise, nonzero=self.nonzero, fixed=fixed)
            return prepared.astype(np.float16)
        return network_volume(
            voxels,
            shape_at(voxels.shape[1:], spacing, self.spacing, self.matrix),
            normalise=self.normalise,
            nonzero=self.nonzero,
            fixed=fixed,
            bias_field=self.bias_field,
            standard=standard,
        )

    def numbers(self, manifest: Manifest, where: Path) -> list[int]:
        """The places of the sequences among the manifest's."""
        known = manifest.sequences
        if not self.sequences:
            if len(known) > 1:
                what = f"{where} has the sequences {', '.join(known)}, and the task names none: set data.sequences"
                raise DataError("sequence-unnamed", what)
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
    standard: np.ndarray | None
    """Of each case and sequence the `fedshift.runtime.grids.standard_landmarks`, (cases, S, 9) float64; None without
    ``normalise: landmarks``."""
    placements: tuple[Placement, ...] | None
    """Of each case where its grid lies in the scan, in nnU-Net's convention."""
    _images: np.ndarray
    _labels: np.ndarray
    _places: np.ndarray
    _starts: np.ndarray
    _offsets: np.ndarray

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Voxels of all cases, one after another: images float16, sequence after sequence of a case, labels uint8."""
        return self._images, self._labels

    def stored_as(self, images: np.ndarray, labels: np.ndarray) -> ResampledVolumes:
        """The same volumes, read from copies of `arrays`."""
        return replace(self, _images=images, _labels=labels)

    def first_voxels(self, cases: np.ndarray) -> np.ndarray:
        """Where the labels of these cases begin in `arrays`, (B,); images begin at `channels` times that."""
        first: np.ndarray = self._offsets[cases]
        return first

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

    def foreground(self, cases: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A foreground voxel of each case (B, 3), of one of the classes that it has, and which cases have any (B,).

        ``chosen`` (B, 2), from 0 to 1 (exclusive), says which class and which of its at most `MOST_PLACES` voxels.
        """
        rows = np.arange(len(cases))
        sizes = np.diff(self._starts[cases, : len(self.manifest.classes)])
        known = (sizes > 0).cumsum(1)
        number = (known > (chosen[:, :1] * known[:, -1:]).astype(np.int64)).argmax(1)
        voxel = self._starts[cases, number] + (chosen[:, 1] * sizes[rows, number]).astype(np.int64)
        some = known[:, -1] > 0
        voxels = np.zeros((len(cases), 3), np.int64)
        voxels[some] = self._places[voxel[some]]
        return voxels, some

    def counted(self, cases: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `foreground`, of voxels that are not to be ignored, where masks have such; ``chosen`` (B,)."""
        first, end = self._starts[cases, -2:].T
        some = end > first
        voxels = np.zeros((len(cases), 3), np.int64)
        voxels[some] = self._places[(first + (chosen * (end - first)).astype(np.int64))[some]]
        return voxels, some


def open_volumes(site_dir: Path, preparation: Preparation, *, full: bool = False) -> ResampledVolumes:
    """Open a site's volumes; resample and normalise them if the arrays are missing.

    ``full``: compare all bytes with their hashes, not only as many as take no time (`fedshift.data.blocks.verify`).

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
    names = ["images", "labels", "places", "starts", "shapes"]
    names += [STANDARD] if preparation.normalise == "landmarks" else []
    names += [BOXES] if preparation.convention == "nnunet" else []
    loaded = {name: blocks.open_array(folder / f"{name}.npy", fix=rebuilt(folder)) for name in names}
    offsets = _offsets(loaded["shapes"])
    if len(loaded["labels"]) != offsets[-1] or len(loaded["images"]) != offsets[-1] * channels:
        raise DataError("arrays-damaged", f"{folder} does not hold the site's volumes: {rebuilt(folder)}")
    return ResampledVolumes(
        manifest,
        channels,
        loaded["shapes"],
        loaded.get(STANDARD),
        _placements(manifest, preparation, loaded[BOXES]) if BOXES in loaded else None,
        loaded["images"],
        loaded["labels"],
        loaded["places"],
        loaded["starts"],
        offsets,
    )


def volumes_dir(site_dir: Path, manifest: Manifest, preparation: Preparation) -> Path:
    """Folder of the arrays of one preparation."""
    require_masks(site_dir, manifest)
    spacing = preparation.spacing
    key = {
        "format": FORMAT,
        **preparation.key,
        "classes": [*manifest.classes],
        "cases": [
            [case.id, case.sha256_image, case.sha256_label, case.shape, manifest.known_spacing(case)]
            for case in manifest.cases
        ],
        **({"ignore": True} if manifest.ignore else {}),
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


def build_volumes(site_dir: Path, manifest: Manifest, preparation: Preparation, ready: Ready | None = None) -> str:
    """Write the folder of arrays; returns the hash of its ``hashes.json`` (`fedshift.data.blocks.build`).

    ``ready``: gives images (sequences, z, y, x) and labels (z, y, x) of a case on the network's grid, which another
    program has prepared in nnU-Net's convention.
    """
    numbers = preparation.numbers(manifest, site_dir)
    placements: list[Placement] | None = None
    if preparation.convention == "nnunet":  # their sizes depend on what is 0
        placements = [_placed(site_dir, manifest, case, preparation) for case in manifest.cases]
        shapes = np.array([placement.shape for placement in placements], np.int64)
    else:
        wanted = preparation.spacing, preparation.matrix
        shapes = np.array(
            [shape_at(case.shape, manifest.known_spacing(case), *wanted) for case in manifest.cases], np.int64
        )
    offsets = _offsets(shapes)
    n_classes = len(manifest.classes)

    def fill(folder: Path) -> None:
        images = _create(folder / "images.npy", np.float16, int(offsets[-1]) * len(numbers))
        labels = _create(folder / "labels.npy", np.uint8, int(offsets[-1]))
        starts = np.zeros((len(shapes), n_classes + manifest.ignore), np.int64)
        standard = np.zeros((len(shapes), len(numbers), INNER)) if preparation.normalise == "landmarks" else None
        count, raw = 0, folder / "places.raw"  # on disk, so that memory does not grow with the number of cases
        with raw.open("wb") as stream:
            for number, case in enumerate(manifest.cases):
                start, end = offsets[number : number + 2]
                if ready is not None and placements is not None:
                    voxels, volume = ready(case, placements[number])
                else:
                    of_case = None if standard is None else standard[number]
                    voxels = _images(site_dir, manifest, case, preparation, of_case)
                    mask = _labels(site_dir, manifest, case)
                    if placements is None:
                        volume = resized_labels(mask, tuple(shapes[number]))
                    else:
                        volume = network_labels(mask, placements[number])
                images[start * len(numbers) : end * len(numbers)] = voxels.ravel()
                labels[start:end] = volume.ravel()
                starts[number, 0] = count
                masks = (volume == of_class for of_class in range(1, n_classes))
                for group, mask in enumerate(chain(masks, [volume != IGNORED] if manifest.ignore else ()), start=1):
                    chosen = places(mask, most=MOST_PLACES, seed=(number, group))
                    stream.write(chosen.tobytes())
                    count += len(chosen)
                    starts[number, group] = count
        images.flush()
        labels.flush()
        # A file without a byte cannot be mapped.
        held = np.memmap(raw, np.int32, "r") if count else np.zeros(0, np.int32)
        np.save(folder / "places.npy", held.reshape(-1, 3))
        raw.unlink()
        np.save(folder / "starts.npy", starts)
        np.save(folder / "shapes.npy", shapes)
        if standard is not None:
            np.save(folder / f"{STANDARD}.npy", standard)
        if placements is not None:
            np.save(folder / f"{BOXES}.npy", np.array([placement.box for placement in placements]))

    return blocks.build(volumes_dir(site_dir, manifest, preparation), fill)


def _images(
    site_dir: Path, manifest: Manifest, case: Case, preparation: Preparation, standard: np.ndarray | None
) -> np.ndarray:
    numbers = preparation.numbers(manifest, site_dir)
    voxels = read_images(site_dir, manifest, case)[numbers]
    try:
        return preparation.volume(voxels, manifest.known_spacing(case), standard)
    except ValueError as error:
        raise DataError("intensities", f"{image_files(site_dir, manifest, case.id)[numbers[0]]} {error}") from None


def _placed(site_dir: Path, manifest: Manifest, case: Case, preparation: Preparation) -> Placement:
    voxels = read_images(site_dir, manifest, case)[preparation.numbers(manifest, site_dir)]
    return placed(voxels, manifest.known_spacing(case), preparation.spacing)


def _placements(manifest: Manifest, preparation: Preparation, boxes: np.ndarray) -> tuple[Placement, ...]:
    placements = []
    for case, ends in zip(manifest.cases, boxes.tolist(), strict=True):
        z, y, x = (tuple(edge) for edge in ends)
        spacing = manifest.known_spacing(case) or (1.0, 1.0, 1.0)
        placements.append(Placement(case.shape, (z, y, x), spacing, network_spacing(spacing, preparation.spacing)))
    return tuple(placements)


def _labels(site_dir: Path, manifest: Manifest, case: Case) -> np.ndarray:
    labels, n_classes = read_labels(site_dir, case, manifest.stored), len(manifest.classes)
    largest = labels.max(initial=0, where=labels != IGNORED) if manifest.ignore else labels.max(initial=0)
    if largest >= n_classes:
        raise DataError(
            "mask-values",
            f"{site_dir}: the mask of case {case.id} has the value {largest}, and the site has {n_classes} classes: "
            "prepare the site again",
        )
    return labels


def resized_labels(labels: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Classes (z, y, x) uint8 on another grid: the class that covers most of a voxel, the smaller number at a tie."""
    if labels.shape == tuple(shape):
        return labels
    classes = np.zeros(tuple(shape), np.uint8)
    most = np.zeros(tuple(shape), np.float32)
    for number in np.unique(labels).tolist():
        cover = resized((labels == number).astype(np.float32), shape)
        larger = cover > most + 1e-6  # the margin keeps exact halves on one side whatever the rounding of the sums
        classes[larger], most[larger] = number, cover[larger]
    return classes


def places(mask: np.ndarray, *, most: int, seed: Sequence[int]) -> np.ndarray:
    """Up to ``most`` voxels (n, 3) int32 of a mask, drawn by ``seed`` and in order."""
    chosen = np.flatnonzero(mask)
    if len(chosen) > most:
        chosen = np.sort(np.random.default_rng(list(seed)).choice(chosen, most, replace=False))
    return np.stack(np.unravel_index(chosen, mask.shape), 1).astype(np.int32)


def _offsets(shapes: np.ndarray) -> np.ndarray:
    offsets: np.ndarray = np.concatenate([[0], np.cumsum(shapes.prod(axis=1))])
    return offsets


def _create(path: Path, dtype: type[np.generic], length: int) -> np.memmap:
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(length,))
