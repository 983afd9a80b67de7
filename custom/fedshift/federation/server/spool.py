"""Accepted updates wait on disk until they are combined, so that memory does not grow with the number of sites.

The server halves read them array by array: as they were sent (`SpooledUpdate`), or with arrays that a limit or a robust
rule computes when they are read (`ReplacedUpdate`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from math import prod
from pathlib import Path

import numpy as np

from fedshift.federation.server.update_check import Change
from fedshift.schema.messages import Update

Place = tuple[int, np.dtype, tuple[int, ...]]
"""Offset, type and shape of an array in a file."""


class ComputedArrays(Mapping[str, np.ndarray]):
    """Arrays by name, each computed whenever it is asked for."""

    def __init__(self, names: Collection[str], compute: Callable[[str], np.ndarray]) -> None:
        self._names, self._compute = names, compute

    def __getitem__(self, key: str) -> np.ndarray:
        if key not in self._names:
            raise KeyError(key)
        return self._compute(key)

    def __contains__(self, key: object) -> bool:
        return key in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class ArraysOnDisk(Mapping[str, np.ndarray]):
    """Arrays that lie in a file one after another."""

    def __init__(self, path: Path, places: Mapping[str, Place]) -> None:
        self._path, self._places = path, places

    def __getitem__(self, key: str) -> np.ndarray:
        return self.part(key, slice(None)).reshape(self._places[key][2])

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def part(self, key: str, numbers: slice) -> np.ndarray:
        """Some of the numbers of an array, flat, in C order.

        Raises:
            KeyError: there is no array of that name.
            OSError: the file is shorter than when it was written.
        """
        offset, dtype, shape = self._places[key]
        start, stop, _ = numbers.indices(prod(shape))
        array = np.fromfile(self._path, dtype, stop - start, offset=offset + start * dtype.itemsize)
        self._require(array.size == stop - start)
        return array

    def _require(self, whole: bool) -> None:
        if not whole:
            raise OSError(f"{self._path} has become shorter since it was written: the disk is full or broken")


class SpooledUpdate:
    """An accepted update whose arrays are on disk."""

    def __init__(self, update: Update, path: Path, change: Change) -> None:
        """Write the arrays of ``update`` to ``path``; ``change`` is the result of its check.

        Raises:
            OSError: they cannot be written; nothing is left behind.
        """
        self.change = change
        self.site, self.n_samples, self.n_steps = update.site, update.n_samples, update.n_steps
        self.metrics: Mapping[str, float] = update.metrics
        self.scaled: Mapping[str, float] = {}
        path.parent.mkdir(exist_ok=True)
        try:
            with path.open("wb") as file:

                def write(named: Mapping[str, np.ndarray]) -> ArraysOnDisk:
                    places: dict[str, Place] = {}
                    for key, value in named.items():
                        array = np.asarray(value, order="C")
                        places[key] = file.tell(), array.dtype, array.shape
                        file.write(array.reshape(-1).view(np.uint8).data)
                    return ArraysOnDisk(path, places)

                self.weights = write(update.weights)
                self.arrays = {method: write(named) for method, named in update.arrays.items()}
        except OSError:
            path.unlink(missing_ok=True)
            raise


class ReplacedUpdate:
    """An update as the server halves see it: its arrays are computed when they are read, one tensor at a time."""

    def __init__(
        self,
        sent: SpooledUpdate,
        weight: Callable[[str], np.ndarray],
        array: Callable[[str, str], np.ndarray],
        *,
        n_samples: int | None = None,
        n_steps: int | None = None,
        scaled: Mapping[str, float] | None = None,
    ) -> None:
        """Make a view of an update.

        Args:
            sent: the update as it was sent.
            weight: the array of a network key.
            array: the array of a method and a name.
            n_samples: the sample count that it is weighted by; the site's own if None.
            n_steps: the number of steps that it counts with; the site's own if None.
            scaled: what its changes were multiplied by (`fedshift.methods.base.SiteUpdate.scaled`).
        """
        self.site, self.metrics = sent.site, sent.metrics
        self.n_samples = sent.n_samples if n_samples is None else n_samples
        self.n_steps = sent.n_steps if n_steps is None else n_steps
        self.scaled: Mapping[str, float] = scaled or {}
        self.weights = ComputedArrays(sent.weights.keys(), weight)
        self.arrays = {
            method: ComputedArrays(named.keys(), partial(array, method)) for method, named in sent.arrays.items()
        }
