"""Accepted updates wait on disk until they are combined, so that memory does not grow with the number of sites.

The server halves read them array by array: as they were sent (`SpooledUpdate`), or with arrays that a limit or a robust
rule computes when they are read (`ReplacedUpdate`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from io import BufferedReader
from math import prod
from pathlib import Path

import numpy as np

from fedshift.federation.server.update_check import Change
from fedshift.schema.messages import Update

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class _Place:
    """Offset, type and shape of an array in the file."""

    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]


class SpooledUpdate:
    """An accepted update whose arrays are on disk. Each access reads an array; nothing is cached."""

    def __init__(self, update: Update, path: Path, change: Change) -> None:
        """Write the arrays of ``update`` to ``path``; ``change`` is the result of its check.

        Raises:
            OSError: they cannot be written; nothing is left behind.
        """
        self.change = change
        self.site, self.n_samples, self.n_steps = update.site, update.n_samples, update.n_steps
        self.metrics: Mapping[str, float] = update.metrics
        self.scaled: Mapping[str, float] = {}
        parts = {"weights": update.weights, **{f"arrays/{name}": named for name, named in update.arrays.items()}}
        path.parent.mkdir(exist_ok=True)
        self._path = path
        self._file: BufferedReader | None = None
        self._index: dict[str, dict[str, _Place]] = {}
        try:
            with path.open("wb") as file:
                for part, named in parts.items():
                    self._index[part] = {}
                    for key, value in named.items():
                        array = np.asarray(value, order="C")
                        self._index[part][key] = _Place(file.tell(), array.dtype, array.shape)
                        file.write(_bytes(array))
        except OSError:
            path.unlink(missing_ok=True)
            raise

    @property
    def weights(self) -> Arrays:
        """Network key to array."""
        return _SpooledArrays(self, "weights")

    @property
    def arrays(self) -> Mapping[str, Arrays]:
        """Method to its arrays by name."""
        names = [part.removeprefix("arrays/") for part in self._index if part != "weights"]
        return {name: _SpooledArrays(self, f"arrays/{name}") for name in names}

    def read(self, part: str, key: str) -> np.ndarray:
        """Read one array.

        Raises:
            KeyError: the update has no array of that name.
            OSError: the file is shorter than when it was written.
        """
        place = self._index[part][key]
        return self._read(np.empty(place.shape, place.dtype), place.offset)

    def read_some(self, part: str, key: str, numbers: slice) -> np.ndarray:
        """Read some of the numbers of an array, flat, in C order; errors as for `read`."""
        place = self._index[part][key]
        start, stop, _ = numbers.indices(prod(place.shape))
        array = np.empty(stop - start, place.dtype)
        return self._read(array, place.offset + start * place.dtype.itemsize)

    def _read(self, array: np.ndarray, offset: int) -> np.ndarray:
        if self._file is None:
            self._file = self._path.open("rb")
        self._file.seek(offset)
        if self._file.readinto(_bytes(array)) != array.nbytes:
            raise OSError(f"{self._path} has become shorter since it was written: the disk is full or broken")
        return array

    def keys(self, part: str) -> Set[str]:
        """Names in a part: ``weights`` or ``arrays/<method>``."""
        return self._index[part].keys()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class _SpooledArrays(Mapping[str, np.ndarray]):
    """A part of a spooled update."""

    def __init__(self, update: SpooledUpdate, part: str) -> None:
        self._update, self._part = update, part

    def __getitem__(self, key: str) -> np.ndarray:
        return self._update.read(self._part, key)

    def part(self, key: str, numbers: slice) -> np.ndarray:
        """Read some of the numbers of an array, flat."""
        return self._update.read_some(self._part, key, numbers)

    def __contains__(self, key: object) -> bool:
        return key in self._update.keys(self._part)

    def __iter__(self) -> Iterator[str]:
        return iter(self._update.keys(self._part))

    def __len__(self) -> int:
        return len(self._update.keys(self._part))


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
        self.scaled: Mapping[str, float] = {} if scaled is None else scaled
        self._sent, self._weight, self._array = sent, weight, array

    @property
    def weights(self) -> Arrays:
        """Network keys to arrays."""
        return _ComputedArrays(self._sent.weights, self._weight)

    @property
    def arrays(self) -> Mapping[str, Arrays]:
        """Method to its arrays by name."""

        def arrays_of(method: str, sent: Arrays) -> Arrays:
            return _ComputedArrays(sent, lambda name: self._array(method, name))

        return {method: arrays_of(method, sent) for method, sent in self._sent.arrays.items()}


class _ComputedArrays(Mapping[str, np.ndarray]):
    """The keys of ``sent`` with values computed by ``compute``."""

    def __init__(self, sent: Arrays, compute: Callable[[str], np.ndarray]) -> None:
        self._sent, self._compute = sent, compute

    def __getitem__(self, key: str) -> np.ndarray:
        if key not in self._sent:
            raise KeyError(key)
        return self._compute(key)

    def __contains__(self, key: object) -> bool:
        return key in self._sent

    def __iter__(self) -> Iterator[str]:
        return iter(self._sent)

    def __len__(self) -> int:
        return len(self._sent)


def _bytes(array: np.ndarray) -> memoryview:
    """The bytes of an array in C order, without a copy."""
    return array.reshape(-1).view(np.uint8).data
