"""Files of tensors and plain values (``torch.save``): written atomically, read without executing code."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshift.schema.errors import ConfigError


def read_tensors(path: Path, remedy: str) -> Any:
    """Content of a file of tensors and plain values; no code in it is executed.

    Args:
        path: the file.
        remedy: what to do about a damaged file, for the error's message.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file, some without a message
        reason = first_words(error)
        raise ConfigError(f"{path} cannot be read ({reason}): {remedy}") from None


def first_words(error: Exception) -> str:
    """The first sentence of an error's message, or the name of its type if there is no message."""
    return str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__


def to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Tensors of a file as numpy arrays that share their memory."""
    return {key: value.numpy() for key, value in tensors.items()}


def to_tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Numpy arrays as tensors that share their memory, for `torch.save`."""
    return {key: torch.from_numpy(np.asarray(value)) for key, value in arrays.items()}


def write_tensors(content: dict[str, Any], path: Path) -> None:
    """Write a file of tensors and plain values atomically; create its folder if needed.

    Raises:
        OSError: it cannot be written; a file that was there has not changed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".partial")
    try:
        with beside.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except RuntimeError as error:  # what torch raises for a full disk, without naming the reason
        beside.unlink(missing_ok=True)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
    except OSError:
        beside.unlink(missing_ok=True)
        raise
