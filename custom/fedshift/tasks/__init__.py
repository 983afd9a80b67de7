"""The kinds of task: how a site's data become batches, what the loss is, what is scored."""

from __future__ import annotations

import importlib
import pkgutil
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from fedshift import networks
from fedshift.data.manifest import Manifest, Split
from fedshift.data.samples import Samples
from fedshift.errors import ConfigError
from fedshift.job import JobSpec
from fedshift.strict import nearest
from fedshift.training.seeding import derive_seed


class SiteData(Samples):
    """A prepared site as training and evaluation read it."""

    manifest: Manifest
    split_rule: str

    @abstractmethod
    def count(self, split: Split) -> int:
        """Number of samples of a split."""

    @property
    def n_train(self) -> int:
        """Training samples."""
        return self.count("train")


class Task(Protocol):
    """One kind of task, built from a job."""

    images_are_slices: bool
    """Whether the channels of an image are neighbouring slices and not colours."""
    sizes: Mapping[str, int]
    """What words in a method's array shapes stand for: rows, columns, half columns (of a real spectrum), classes."""
    metric: str
    """The score that selects the best round; higher is better."""
    metrics: Mapping[str, tuple[float, float]]
    """Every score and its range; sites may send no others."""

    def __init__(self, job: JobSpec) -> None: ...

    def network(self) -> nn.Module:
        """The network with its initial weights."""
        ...

    def open(self, folder: Path, site: str) -> SiteData:
        """A site's prepared folder."""
        ...

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """A scalar for a batch."""
        ...

    def scores(self, predictions: Iterator[Tensor], data: SiteData, split: Split) -> dict[str, float]:
        """Scores of predicted classes, which come batch by batch in the order of ``eval_images``."""
        ...

    def eval_images(self, data: SiteData, split: Split) -> Iterator[Tensor]:
        """The split's images, in order."""
        ...


def sizes(side: int, n_classes: int) -> Mapping[str, int]:
    """`Task.sizes` of square images."""
    return {"rows": side, "columns": side, "half columns": side // 2 + 1, "classes": n_classes}


def initial_network(job: JobSpec, *, in_channels: int) -> nn.Module:
    """The job's network; its initial weights depend on the seed only."""
    spec = job.task.network
    return networks.build(
        spec.name,
        spec.options,
        in_channels=in_channels,
        n_classes=len(job.task.classes),
        seed=derive_seed(job.seed, "server", 0, "weights"),
    )


def build_task(job: JobSpec) -> Task:
    """The task of a job.

    Raises:
        ConfigError: no such kind, or a ``data`` key that the kind does not know.
    """
    kinds: Sequence[str] = [module.name for module in pkgutil.iter_modules(__path__)]
    kind = job.task.kind
    if kind not in kinds:
        raise ConfigError(f"task {job.task.name}: there is no kind {kind!r}{nearest(kind, kinds)}")
    task: Task = importlib.import_module(f"fedshift.tasks.{kind}").Task(job)
    return task
