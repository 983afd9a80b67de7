"""Classification of images: cached arrays, cross-entropy, accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn
from torch.nn import functional

from fedshift.data.arrays import open_images
from fedshift.data.splits import split_by_content, used_pictures
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import LISTED, ORDER, Split
from fedshift.schema.seeding import derive_seed
from fedshift.schema.strict import Strict
from fedshift.tasks.base import (
    EVALUATED,
    CaseScores,
    SiteData,
    Subset,
    initial_network,
    refuse_patch_options,
    selecting,
    sizes,
)
from fedshift.tasks.cache import Cache
from fedshift.tasks.evaluation.calibration import Calibration
from fedshift.tasks.evaluation.spread import FEWEST, distribution
from fedshift.tasks.losses import Logits, main
from fedshift.tasks.precision import precise

Share = Annotated[float, Field(ge=0, le=1)]


def _whole(shares: tuple[float, float, float]) -> tuple[float, float, float]:
    if shares[0] <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"must be fractions for training, validation and testing that sum to 1, not {shares}")
    return shares


class DataSpec(Strict):
    """Options of ``task.data``: how pictures become samples.

    ``size``: height and width in pixels. ``channels``: 1 for grey, 3 for colour. Intensities are scaled to [0, 1], then
    normalised by ``mean`` and ``std`` (one number, or one per channel).

    ``shares``: fractions of a site's images for training, validation and testing, by content within each class; None
    for the splits of the prepared data. ``fraction``: fraction of the training images to use; with ``fraction_of:
    site`` so many of all of the site's images (or the whole training part, if it has fewer), and the validation part is
    cut to the same fraction of itself, as if a site had no more. ``images``: at most that many training images.

    ``choose``: which ones, drawn at random, or the first of a published list. ``seed`` of that draw is apart from the
    job's, so that runs that differ in their seed train on the same images. ``cache``: where the pictures lie in
    training, see `fedshift.tasks.cache`.
    """

    size: int = Field(ge=8)
    channels: Literal[1, 3] = 3
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    shares: Annotated[tuple[Share, Share, Share], AfterValidator(_whole)] | None = None
    fraction: float = Field(default=1.0, gt=0, le=1)
    fraction_of: Literal["train", "site"] = "train"
    images: int | None = Field(default=None, ge=1)
    choose: Literal["random", "first"] = "random"
    seed: int = Field(default=0, ge=0)
    cache: Cache = "auto"


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
        return pictures.float().div_(255).sub_(mean).div_(std)

    def labels(self, index: np.ndarray) -> Tensor:
        """(B,) int64 for image numbers (B,)."""
        return torch.from_numpy(self._labels[index]).long()

    def train_batch(self, index: np.ndarray, *, seeds: Tensor) -> tuple[Tensor, Tensor]:
        if self._on_device is None:
            return self.train_samples(index)
        images, labels = self._on_device
        rows = torch.from_numpy(self.members("train")[index]).to(images.device)
        return self._normalised(images[rows]), labels[rows].long()


class Task:
    """Classification of the task's classes; the score is the accuracy over a split's images."""

    data_spec = DataSpec
    dense = False
    evaluated = EVALUATED
    metrics: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType(
        {"accuracy": (0, 1), "macro_accuracy": (0, 1)}
    )
    per_case = ("accuracy",)

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        refuse_patch_options(job)
        if job.evaluation.reference:
            raise ConfigError(
                "options-clash",
                f"task {job.task.name} classifies pictures, and evaluation.reference is of scans: leave it out",
            )
        self.metric = selecting(job, ("accuracy",))
        where = f"task {job.task.name}"
        self._data = DataSpec.parse(job.task.data, where=f"{where}: data")
        self.spatial = (self._data.size, self._data.size)
        self.sizes = sizes(self.spatial, len(job.task.classes))
        if str(job.task.loss) != "ce":
            raise ConfigError("loss-unfit", f"{where}: loss must be ce, not '{job.task.loss}'")
        for name, values in (("mean", self._data.mean), ("std", self._data.std)):
            if len(values) not in (1, self._data.channels):
                raise ConfigError(
                    "invalid-value", f"{where}: data.{name} needs 1 or {self._data.channels} numbers, not {len(values)}"
                )
        if min(self._data.std) <= 0:
            raise ConfigError("invalid-value", f"{where}: data.std must be above 0, not {self._data.std}")
        mean, std = np.array(self._data.mean), np.array(self._data.std)
        self.intensities = (float((-mean / std).min()), float(((1 - mean) / std).max()))

    def network(self) -> nn.Module:
        return initial_network(self._job, in_channels=self._data.channels)

    def preparation(self) -> dict[str, Any]:
        """How pictures become the network's input: see `data_prep.decode`."""
        return {
            "size": self._data.size,
            "channels": self._data.channels,
            "resampling": "bilinear, antialiased",
            "intensity": "divided by 255",
            "mean": list(self._data.mean),
            "std": list(self._data.std),
        }

    def open(self, folder: Path, site: str) -> Images:
        data = Images(folder, self._data, site=site)
        data.check_fits(self._job, folder, site)
        return data

    def at(self, data: SiteData) -> Task:
        return self

    def loss(self, logits: Logits, target: Tensor) -> Tensor:
        """Cross-entropy, in float32 (float64 stays); soft targets (B, K) are allowed."""
        return functional.cross_entropy(precise(main(logits)), target)

    def logits(
        self, forward: Callable[[Tensor], Tensor], batches: Iterable[Tensor], *, final: bool, apart: bool = False
    ) -> Iterator[Tensor]:
        return map(forward, batches)

    def scores(self, predictions: Iterator[Tensor], data: Images, subset: Subset) -> dict[str, float]:
        """``accuracy``: the share of the subset's images whose most likely class is the right one."""
        members = data.members(subset)
        if not len(members):
            return {}
        predicted = torch.cat(list(predictions))
        return {"accuracy": float((predicted == data.labels(members)).double().mean())}

    def evaluate(
        self,
        probabilities: Iterator[Tensor],
        data: Images,
        subset: Subset,
        *,
        seed: int,
        share_cases: bool,
        keep: CaseScores | None = None,
    ) -> Evaluation:
        """Accuracy with its interval over pictures, confusion matrix, calibration; of few pictures the accuracy alone.

        ``macro_accuracy`` is the mean over classes that the subset has of the share of their pictures that is right.
        """
        calibration = Calibration()
        n_classes = len(self._job.task.classes)
        confusion = np.zeros((n_classes, n_classes), np.int64)
        right: list[np.ndarray] = []
        for index, batch in zip(data.eval_index(subset), probabilities, strict=True):
            confidence, predicted = batch.max(1)
            labels = data.labels(index)
            right.append((predicted == labels).numpy())
            np.add.at(confusion, (labels.numpy(), predicted.numpy()), 1)
            calibration.add(confidence.double().numpy(), right[-1])
        hides = not share_cases and len(data.members(subset)) < FEWEST
        spread = distribution(np.concatenate(right), seed=seed, share_cases=share_cases)
        if keep is not None:
            keep.values = {"accuracy": np.concatenate(right).astype(np.float64)}
        seen = confusion.sum(1) > 0
        recall = confusion.diagonal()[seen] / confusion.sum(1)[seen]
        return Evaluation(
            scores={"accuracy": spread.mean, "macro_accuracy": float(recall.mean())},
            distributions={"accuracy": spread},
            calibration=None if hides else calibration.record(fewest=1 if share_cases else FEWEST),
            confusion=None if hides else confusion.tolist(),
        )


def build(job: JobSpec) -> Task:
    return Task(job)
