"""The pictures of a prepared site and their labels, in a memory-mapped array."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from fedshift.data.arrays import UNKNOWN, open_images
from fedshift.data.splits import split_by_content, used_pictures
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import LISTED, ORDER, Split
from fedshift.schema.seeding import derive_seed
from fedshift.tasks.base import SiteData, Subset
from fedshift.tasks.classification.losses import balanced_draw
from fedshift.tasks.classification.spec import DataSpec


def targets(labels: Tensor) -> Tensor:
    """Stored labels uint8 as targets: classes (B,) int64, or findings (B, K) float32 with NaN for unknown."""
    if labels.dim() == 1:
        return labels.long()
    return torch.where(labels == UNKNOWN, torch.nan, labels.float())


class Images(SiteData):
    """A prepared site: pictures in a memory-mapped array."""

    eval_batch = 64

    def __init__(self, folder: Path, spec: DataSpec, *, site: str) -> None:
        """Open the arrays.

        Raises:
            DataError: arrays or manifest are missing or damaged, or the first of a list are asked for where there is
                none.
        """
        arrays = open_images(folder, size=spec.size, channels=spec.channels)
        self.manifest = arrays.manifest
        self.split_rule = str(self.manifest.preparation.get("split_rule", "manifest"))[:64]
        self._images, self._labels, self.cache = arrays.images, arrays.labels, spec.cache
        self._balanced = spec.sampling == "balanced"
        self.check_labels(folder, findings=spec.multi_label)
        self._mean, self._std = (torch.tensor(v).reshape(1, -1, 1, 1) for v in (spec.mean, spec.std))
        splits = np.array([picture.split for picture in self.manifest.pictures])
        if spec.shares is not None:
            splits = split_by_content(self.manifest.pictures, spec.shares)
            self.split_rule = "the job's: by content " + "/".join(f"{100 * share:g}" for share in spec.shares)
        self._members: dict[Subset, np.ndarray] = {
            subset: np.flatnonzero(splits == subset) for subset in get_args(Split)
        }
        self._members["all"] = np.arange(len(splits))
        kept = used_pictures(
            {split: len(self._members[split]) for split in get_args(Split)},
            fraction=spec.fraction,
            of_site=spec.fraction_of == "site",
            images=spec.images,
        )
        if spec.choose == "first" and self.manifest.preparation.get(ORDER) != LISTED:
            raise DataError(
                "order-missing",
                f"{folder}: data.choose=first needs pictures in the order of a published list: prepare the data set "
                "(again) with --split papers, or set data.choose=random",
            )
        portioned: tuple[Split, ...] = ("train", "val")
        for split in portioned:
            members = self._members[split]
            if kept[split] < len(members):
                purpose = "fraction" if split == "train" else f"fraction {split}"
                rng = np.random.default_rng(derive_seed(spec.seed, site, 0, purpose))
                chosen = members if spec.choose == "first" else rng.permutation(members)
                self._members[split] = np.sort(chosen[: kept[split]])

    def check_labels(self, folder: Path, *, findings: bool) -> None:
        """Refuse one label each where findings are wanted, and the other way round (`DataError`)."""
        if self.manifest.has_findings != findings:
            has, mend = ("findings", "true") if self.manifest.has_findings else ("one label each", "false")
            raise DataError("other-labels", f"{folder}: its pictures have {has}: set data.multi_label={mend}")

    def members(self, subset: Subset) -> np.ndarray:
        """Image numbers of a split in ascending order; ``all`` includes those that ``fraction`` leaves out."""
        return self._members[subset]

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        return self._images, self._labels

    def keep(self, images: np.ndarray, labels: np.ndarray) -> None:
        self._images, self._labels = images, labels

    def images(self, index: np.ndarray) -> Tensor:
        """(B, C, S, S) float32 for image numbers (B,)."""
        return self._normalised(torch.from_numpy(self._images[index]))

    def _normalised(self, pictures: Tensor) -> Tensor:
        mean, std = self._mean.to(pictures.device), self._std.to(pictures.device)
        return pictures.float().div_(65535 if pictures.dtype == torch.uint16 else 255).sub_(mean).div_(std)

    def labels(self, index: np.ndarray) -> Tensor:
        """(B,) int64 for image numbers (B,); of findings (B, K) float32."""
        return targets(torch.from_numpy(self._labels[index]))

    @property
    def train_labels(self) -> np.ndarray:
        """Of the training images: classes (n,), or findings (n, K), NaN where unknown."""
        return self.labels(self.members("train")).numpy()

    @property
    def draw_weights(self) -> np.ndarray | None:
        return balanced_draw(self.train_labels, findings=self._labels.ndim > 1) if self._balanced else None

    def train_batch(self, index: np.ndarray, *, seeds: Tensor) -> tuple[Tensor, Tensor]:
        if self._on_device is None:
            return self.train_samples(index)
        images, labels = self._on_device
        rows = torch.from_numpy(self.members("train")[index]).to(images.device)
        return self._normalised(_rows(images, rows)), targets(labels[rows])


def _rows(images: Tensor, rows: Tensor) -> Tensor:
    """Some of the images; those of 16 bits as signed numbers, which every device can gather."""
    if images.dtype == torch.uint16:
        return images.view(torch.int16)[rows].view(torch.uint16)
    return images[rows]
