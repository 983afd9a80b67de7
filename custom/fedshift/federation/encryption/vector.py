"""Where each tensor lies in the vector that is summed, and what the server halves make of the sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, prod
from typing import Literal

import numpy as np

from fedshift.federation.refusals import check_encryption
from fedshift.federation.tensors import read_weights
from fedshift.methods.base import ArraySpec
from fedshift.methods.method_set import MethodSet
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Arrays, Broadcast, Update, Weights
from fedshift.tasks.kinds import build_task

PREFIX = "ckks."
"""Names of ciphertexts in an update's weights begin with this."""
COUNTS = "ckks.counts"
"""Name of the int64 array (sum of factors, number of sites) that accompanies the ciphertexts of a sum."""


@dataclass(frozen=True)
class Segment:
    """A tensor in the vector: part of the ``network``, ``sent`` by a method, or ``received`` with that method."""

    origin: Literal["network", "sent", "received"]
    method: str
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def label(self) -> str:
        """For people: the tensor, with its method where it is not the network's."""
        return "/".join(word for word in (self.method, self.name) if word)


class VectorLayout:
    """The order of tensors in the vector of a job; the same at every site and at the server."""

    def __init__(self, job: JobSpec, *, received: bool) -> None:
        """Lay out the vector, or refuse a job that cannot be encrypted.

        ``received``: whether it also holds what sites received of the arrays that they send.
        """
        self.net = build_task(job).network()
        self.methods = MethodSet(job, self.net)
        check_encryption(self.methods)
        self.template = read_weights(self.net)
        self.withheld = self.methods.withheld
        self.clear = frozenset(k for k, v in self.template.items() if not np.issubdtype(v.dtype, np.floating))
        """Batch counters, sent in clear because the server takes the largest."""
        segments = [
            Segment("network", "", key, value.shape, str(value.dtype))
            for key, value in self.template.items()
            if key not in self.withheld | self.clear
        ]
        for method in self.methods.names:
            sent, down = self.methods.up[method], self.methods.down[method]
            segments += [_segment("sent", method, name, spec) for name, spec in sent.items()]
            if sent and received:
                segments += [_segment("received", method, name, spec) for name, spec in down.items()]
        self.segments = tuple(segments)
        self.size = sum(segment.size for segment in segments)
        """Numbers in the vector."""

    def factor(self, n_samples: int) -> int:
        """The factor by which a site multiplies its network."""
        factor = self.methods.combining.server().factor(n_samples)
        assert factor is not None
        return factor

    def rows(self, update: Update, broadcast: Broadcast) -> Iterator[tuple[Segment, np.ndarray]]:
        """Each tensor of a site's vector, in order: flat, float64, the network's multiplied by the site's factor."""
        factor = self.factor(update.n_samples)
        for segment in self.segments:
            if segment.origin == "network":
                yield segment, factor * update.weights[segment.name].astype(np.float64).ravel()
            else:
                arrays = update.arrays if segment.origin == "sent" else broadcast.arrays
                yield segment, arrays[segment.method][segment.name].astype(np.float64).ravel()

    def split(self, vector: np.ndarray) -> Mapping[Segment, np.ndarray]:
        """Split a vector into its tensors, float64."""
        ends = np.cumsum([segment.size for segment in self.segments])[:-1]
        return {s: values.reshape(s.shape) for s, values in zip(self.segments, np.split(vector, ends), strict=True)}


def _segment(origin: Literal["sent", "received"], method: str, name: str, spec: ArraySpec) -> Segment:
    return Segment(origin, method, name, tuple(int(length) for length in spec.shape), spec.dtype)


class Layout(VectorLayout):
    """A vector cut into pieces, each of which is a ciphertext."""

    def __init__(self, job: JobSpec, slots: int) -> None:
        """Lay out the vector. ``slots`` is the capacity of one ciphertext."""
        super().__init__(job, received=True)
        self.chunks = {
            f"{PREFIX}{number:05d}": min(slots, self.size - number * slots) for number in range(ceil(self.size / slots))
        }
        """Name of each ciphertext and how many numbers it holds."""
        self._slots = slots

    def pieces(self, vector: np.ndarray) -> Mapping[str, np.ndarray]:
        """Cut a vector into the contents of the ciphertexts."""
        return {
            name: vector[n * self._slots : n * self._slots + size] for n, (name, size) in enumerate(self.chunks.items())
        }


@dataclass
class SummedUpdate:
    """A `SiteUpdate` that stands for the sum or mean over sites. Only sums over all of them are meaningful."""

    site: str = ""
    n_samples: int = 1
    n_steps: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)
    scaled: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    arrays: Mapping[str, Arrays] = field(default_factory=dict)


def summed_updates(
    sums: Mapping[Segment, np.ndarray], *, factors: int, n_sites: int, clear: Weights
) -> list[SummedUpdate]:
    """Updates for the server halves: as many as sites, each with the mean network; their arrays add up to the sums.

    ``sums`` are float64, the network's with each site's factor, of which ``factors`` is the sum. ``clear``: tensors of
    the network that are not in ``sums``.
    """
    mean: Weights = {}
    for segment, total in sums.items():
        if segment.origin == "network":
            # A variance of 0 may become slightly negative where a sum is approximate.
            value = np.maximum(total, 0) if segment.name.endswith("running_var") else total
            mean[segment.name] = np.asarray(value / factors, segment.dtype)
    common = SummedUpdate(weights={**mean, **clear})
    updates = []
    for number in range(n_sites):
        # Only the sum of the arrays is known: assign it to the first site and 0 to the others.
        share: dict[str, Arrays] = {}
        for segment, total in sums.items():
            if segment.origin == "sent":
                share.setdefault(segment.method, {})[segment.name] = total if number == 0 else np.zeros_like(total)
        updates.append(replace(common, arrays=share))
    return updates
