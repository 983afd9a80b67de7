"""Turn PyTorch's and NumPy's out-of-memory errors into one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch

from fedshift.schema.errors import TooLittleMemory

REMEDY = (
    "make the job with a smaller schedule.batch_size or smaller images (such as data.matrix), or let fewer sites work "
    "at a time with 'fedshift run -p'"
)
MESSAGES = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")
"""Parts of the messages of plain RuntimeErrors that PyTorch's CPU allocator and NVIDIA's libraries raise."""
ONEDNN = "could not create a primitive"
"""All that oneDNN says when a processor's memory runs out. What it cannot do, it says of a primitive's descriptor."""


def is_out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """Whether an error of torch or NumPy says that memory ran out."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or str(error).strip() == ONEDNN:
        return True
    return any(message in str(error) for message in MESSAGES)


@contextmanager
def out_of_memory_as_error(where: str, *, remedy: str) -> Iterator[None]:
    """Raise `TooLittleMemory`, with where it was and what to do, if the block runs out of memory.

    Raises:
        TooLittleMemory: torch or NumPy could not allocate what it needed.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        what = "the GPU's memory" if isinstance(error, torch.cuda.OutOfMemoryError) else "memory"
        raise TooLittleMemory("out-of-memory", f"{where}: {what} ran out; {remedy}") from error


def training_out_of_memory(site: str, round_: int | None = None) -> AbstractContextManager[None]:
    """`out_of_memory_as_error` of a site's work in a round."""
    return out_of_memory_as_error(f"site {site}" if round_ is None else f"site {site}, round {round_}", remedy=REMEDY)


class BatchTooLarge(TooLittleMemory):
    """The passes of a training batch ran out of memory, and those of its parts may not."""

    @property
    def fault(self) -> str:
        """Where it was and what ran out, without the remedy."""
        return str(self).partition("; ")[0]


@contextmanager
def batch_out_of_memory(site: str, round_: int) -> Iterator[None]:
    """`training_out_of_memory` of the passes of a batch, as `BatchTooLarge`."""
    try:
        with training_out_of_memory(site, round_):
            yield
    except TooLittleMemory as error:
        raise BatchTooLarge(error.code, str(error)) from error.__cause__


def prediction_out_of_memory(scan: Path) -> AbstractContextManager[None]:
    """`out_of_memory_as_error` of a scan's prediction."""
    return out_of_memory_as_error(
        str(scan), remedy="predict it on a machine with more memory (--device cpu does without a GPU's)"
    )
