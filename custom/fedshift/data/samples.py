"""Training samples of a site, or of several put together, cut into chunks and shuffled batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

CHUNK = 32


def epoch_starts(n_train: int, *, batch_size: int, drop_last: bool) -> range:
    """Where the batches of an epoch begin among ``n_train`` shuffled samples, as `Samples.train_batches` cuts them."""
    batch_size = min(batch_size, n_train)
    smallest = batch_size if drop_last else min(2, batch_size)
    return range(0, n_train - smallest + 1, batch_size)


class Samples(ABC):
    """What a kind of data must say of its training samples; the rest follows."""

    @property
    @abstractmethod
    def n_train(self) -> int:
        """Number of training samples."""

    @abstractmethod
    def train_samples(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        """Un-augmented images (B, C, H, W) float32 and targets of training samples 0 … n_train - 1."""

    def augmented(self, x: Tensor, y: Tensor, *, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """The augmentation that belongs to the task's data."""
        return x, y

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All training samples in order, un-augmented."""
        for start in range(0, self.n_train, CHUNK):
            yield self.train_samples(np.arange(start, min(start + CHUNK, self.n_train)))

    def train_batches(
        self, *, batch_size: int, order: torch.Generator, augmentation: torch.Generator, drop_last: bool = True
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """A shuffled epoch. With ``drop_last`` the last, smaller batch is left out unless it is the only one.

        A last batch of a single sample is left out in any case: batch norm cannot train on it.
        """
        shuffled = torch.randperm(self.n_train, generator=order).numpy()
        for start in epoch_starts(self.n_train, batch_size=batch_size, drop_last=drop_last):
            x, y = self.train_samples(shuffled[start : start + batch_size])
            yield self.augmented(x, y, rng=augmentation)


class Union(Samples):
    """Several sites' samples as if they were one site's."""

    def __init__(self, parts: Sequence[Samples]) -> None:
        """``parts`` are numbered one after another."""
        self._parts = parts
        self._ends = np.cumsum([part.n_train for part in parts])

    @property
    def n_train(self) -> int:
        """Of all parts."""
        return int(self._ends[-1])

    def train_samples(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        """The samples in the order of their parts, which a shuffled batch does not mind."""
        part_of = np.searchsorted(self._ends, index, side="right")
        picked = []
        for number, part in enumerate(self._parts):
            chosen = index[part_of == number]
            if len(chosen):
                picked.append(part.train_samples(chosen - (self._ends[number] - part.n_train)))
        return torch.cat([x for x, _ in picked]), torch.cat([y for _, y in picked])

    def augmented(self, x: Tensor, y: Tensor, *, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """All sites of a job have the same."""
        return self._parts[0].augmented(x, y, rng=rng)


class EverySite(Samples):
    """Several sites' samples in batches that hold equally many of each, site after site."""

    def __init__(self, parts: Sequence[Samples]) -> None:
        """An epoch is as long as that of the largest; the others begin again."""
        self._parts = parts

    @property
    def n_train(self) -> int:
        """Of all parts."""
        return sum(part.n_train for part in self._parts)

    def train_samples(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        """As `Union`."""
        return Union(self._parts).train_samples(index)

    def train_batches(
        self, *, batch_size: int, order: torch.Generator, augmentation: torch.Generator, drop_last: bool = True
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of ``batch_size`` a site, or as many as the smallest site has; all are of equal size."""
        each = min(batch_size, *(part.n_train for part in self._parts))
        longest = max(part.n_train // each for part in self._parts)

        def endless(part: Samples) -> Iterator[tuple[Tensor, Tensor]]:
            while True:
                yield from part.train_batches(batch_size=each, order=order, augmentation=augmentation)

        for batch in islice(zip(*(endless(part) for part in self._parts), strict=True), longest):
            yield torch.cat([x for x, _ in batch]), torch.cat([y for _, y in batch])
