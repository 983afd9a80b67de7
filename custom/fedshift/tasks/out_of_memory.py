"""Memory that runs out all the same, as a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedshift.schema.errors import TooLittleMemory

SAID = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")
"""By torch's allocator of the CPU and by NVIDIA's libraries, which raise a plain RuntimeError."""


@contextmanager
def told_of_memory(site: str, round_: int | None = None) -> Iterator[None]:
    """Name the site, the round and the mend when there is no memory left for what is done inside.

    Raises:
        TooLittleMemory: torch or NumPy could not allocate what it needed.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) and not any(s in str(error) for s in SAID):
            raise
        where = f"site {site}" if round_ is None else f"site {site}, round {round_}"
        what = "the GPU's memory" if isinstance(error, torch.cuda.OutOfMemoryError) else "memory"
        raise TooLittleMemory(
            f"{where}: {what} ran out; make the job with a smaller schedule.batch_size or smaller images (such as "
            "data.matrix), or let fewer sites work at a time with 'fedshift run -t'"
        ) from error
