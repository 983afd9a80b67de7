"""Training samples of one site, or of several sites together, as chunks and shuffled batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

CHUNK = 32
CHUNK_BYTES = 2**26  # a chunk of larger samples has fewer of them


def epoch_starts(n_train: int, *, batch_size: int, drop_last: bool) -> range:
    """Start index of each batch in an epoch of ``n_train`` shuffled samples (see `Samples.epoch`)."""
    batch_size = max(1, min(batch_size, n_train))
    smallest = batch_size if drop_last else min(2, batch_size)
    return range(0, n_train - smallest + 1, batch_size)


class Samples(ABC):
    """Base class: a data set implements ``n_train`` and ``train_samples`` and gets batches from here."""

    in_threads: bool = True
    """Whether `train_batch` may run beside training: not if it draws from torch's global generator."""

    @property
    @abstractmethod
    def n_train(self) -> int:
        """Number of training samples."""

    @abstractmethod
    def train_samples(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        """Images (B, C, *spatial) float32 without augmentation and targets, for indices in 0 … n_train - 1."""

    def train_batch(self, index: np.ndarray, *, seeds: Tensor) -> tuple[Tensor, Tensor]:
        """The samples of one batch of `epoch` as training sees them: drawn at random places, and augmented.

        ``seeds``: one for each sample, (B,) int64 on the CPU (`fedshift.data.draws.sample_seeds`); a sample depends on
        its own alone. By default `train_samples`.
        """
        return self.train_samples(index)

    def chunks(self, order: torch.Generator | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """All training samples without augmentation, one after another, or shuffled by ``order``.

        Prepared sites are sorted by class or case, so that a chunk in order is no sample of the site.
        """
        yield from map(self.train_samples, self._in_chunks(self.n_train, order))

    @property
    def n_images(self) -> int:
        return self.n_train

    @property
    def landmarks(self) -> np.ndarray | None:
        """The standard landmarks of each training volume, (cases, S, 9) float64; None if it has none."""
        return None

    def image_samples(self, index: np.ndarray) -> Tensor:
        """Images (B, C, *spatial) as evaluation passes them to the network, for indices in 0 … n_images - 1."""
        return self.train_samples(index)[0]

    def images_alone(self, order: torch.Generator | None = None) -> Iterator[Tensor]:
        """The training images as evaluation passes them to the network, as `chunks`. Targets have no part in them."""
        yield from map(self.image_samples, self._in_chunks(self.n_images, order))

    def _in_chunks(self, count: int, order: torch.Generator | None) -> Iterator[np.ndarray]:
        index = np.arange(count) if order is None else torch.randperm(count, generator=order).numpy()
        size = self.chunk
        for start in range(0, count, size):
            yield index[start : start + size]

    def validation(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All validation samples, as `chunks` gives those of training and in order; by default there are none."""
        yield from ()

    @property
    def chunk(self) -> int:
        """Number of samples that `chunks` and `validation` give at a time."""
        return CHUNK

    def epoch(self, *, batch_size: int, order: torch.Generator, drop_last: bool = True) -> Iterator[np.ndarray]:
        """Indices of the samples of each batch of a shuffled epoch; no image is read.

        With ``drop_last`` a smaller last batch is skipped unless it is the only one. A last batch of one sample is
        always skipped, since batch norm cannot train on it.
        """
        weights = self.draw_weights
        if weights is None:
            drawn = torch.randperm(self.n_train, generator=order).numpy()
        else:
            drawn = torch.multinomial(torch.from_numpy(weights), self.n_train, True, generator=order).numpy()
        for start in epoch_starts(self.n_train, batch_size=batch_size, drop_last=drop_last):
            yield drawn[start : start + batch_size]

    @property
    def draw_weights(self) -> np.ndarray | None:
        """With which weight each training sample (n,) is drawn in an epoch; None if each comes once."""
        return None

    def n_batches(self, *, batch_size: int, drop_last: bool) -> int:
        return len(epoch_starts(self.n_train, batch_size=batch_size, drop_last=drop_last))


class Union(Samples):
    """The samples of several sites, treated as one site."""

    def __init__(self, parts: Sequence[Samples]) -> None:
        """``parts``: one per site; their samples are numbered consecutively."""
        self._parts, self.in_threads = parts, all(part.in_threads for part in parts)
        self._ends = np.cumsum([part.n_train for part in parts])

    @property
    def n_train(self) -> int:
        return int(self._ends[-1])

    def train_samples(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        """Samples grouped by site (not in the order of ``index``); batches are shuffled anyway."""
        return _joined(part.train_samples(index[rows] - first) for part, first, rows in self.by_part(index))

    def train_batch(self, index: np.ndarray, *, seeds: Tensor) -> tuple[Tensor, Tensor]:
        """Each site's samples drawn and augmented for themselves, grouped by site."""
        return _joined(
            part.train_batch(index[rows] - first, seeds=seeds[rows]) for part, first, rows in self.by_part(index)
        )

    @property
    def draw_weights(self) -> np.ndarray | None:
        """Each site's own, such that sites come as often as they have samples."""
        weights = [part.draw_weights for part in self._parts]
        known = [w / w.sum() * part.n_train for w, part in zip(weights, self._parts, strict=True) if w is not None]
        return np.concatenate(known) if len(known) == len(weights) else None

    @property
    def chunk(self) -> int:
        """That of the sites, which have samples of one size."""
        return self._parts[0].chunk

    def by_part(self, index: np.ndarray) -> Iterator[tuple[Samples, int, np.ndarray]]:
        """The sites that have samples of ``index``, the number of their first sample, and their places in it."""
        part_of = np.searchsorted(self._ends, index, side="right")
        for number, part in enumerate(self._parts):
            rows = np.flatnonzero(part_of == number)
            if len(rows):
                yield part, int(self._ends[number]) - part.n_train, rows


def _joined(parts: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """One batch, where the first part is: of several sites some may not fit on the device (`fedshift.tasks.cache`)."""
    x, y = zip(*parts, strict=True)
    first, second = (torch.cat([part.to(values[0].device) for part in values]) for values in (x, y))
    return first, second


class EverySite(Samples):
    """The samples of several sites, in batches with equally many samples of each site, grouped by site."""

    def __init__(self, parts: Sequence[Samples]) -> None:
        """An epoch ends when the largest site is through; smaller sites start over."""
        self._parts, self.in_threads = parts, all(part.in_threads for part in parts)

    @property
    def n_train(self) -> int:
        return sum(part.n_train for part in self._parts)

    def train_samples(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        """See `Union.train_samples`."""
        return Union(self._parts).train_samples(index)

    def epoch(self, *, batch_size: int, order: torch.Generator, drop_last: bool = True) -> Iterator[np.ndarray]:
        """Batches of ``batch_size`` samples per site, or as many as the smallest site has; all of equal size.

        Samples are numbered as in `Union`.
        """
        each = self._each(batch_size)

        def endless(part: Samples, first: int) -> Iterator[np.ndarray]:
            while True:
                for index in part.epoch(batch_size=each, order=order):
                    yield first + index

        sizes = [part.n_train for part in self._parts]
        starts = np.cumsum([0, *sizes[:-1]])
        batches = zip(
            *(endless(part, int(start)) for part, start in zip(self._parts, starts, strict=True)), strict=True
        )
        for batch in islice(batches, self._longest(each)):
            yield np.concatenate(batch)

    def train_batch(self, index: np.ndarray, *, seeds: Tensor) -> tuple[Tensor, Tensor]:
        """See `Union.train_batch`."""
        return Union(self._parts).train_batch(index, seeds=seeds)

    def n_batches(self, *, batch_size: int, drop_last: bool) -> int:
        return self._longest(self._each(batch_size))

    def _each(self, batch_size: int) -> int:
        return min(batch_size, *(part.n_train for part in self._parts))

    def _longest(self, each: int) -> int:
        return max(part.n_train // each for part in self._parts)
