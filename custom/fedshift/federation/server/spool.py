"""Keep accepted updates on disk until they are combined, so that memory does not grow with the number of sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from io import BufferedReader
from math import prod
from pathlib import Path

import numpy as np

from fedshift.federation.server.update_check import Change
from fedshift.schema.messages import Update


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
    def weights(self) -> Mapping[str, np.ndarray]:
        """Network key to array."""
        return _SpooledArrays(self, "weights")

    @property
    def arrays(self) -> Mapping[str, Mapping[str, np.ndarray]]:
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
        """Close the file."""
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


def _bytes(array: np.ndarray) -> memoryview:
    """The bytes of an array in C order, without a copy."""
    return array.reshape(-1).view(np.uint8).data
