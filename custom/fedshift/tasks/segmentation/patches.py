"""Patches of a prepared site's volumes, in 2D or 3D, with any number of classes and sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import numpy as np
import torch
from pydantic import AfterValidator, Field, model_validator
from torch import Tensor

from fedshift.data import draws
from fedshift.data.prepared import read_labels
from fedshift.data.resampled import Fixed, Preparation, open_volumes, refuse_bias_field
from fedshift.data.samples import CHUNK, CHUNK_BYTES
from fedshift.data.splits import SAMPLES_PER_CASE, Fold, case_splits, split_rule
from fedshift.runtime.bias_field import BiasField
from fedshift.runtime.grids import Normalise
from fedshift.runtime.nnunet import Placement
from fedshift.runtime.segmentation import Convention, as_images, neighbours
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import Split, read_manifest
from fedshift.schema.names import ClassName
from fedshift.schema.seeding import derive_seed
from fedshift.schema.strict import Strict
from fedshift.tasks.augmentation import Augmentation
from fedshift.tasks.base import ScanData, Subset
from fedshift.tasks.cache import Cache

AXES = 3
SMALLEST_PATCH = 4
Millimetres = Annotated[float, Field(gt=0, le=1000)]


def _odd(number: int) -> int:
    if number % 2 == 0:
        raise ValueError(f"must be odd, a slice and as many on each side of it, not {number}")
    return number


class DataSpec(Strict):
    """Options of ``task.data`` with patches: how volumes become samples.

    ``dims``: 3 for patches of volumes, 2 for patches of slices, with ``context`` neighbouring slices of each sequence
    as channels. ``patch``: their size in voxels, along z, y, x or y, x. ``spacing``: mm along z, y, x to which volumes
    are resampled; null keeps each volume's own, and so does null for one axis. ``matrix``: voxels along the longer side
    of a slice, of scans whose headers hold no voxel size (1 x 1 x 1 mm), or of all scans if ``spacing`` is null.
    ``sequences``: which of a site's, as channels in this order; empty for sites with one. ``pictures``: the sites have
    pictures, which are slices with their colours as sequences; they have no neighbouring slices and no spacing.

    ``normalise``: ``volume`` (mean 0 and standard deviation 1 in each volume and sequence), ``landmarks`` (histogram
    landmarks of each to those of a normal distribution; with the method ``landmarks`` to the mean of the sites'),
    ``percentile`` (clip to the 0.5 and 99.5 percentiles, scale to 0 … 1), ``fixed`` (the numbers of ``fixed``, for
    images with a unit), or ``none``. ``nonzero``: voxels that are 0 are left out and stay 0. ``bias_field``: ``n4``
    corrects magnetic resonance images before that, see `fedshift.runtime.bias_field`.

    ``convention``: ``nnunet`` crops, normalises, resamples and predicts volumes as nnU-Net does, so that
    ``fedshift export --nnunet`` can write a model that predicts the same there (`fedshift.runtime.nnunet`). It takes
    ``normalise: volume``, ``fixed`` or ``none``, and a ``spacing``: of all axes with dims: 3, and of rows and columns
    with dims: 2.

    ``samples_per_case``: patches of each training case in an epoch. ``foreground``: probability that a patch is centred
    on a voxel of a foreground class, each of the case's classes equally often; all others are anywhere, or, where masks
    have voxels to ignore, around one that counts. ``foreground_guaranteed``: as large a part of each batch, its last
    samples, is centred so in place of each sample by chance (nnU-Net).
    ``augmentation``: ``none``, a preset or a list, see `fedshift.tasks.augmentation`. ``augmentation_only`` or
    ``augmentation_without``: the parts of a preset that stay, or that are left out. ``mirror``: axes of a patch, from
    0, that a preset and ``evaluation.mirror`` may mirror; null for all. Leave out the last one where classes differ in
    the side. ``overlap`` of neighbouring windows of the sliding window in final evaluation, as a part of a window.
    ``fold``: train and test on a fold of a cross-validation, see `fedshift.data.splits.case_splits`. ``empty``: whether
    cases may lack the structures, see `fedshift.schema.codes`. ``cache``: where the volumes lie in training, see
    `fedshift.tasks.cache`.
    """

    dims: Literal[2, 3] = 3
    patch: tuple[Annotated[int, Field(ge=SMALLEST_PATCH)], ...]
    spacing: tuple[Millimetres | None, Millimetres | None, Millimetres | None] | None = None
    matrix: int | None = Field(default=None, ge=32)
    context: Annotated[int, Field(ge=1, le=9), AfterValidator(_odd)] = 1
    sequences: tuple[ClassName, ...] = ()
    pictures: bool = False
    normalise: Normalise = "volume"
    nonzero: bool = False
    fixed: Fixed | None = None
    bias_field: BiasField = "none"
    convention: Convention = "fedshift"
    samples_per_case: int = Field(default=SAMPLES_PER_CASE, ge=1)
    foreground: float = Field(default=0.33, ge=0, le=1)
    foreground_guaranteed: bool = False
    augmentation: str | tuple[dict[str, Any], ...] = "none"
    augmentation_only: tuple[str, ...] = ()
    augmentation_without: tuple[str, ...] = ()
    mirror: tuple[int, ...] | None = None
    overlap: float = Field(default=0.5, ge=0, lt=1)
    fold: Fold | None = None
    empty: bool | None = None
    cache: Cache = "auto"

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if len(self.patch) != self.dims:
            raise ValueError(f"'patch' has {len(self.patch)} sizes, and 'dims' is {self.dims}")
        if self.context > 1 and self.dims == AXES:
            raise ValueError("'context' is for dims: 2; a patch in 3D has its neighbouring slices")
        if self.pictures and (self.dims, self.context, self.spacing) != (2, 1, None):
            raise ValueError("'pictures' is for dims: 2 without 'context' and 'spacing'; 'matrix' sets their size")
        if any(axis not in range(self.dims) for axis in self.mirror or ()):
            raise ValueError(f"'mirror' has axes from 0 to {self.dims - 1}")
        if len(set(self.mirror or ())) < len(self.mirror or ()):
            raise ValueError("'mirror' names an axis twice")
        if len(set(self.sequences)) < len(self.sequences):
            raise ValueError("'sequences' names one twice")
        if (self.fixed is None) == (self.normalise == "fixed"):
            raise ValueError("'fixed' and normalise: fixed need each other")
        if self.pictures and (self.normalise == "landmarks" or self.bias_field != "none"):
            raise ValueError("'pictures' have no histogram landmarks and no bias field: normalise: fixed suits them")
        refuse_bias_field(self.bias_field, self.normalise)
        if self.convention == "nnunet":
            self._check_nnunet()
        return self

    def _check_nnunet(self) -> None:
        """Refuse what nnU-Net does not know (ValueError)."""
        other = {
            "pictures": self.pictures,
            "matrix": self.matrix is not None,
            "context": self.context > 1,
            "bias_field": self.bias_field != "none",
            f"normalise: {self.normalise}": self.normalise not in ("volume", "fixed", "none"),
            f"nonzero with normalise: {self.normalise}": self.nonzero and self.normalise != "volume",
        }
        for key, is_set in other.items():
            if is_set:
                raise ValueError(f"convention: nnunet has no {key}: leave one of the two out")
        known = [length is not None for length in self.spacing or (None,) * AXES]
        if known != [self.dims == AXES, True, True]:
            axes = "all axes" if self.dims == AXES else "rows and columns alone, as in [null, 0.5, 0.5]"
            raise ValueError(f"convention: nnunet needs a 'spacing' of {axes}")

    @property
    def channels(self) -> int:
        """Of an image."""
        return max(len(self.sequences), 1) * self.context

    @property
    def window(self) -> tuple[int, int, int]:
        """The patch along z, y, x."""
        z, y, x = (1,) * (AXES - self.dims) + self.patch
        return z, y, x

    @property
    def preparation(self) -> Preparation:
        """What the cached volumes depend on."""
        return Preparation(
            self.spacing,
            self.matrix,
            self.normalise,
            self.nonzero,
            self.fixed,
            self.sequences,
            self.bias_field,
            self.convention,
        )


class Patches(ScanData):
    """A prepared site: patches of memory-mapped volumes.

    In training a sample is a patch; in evaluation it is a whole case, whose images have the batch size 1 in 3D, and in
    2D the slices as batch. Members of a subset are cases.
    """

    eval_batch = 1

    def __init__(self, folder: Path, spec: DataSpec, *, site: str, augmentation: Augmentation | None) -> None:
        """Open the volumes; places of patches for statistics and the folds are drawn from the site's name.

        Raises:
            DataError: volumes, arrays or manifest are missing or damaged, or a sequence is missing.
        """
        _refuse_other_kind(folder, pictures=spec.pictures)
        self.volumes = open_volumes(folder, spec.preparation)
        self.manifest, self.standard = self.volumes.manifest, self.volumes.standard
        self._spec, self._folder, self._site = spec, folder, site
        self._augmentation, self.cache = augmentation, spec.cache
        self.in_threads = augmentation is None or augmentation.in_threads
        wider = (0,) * spec.dims if augmentation is None else augmentation.margin
        self._margin = (0,) * (AXES - spec.dims) + wider
        cases = self.manifest.cases
        self.check_masks(folder)
        self.split_rule = split_rule(spec.fold)
        splits = np.array(case_splits(cases, site=site, fold=spec.fold))
        self._members: dict[Subset, np.ndarray] = {part: np.flatnonzero(splits == part) for part in get_args(Split)}
        self._members["all"] = np.arange(len(cases))
        self._places: dict[Subset, list[tuple[int, tuple[int, ...]]]] = {}

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        return self.volumes.arrays

    def keep(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.volumes = self.volumes.stored_as(images, labels)

    def members(self, subset: Subset) -> np.ndarray:
        """Case numbers, ascending."""
        return self._members[subset]

    def count(self, subset: Subset) -> int:
        """Number of cases; of the training split, patches in an epoch."""
        return self.n_samples(subset) if subset == "train" else len(self.members(subset))

    def cases(self, subset: Subset) -> np.ndarray:
        """The case of each sample."""
        members = self.members(subset)
        return np.repeat(members, self._spec.samples_per_case) if subset == "train" else members

    def images(self, index: np.ndarray) -> Tensor:
        """One case: (1, C, z, y, x), or in 2D (z, C, y, x); float32."""
        return as_images(self.volumes.images(_case_number(index)), dims=self._spec.dims, context=self._spec.context)

    def labels(self, index: np.ndarray) -> Tensor:
        """One case: (1, z, y, x), or in 2D (z, y, x); int64."""
        labels = torch.from_numpy(self.volumes.labels(_case_number(index)).astype(np.int64))
        return labels[None] if self._spec.dims == AXES else labels

    def stacks(self, subset: Subset) -> Iterator[np.ndarray]:
        return self.eval_index(subset)

    def heights(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        depth = int(self.volumes.shapes[_case_number(index)][0])
        return (np.arange(depth) + 0.5) / depth, np.full(depth, 1 / depth)

    def placement(self, case: int) -> Placement | None:
        """Where a case's grid lies in its scan, in nnU-Net's convention."""
        return None if self.volumes.placements is None else self.volumes.placements[case]

    def reference(self, case: int) -> np.ndarray:
        """The classes (z, y, x) uint8 of a case on the scan's own grid."""
        return read_labels(self._folder, self.manifest.cases[case], self.manifest.stored)

    # --- patches --------------------------------------------------------------------------------------

    def n_samples(self, subset: Subset) -> int:
        return len(self.members(subset)) * self._spec.samples_per_case

    def window_cases(self, subset: Subset) -> np.ndarray:
        """The case of each window of the sliding window without overlap."""
        return np.array([case for case, _ in self._windows(subset)], dtype=np.int64)

    def windows(self, index: np.ndarray, subset: Subset) -> Tensor:
        """Those windows; labels decide where a patch of `samples` is, and not here."""
        chosen = [self._windows(subset)[number] for number in index.tolist()]
        return torch.stack([self._image(case, start, margin=(0,) * AXES) for case, start in chosen])

    def _windows(self, subset: Subset) -> list[tuple[int, tuple[int, ...]]]:
        """Case and first voxel of each."""
        if subset not in self._places:
            cases = self.members(subset).tolist()
            self._places[subset] = [(case, start) for case in cases for start in self._grid(self.volumes.shapes[case])]
        return self._places[subset]

    def _grid(self, shape: np.ndarray) -> list[tuple[int, ...]]:
        """First voxels of windows that cover a volume, the last of each axis moved back to its end."""
        starts = []
        for side, length in zip(self._spec.window, shape.tolist(), strict=True):
            free = length - side
            starts.append([-(-free // 2)] if free < 0 else [*range(0, free, side), free])
        return list(product(*starts))

    @property
    def n_train(self) -> int:
        return self.n_samples("train")

    @property
    def chunk(self) -> int:
        """Fewer patches where they are large."""
        size = 4 * self._spec.channels * int(np.prod(self._spec.patch))
        return max(1, min(CHUNK, CHUNK_BYTES // size))

    def samples(self, index: np.ndarray, subset: Subset) -> tuple[Tensor, Tensor]:
        """Patches drawn as in training, the same in every round, without augmentation."""
        seed = derive_seed(0, self._site, 0, f"patches of {subset}")
        cases, starts = self._places_of(index, draws.sample_seeds(seed, torch.from_numpy(index)), subset)
        return self._cut(cases, starts, (0,) * AXES)

    def train_batch(self, index: np.ndarray, *, seeds: Tensor) -> tuple[Tensor, Tensor]:
        last = np.arange(len(index)) >= round(len(index) * (1 - self._spec.foreground))
        cases, starts = self._places_of(
            index, seeds, "train", centred=last if self._spec.foreground_guaranteed else None
        )
        if self._on_device is None:
            x, y = self._cut(cases, starts, self._margin)
        else:
            x, y = self._gathered(cases, starts, self._margin, *self._on_device)
        return (x, y) if self._augmentation is None else self._augmentation(x, y, seeds=seeds)

    def _places_of(
        self, index: np.ndarray, seeds: Tensor, subset: Subset, *, centred: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The case (B,) of each patch and its first voxel (B, 3). ``centred``: (B,) on the foreground; None: drawn."""
        cases = self.members(subset)[index // self._spec.samples_per_case]
        return cases, self._starts(cases, seeds, centred)

    def _cut(self, cases: np.ndarray, starts: np.ndarray, margin: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Patches with a margin, one after another from the files or the machine's memory."""
        places = zip(cases.tolist(), starts.tolist(), strict=True)
        patches = [self._patch(case, start, margin) for case, start in places]
        return torch.stack([x for x, _ in patches]), torch.stack([y for _, y in patches])

    def _gathered(
        self, cases: np.ndarray, starts: np.ndarray, margin: Sequence[int], images: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same patches, all at once from the arrays on the device: voxels by their place, 0 beyond the volume."""
        depth, height, width = shape = self.volumes.shapes[cases].T[:, :, None]
        first, size = self._box((0,) * AXES, margin)
        at = [starts[:, k, None] + np.arange(first[k], first[k] + size[k]) for k in range(AXES)]
        inside = [(rows >= 0) & (rows < side) for rows, side in zip(at, shape, strict=True)]
        z, y, x = (np.clip(rows, 0, side - 1) for rows, side in zip(at, shape, strict=True))
        reach = self._spec.context // 2  # neighbouring slices, of a patch of one slice
        slices = np.clip(z + np.arange(-reach, reach + 1), 0, depth - 1)
        begin, plane, channels = self.volumes.first_voxels(cases)[:, None], height * width, self.volumes.channels
        sequences = begin * channels + np.arange(channels) * depth * plane
        # Voxels by their place in the arrays: tables of an axis each, (B, side), which are added up on the device.
        tables = (sequences[:, :, None] + (slices * plane)[:, None], begin + z * plane, y * width, x, *inside)
        in_image, in_labels, rows, columns, *known = (torch.from_numpy(table).to(images.device) for table in tables)
        in_plane = rows[:, :, None] + columns[:, None]
        outside = ~(known[0][:, :, None, None] & known[1][:, None, :, None] & known[2][:, None, None])
        image = images[in_image[..., None, None] + in_plane[:, None, None]].float().masked_fill_(outside[:, None], 0)
        label = labels[in_labels[..., None, None] + in_plane[:, None]].long().masked_fill_(outside, 0)
        return (image, label) if self._spec.dims == AXES else (image.flatten(1, 2), label[:, 0])

    def _patch(self, case: int, start: Sequence[int], margin: Sequence[int]) -> tuple[Tensor, Tensor]:
        labels = cut(self.volumes.labels(case), *self._box(start, margin))
        return self._image(case, start, margin=margin), torch.from_numpy(
            (labels if self._spec.dims == AXES else labels[0]).astype(np.int64)
        )

    def _image(self, case: int, start: Sequence[int], *, margin: Sequence[int]) -> Tensor:
        first, size = self._box(start, margin)
        volume = self.volumes.images(case)
        if self._spec.dims == AXES:
            images = cut(volume, first, size)
        else:
            slices = neighbours(np.array([start[0]]), self._spec.context, volume.shape[1])[0]
            images = cut(volume[:, slices], (0, *first[1:]), (len(slices), *size[1:])).reshape(-1, *size[1:])
        return torch.from_numpy(images.astype(np.float32))

    def _box(self, start: Sequence[int], margin: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """First voxel and size of a patch with its margin."""
        first = tuple(at - more // 2 for at, more in zip(start, margin, strict=True))
        return first, tuple(side + more for side, more in zip(self._spec.window, margin, strict=True))

    def _starts(self, cases: np.ndarray, seeds: Tensor, guaranteed: np.ndarray | None) -> np.ndarray:
        """The first voxels (B, 3) of patches of these cases; below 0 where a volume is smaller than the patch."""
        window, shapes = np.array(self._spec.window), self.volumes.shapes[cases]
        free = shapes - window
        drawn = draws.uniform(seeds, AXES + 3, stream=draws.PLACE).double().numpy()
        starts = (drawn[:, :AXES] * (np.maximum(free, 0) + 1)).astype(np.int64)
        if self.manifest.ignore:  # else many patches would have nothing to learn from
            counted, some = self.volumes.counted(cases, drawn[:, 0])
            starts = np.where(some[:, None], np.clip(counted - window // 2, 0, np.maximum(free, 0)), starts)
        centres, has_foreground = self.volumes.foreground(cases, drawn[:, AXES + 1 :])
        around = np.clip(centres - window // 2, 0, np.maximum(free, 0))
        centred = (drawn[:, AXES] < self._spec.foreground if guaranteed is None else guaranteed) & has_foreground
        starts = np.where(centred[:, None], around, starts)
        return np.asarray(np.where(free < 0, -(-free // 2), starts))


def _refuse_other_kind(folder: Path, *, pictures: bool) -> None:
    manifest = read_manifest(folder)
    if manifest.cases and manifest.pictured != pictures:
        holds, needs = ("pictures", "volumes") if manifest.pictured else ("volumes", "pictures")
        remedy = f"set data.pictures={str(manifest.pictured).lower()}, with dims 2 for pictures"
        raise DataError("kind-of-data", f"{folder} holds {holds}, this task needs {needs}: {remedy}, or name another")


def _case_number(index: np.ndarray) -> int:
    (case,) = index.tolist()
    return int(case)


def cut(volume: np.ndarray, first: Sequence[int], size: Sequence[int]) -> np.ndarray:
    """A part of (…, z, y, x), filled with 0 where it reaches beyond the volume."""
    shape = volume.shape[-AXES:]
    inside = [slice(max(at, 0), min(at + side, n)) for at, side, n in zip(first, size, shape, strict=True)]
    z, y, x = inside
    part = volume[..., z, y, x]
    if part.shape[-AXES:] == tuple(size):
        return part
    patch = np.zeros((*volume.shape[:-AXES], *size), volume.dtype)
    z, y, x = (slice(s.start - at, s.stop - at) for s, at in zip(inside, first, strict=True))
    patch[..., z, y, x] = part
    return patch
