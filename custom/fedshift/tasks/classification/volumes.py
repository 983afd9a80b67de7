"""The volumes of a prepared site and their labels, each cut to one size, in a memory-mapped array."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedshift.data.resampled import Fixed, Preparation, intensity_range, refuse_bias_field
from fedshift.data.splits import Fold, case_splits, split_rule
from fedshift.data.whole_volumes import Centre, Cut, open_whole
from fedshift.runtime.bias_field import BiasField
from fedshift.runtime.grids import Normalise
from fedshift.schema.manifest import Split
from fedshift.schema.names import ClassName
from fedshift.schema.strict import Strict
from fedshift.tasks.augmentation import Augmentation, make_augmentation
from fedshift.tasks.augmentation.geometry import centre
from fedshift.tasks.cache import Cache
from fedshift.tasks.classification.pictures import Images, targets

Side = Annotated[int, Field(ge=4, le=1024)]
Millimetres = Annotated[float, Field(gt=0, le=1000)]


class VolumeSpec(Strict):
    """Options of ``task.data`` with a ``patch``: how volumes to classify become samples.

    ``patch``: size in voxels along z, y, x, to which volumes are cropped or padded with 0. ``centre``: of the box that
    is cut, that of the volume, or of the voxels of its first sequence that are not 0 (``nonzero``). ``spacing``,
    ``matrix``, ``sequences``, ``normalise``, ``nonzero``, ``fixed``, ``bias_field``: as of segmentation by patches
    (`fedshift.tasks.segmentation.patches.DataSpec`); so are ``augmentation``, its parts and ``mirror``, which change
    training volumes, and ``fold``.

    ``multi_label``, ``ordinal``, ``sampling``, ``cache``: as of pictures
    (`fedshift.tasks.classification.spec.DataSpec`).
    """

    patch: tuple[Side, Side, Side]
    centre: Centre = "volume"
    spacing: tuple[Millimetres | None, Millimetres | None, Millimetres | None] | None = None
    matrix: int | None = Field(default=None, ge=8)
    sequences: tuple[ClassName, ...] = ()
    normalise: Normalise = "volume"
    nonzero: bool = False
    fixed: Fixed | None = None
    bias_field: BiasField = "none"
    augmentation: str | tuple[dict[str, Any], ...] = "none"
    augmentation_only: tuple[str, ...] = ()
    augmentation_without: tuple[str, ...] = ()
    mirror: tuple[Annotated[int, Field(ge=0, le=2)], ...] | None = None
    multi_label: bool = False
    ordinal: bool = False
    sampling: Literal["shuffled", "balanced"] = "shuffled"
    fold: Fold | None = None
    cache: Cache = "auto"

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if len(set(self.sequences)) < len(self.sequences):
            raise ValueError("'sequences' names one twice")
        if (self.fixed is None) == (self.normalise == "fixed"):
            raise ValueError("'fixed' and normalise: fixed need each other")
        refuse_bias_field(self.bias_field, self.normalise)
        return self

    @property
    def channels(self) -> int:
        return max(len(self.sequences), 1)

    @property
    def spatial(self) -> tuple[int, ...]:
        return self.patch

    @property
    def intensities(self) -> tuple[float, float]:
        return intensity_range(self.normalise, self.fixed)

    def cut(self, margin: tuple[int, ...] = (0, 0, 0)) -> Cut:
        """How a volume is cut; ``margin``: how many voxels more than the patch the cached arrays have."""
        how = Preparation(
            self.spacing, self.matrix, self.normalise, self.nonzero, self.fixed, self.sequences, self.bias_field
        )
        return Cut(how, self.patch, self.centre, margin)

    def image(self, voxels: np.ndarray, spacing: Sequence[float] | None) -> Tensor:
        """The network's input (S, *patch) float32 of sequences (S, z, y, x) as stored, with voxels of ``spacing`` mm.

        Raises:
            ValueError: intensities that the normalisation cannot take.
        """
        return torch.from_numpy(self.cut().volume(voxels, spacing)).float()

    def make_augmentation(self) -> Augmentation | None:
        """The augmentation of training.

        Raises:
            ConfigError: no such preset or transform.
        """
        with torch.device("cpu"):  # which sizes are measured on, wherever a task is built
            return make_augmentation(
                self.augmentation,
                dims=3,
                patch=self.patch,
                sequences=self.channels,
                mirror=self.mirror,
                nonzero=self.nonzero,
                only=self.augmentation_only,
                without=self.augmentation_without,
            )

    def preparation(self) -> dict[str, Any]:
        """How a volume becomes the network's input, as plain values."""
        fields = {"patch", "centre", "spacing", "matrix", "sequences", "normalise", "nonzero", "fixed"}
        fields |= set() if self.bias_field == "none" else {"bias_field"}
        return self.model_dump(mode="json", include=fields)

    @property
    def margin(self) -> tuple[int, ...]:
        """Voxels that are cut in addition to the patch, for augmentation."""
        augmentation = self.make_augmentation()
        return (0, 0, 0) if augmentation is None else augmentation.margin


class Volumes(Images):
    """A prepared site: volumes of one size in a memory-mapped array."""

    eval_batch = 8

    def __init__(self, folder: Path, spec: VolumeSpec, *, site: str) -> None:
        """Open the arrays, or make them.

        Raises:
            DataError: arrays, volumes or manifest are missing or damaged, or a sequence is missing.
        """
        self._augmentation = spec.make_augmentation()
        opened = open_whole(folder, spec.cut(spec.margin))
        self.manifest, self._patch, self.standard = opened.manifest, spec.patch, opened.standard
        self._images, self._labels, self.cache = opened.images, opened.labels, spec.cache
        self.in_threads = self._augmentation is None or self._augmentation.in_threads
        self._balanced = spec.sampling == "balanced"
        self.check_labels(folder, findings=spec.multi_label)
        self.split_rule = split_rule(spec.fold) if spec.fold else str(self.manifest.preparation["split_rule"])[:64]
        splits = np.array(case_splits(self.manifest.cases, site=site, fold=spec.fold))
        self._members = {split: np.flatnonzero(splits == split) for split in get_args(Split)}
        self._members["all"] = np.arange(len(splits))

    def _normalised(self, pictures: Tensor) -> Tensor:
        """Stored volumes with their margin as the network's input, which has none."""
        return centre(pictures.float(), self._patch)

    @property
    def chunk(self) -> int:
        return self.eval_batch

    def train_batch(self, index: np.ndarray, *, seeds: Tensor) -> tuple[Tensor, Tensor]:
        if self._augmentation is None:
            return super().train_batch(index, seeds=seeds)
        members = self.members("train")[index]
        if self._on_device is None:
            wide, labels = torch.from_numpy(self._images[members]), torch.from_numpy(self._labels[members])
        else:
            rows = torch.from_numpy(members).to(self._on_device[0].device)
            wide, labels = (array[rows] for array in self._on_device)
        nothing = torch.zeros((len(wide), *wide.shape[2:]), dtype=torch.uint8, device=wide.device)
        volumes, _ = self._augmentation(wide.float(), nothing, seeds=seeds)
        return volumes, targets(labels)
