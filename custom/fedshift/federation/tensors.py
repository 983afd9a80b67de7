"""A network's weights as NumPy arrays and back, and files of tensors: written atomically, read without running code.

From and to a GPU all tensors of a type travel as one, because every copy waits for the device.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.messages import Weights


def read_weights(net: nn.Module) -> Weights:
    """Copy a network's ``state_dict`` into NumPy arrays."""
    state = {key: value.detach() for key, value in net.state_dict().items()}
    if _device_of(net).type == "cpu":
        return {key: value.numpy().copy() for key, value in state.items()}
    return fetched(state)


def fetched(tensors: Mapping[str, Tensor]) -> Weights:
    """Tensors of one device as arrays of their own memory; those of a type are joined there and copied at once."""
    arrays: Weights = {}
    for dtype, keys in _by_type(tensors):
        joined = torch.cat([tensors[key].reshape(-1) for key in keys])
        host = torch.empty(joined.shape, dtype=dtype, pin_memory=joined.is_cuda).copy_(joined)
        parts = host.split_with_sizes([tensors[key].numel() for key in keys])
        arrays |= {key: part.numpy().reshape(tensors[key].shape).copy() for key, part in zip(keys, parts, strict=True)}
    return {key: arrays[key] for key in tensors}


def sent(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Tensors of the processor on a device; those of a type are joined here and copied at once, and are parts of it."""
    placed: dict[str, Tensor] = {}
    for dtype, keys in _by_type(tensors):
        sizes = [tensors[key].numel() for key in keys]
        host = torch.empty(sum(sizes), dtype=dtype, pin_memory=device.type == "cuda")
        torch.cat([tensors[key].reshape(-1) for key in keys], out=host)
        parts = host.to(device).split_with_sizes(sizes)
        placed |= {key: part.view(tensors[key].shape) for key, part in zip(keys, parts, strict=True)}
    return {key: placed[key] for key in tensors}


def _by_type(tensors: Mapping[str, Tensor]) -> Iterator[tuple[torch.dtype, list[str]]]:
    """The keys of the tensors of each type."""
    for dtype in dict.fromkeys(value.dtype for value in tensors.values()):
        yield dtype, [key for key, value in tensors.items() if value.dtype == dtype]


def require_weights(net: nn.Module, weights: Weights, who: str) -> None:
    """Refuse received weights that are not those of the network. ``who`` begins the sentence.

    Raises:
        DataError: a key is missing, unknown or of another shape; it is named.
    """
    sent = {key: tuple(value.shape) for key, value in weights.items()}
    expected = {key: tuple(value.shape) for key, value in net.state_dict().items()}
    if sent != expected:
        raise _other_weights(sent, expected, who)


def _other_weights(sent: Mapping[str, object], expected: Mapping[str, object], who: str) -> DataError:
    key = min(key for key in sent.keys() | expected.keys() if sent.get(key) != expected.get(key))
    return DataError(
        "wrong-weights",
        f"{who}: the server sent {key} {sent.get(key, 'not at all')}, the job's network has "
        f"{expected.get(key, 'no such array')}: use the same fedshift at both",
    )


def load_weights(net: nn.Module, weights: Weights) -> None:
    """Load weights into a network. PyTorch raises RuntimeError for missing or extra keys and wrong shapes."""
    load_tensors(net, to_tensors(weights))


def load_tensors(net: nn.Module, tensors: Mapping[str, Tensor], *, strict: bool = True) -> None:
    """The same of tensors of the processor; ``strict`` is as in ``load_state_dict``."""
    device = _device_of(net)
    net.load_state_dict(tensors if device.type == "cpu" else sent(tensors, device), strict=strict)


def _device_of(net: nn.Module) -> torch.device:
    return next(net.parameters()).device


def to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Tensors of a file as numpy arrays that share their memory."""
    return {key: value.numpy() for key, value in tensors.items()}


def to_tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Numpy arrays as tensors that share their memory; read-only ones, as of a message, are copied."""
    return {key: torch.from_numpy(np.require(value, requirements="W")) for key, value in arrays.items()}


def copied(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Numpy arrays as tensors of their own."""
    return {key: torch.from_numpy(np.array(value)) for key, value in arrays.items()}


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
        raise ConfigError("file-damaged", f"{path} cannot be read ({first_words(error)}): {remedy}") from None


def first_words(error: Exception) -> str:
    """The first sentence of an error's message, or the name of its type if there is no message."""
    return str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__


def write_tensors(content: dict[str, Any], path: Path) -> None:
    """Write a file of tensors and plain values atomically; create its folder if needed.

    Raises:
        OSError: it cannot be written; a file that was there has not changed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    try:
        with partial.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except RuntimeError as error:  # what torch raises for a full disk, without naming the reason
        partial.unlink(missing_ok=True)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
    except OSError:
        partial.unlink(missing_ok=True)
        raise
