"""An update as the server halves see it: its arrays are replaced when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from fedshift.federation.server.spool import SpooledUpdate

Arrays = Mapping[str, np.ndarray]


class ReplacedUpdate:
    """An update whose arrays are computed when they are read; one tensor is in memory at a time."""

    def __init__(
        self,
        own: SpooledUpdate,
        weight: Callable[[str], np.ndarray],
        array: Callable[[str, str], np.ndarray],
        *,
        n_samples: int | None = None,
        n_steps: int | None = None,
        scaled: Mapping[str, float] | None = None,
    ) -> None:
        """Make a view of an update.

        Args:
            own: the update as it was sent.
            weight: the array of a network key.
            array: the array of a method and a name.
            n_samples: the sample count that it is weighted by; the site's own if None.
            n_steps: the number of steps that it counts with; the site's own if None.
            scaled: what its changes were multiplied by (`fedshift.methods.base.SiteUpdate.scaled`).
        """
        self.site, self.metrics = own.site, own.metrics
        self.n_samples = own.n_samples if n_samples is None else n_samples
        self.n_steps = own.n_steps if n_steps is None else n_steps
        self.scaled: Mapping[str, float] = {} if scaled is None else scaled
        self._own, self._weight, self._array = own, weight, array

    @property
    def weights(self) -> Arrays:
        """Network keys to arrays."""
        return _Computed(self._own.weights, self._weight)

    @property
    def arrays(self) -> Mapping[str, Arrays]:
        """Method to its arrays by name."""
        own = self._own.arrays

        def of(method: str) -> Arrays:
            return _Computed(own[method], lambda name: self._array(method, name))

        return {method: of(method) for method in own}


class _Computed(Mapping[str, np.ndarray]):
    """The keys of ``own`` with values computed by ``make``."""

    def __init__(self, own: Arrays, make: Callable[[str], np.ndarray]) -> None:
        self._own, self._make = own, make

    def __getitem__(self, key: str) -> np.ndarray:
        if key not in self._own:
            raise KeyError(key)
        return self._make(key)

    def __contains__(self, key: object) -> bool:
        return key in self._own

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)
