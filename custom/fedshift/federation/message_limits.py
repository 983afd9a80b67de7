"""How many bytes a job's messages can have, from its specification alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from fedshift.federation.tensors import read_weights
from fedshift.methods.base import ArraySpec
from fedshift.methods.method_set import MethodSet
from fedshift.schema.job import JobSpec
from fedshift.tasks.kinds import build_task

SLACK = 32 * 1024 * 1024
"""Bytes for everything but arrays, of each site: scores of `fedshift.schema.evaluation.MOST_CASES` cases."""
TIMES = 2
"""An honest message has about half of what is allowed."""
SLOWEST = 250_000
"""Bytes a second at which what is allowed is expected to travel, which is 1 Mbit/s for an honest message."""
NUMBER = {None: 0, "ckks": 256, "masks": 8}
"""Bytes of a number at least, by encryption. In a ciphertext: two coefficients of two polynomials, each of at most
eight primes of 8 bytes."""
CHOSEN = 4096
"""Assumed for the size of an array that a site may choose."""


@dataclass(frozen=True)
class MessageLimits:
    """Bytes that a message of a job may have: a client's ``answer``, and a ``task`` from the server."""

    answer: int
    task: int

    @classmethod
    def from_job(cls, job: JobSpec, *, most: int = 1) -> MessageLimits:
        """Compute them; this builds the job's network. ``most``: sites that one client answers for at most.

        Raises:
            ConfigError: the job names what is not there.
        """
        net = build_task(job).network()
        methods = MethodSet(job, net)
        network = [(value.size, value.itemsize) for value in read_weights(net).values()]
        up, down = _sizes(methods.up, CHOSEN), _sizes(methods.down, CHOSEN * len(job.task.sites))
        least = NUMBER[job.federation.encryption]
        return cls(
            answer=most * (SLACK + TIMES * _bytes([*network, *up], least)),
            task=SLACK + TIMES * _bytes([*network, *up, *down], least),
        )

    @property
    def seconds(self) -> float:
        """How long a task and an answer may be on their way, on the slowest line."""
        return (self.task + self.answer) / SLOWEST


def _sizes(specs: Mapping[str, Mapping[str, ArraySpec]], chosen: int) -> list[tuple[int, int]]:
    """Elements of each array, and bytes of an element."""
    arrays = [spec for named in specs.values() for spec in named.values()]
    shapes = [[chosen if isinstance(length, str) else length for length in spec.shape] for spec in arrays]
    return [(prod(shape), np.dtype(spec.dtype).itemsize) for spec, shape in zip(arrays, shapes, strict=True)]


def _bytes(arrays: Iterable[tuple[int, int]], least: int) -> int:
    return sum(elements * max(least, itemsize) for elements, itemsize in arrays)
