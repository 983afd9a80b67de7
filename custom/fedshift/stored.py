"""Accepted updates wait on disk, so that memory does not grow with the number of sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from fedshift.guard import Change
from fedshift.messages import Update


class StoredUpdate:
    """An accepted update whose arrays wait on disk: each is read when it is asked for, and not kept."""

    def __init__(self, update: Update, path: Path, change: Change) -> None:
        """Write the arrays of ``update`` to ``path``; ``change`` is what the guard has measured."""
        self.change = change
        self.site, self.n_samples, self.n_steps = update.site, update.n_samples, update.n_steps
        self.metrics: Mapping[str, float] = update.metrics
        parts = {"weights": update.weights, **{f"arrays/{name}": named for name, named in update.arrays.items()}}
        path.parent.mkdir(exist_ok=True)
        np.savez(path, **{f"{part}/{key}": value for part, named in parts.items() for key, value in named.items()})  # type: ignore[arg-type]
        self._path = path
        self._keys = {part: tuple(named) for part, named in parts.items()}
        self._file: np.lib.npyio.NpzFile | None = None

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        """Network key to array."""
        return _OnDisk(self, "weights")

    @property
    def arrays(self) -> Mapping[str, Mapping[str, np.ndarray]]:
        """Method to its arrays by name."""
        names = [part.removeprefix("arrays/") for part in self._keys if part != "weights"]
        return {name: _OnDisk(self, f"arrays/{name}") for name in names}

    def read(self, part: str, key: str) -> np.ndarray:
        """One array."""
        if self._file is None:
            self._file = np.load(self._path, allow_pickle=False)
        array: np.ndarray = self._file[f"{part}/{key}"]
        return array

    def keys(self, part: str) -> tuple[str, ...]:
        """Names in a part."""
        return self._keys[part]

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class _OnDisk(Mapping[str, np.ndarray]):
    """A part of a stored update."""

    def __init__(self, update: StoredUpdate, part: str) -> None:
        self._update, self._part = update, part

    def __getitem__(self, key: str) -> np.ndarray:
        if key not in self._update.keys(self._part):
            raise KeyError(key)
        return self._update.read(self._part, key)

    def __contains__(self, key: object) -> bool:
        return key in self._update.keys(self._part)

    def __iter__(self) -> Iterator[str]:
        return iter(self._update.keys(self._part))

    def __len__(self) -> int:
        return len(self._update.keys(self._part))
