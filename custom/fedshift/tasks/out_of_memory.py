"""Turn PyTorch's and NumPy's out-of-memory errors into one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedshift.schema.errors import TooLittleMemory

MESSAGES = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")
"""Parts of the messages of plain RuntimeErrors that PyTorch's CPU allocator and NVIDIA's libraries raise."""


def is_out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """Whether an error of torch or NumPy says that memory ran out."""
    return isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or any(s in str(error) for s in MESSAGES)


@contextmanager
def out_of_memory_as_error(site: str, round_: int | None = None) -> Iterator[None]:
    """Raise `TooLittleMemory`, with site, round and advice, if the block runs out of memory.

    Raises:
        TooLittleMemory: torch or NumPy could not allocate what it needed.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        where = f"site {site}" if round_ is None else f"site {site}, round {round_}"
        what = "the GPU's memory" if isinstance(error, torch.cuda.OutOfMemoryError) else "memory"
        raise TooLittleMemory(
            f"{where}: {what} ran out; make the job with a smaller schedule.batch_size or smaller images (such as "
            "data.matrix), or let fewer sites work at a time with 'fedshift run -t'"
        ) from error
