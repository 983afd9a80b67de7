"""Model files: plain network keys under ``weights``, loadable with ``weights_only=True``."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshift.errors import ConfigError
from fedshift.job import JobSpec
from fedshift.messages import MethodArrays, Weights

SCHEMA = 1


def save_checkpoint(
    path: Path,
    *,
    job: JobSpec,
    round_: int,
    weights: Weights,
    methods: MethodArrays,
    personal: list[str],
    scores: dict[str, float],
) -> None:
    """Write a model (whole or not at all).

    ``methods`` holds the arrays of each method that go with the weights, such as FedRDN's pairs.
    ``personal`` names the keys that each site keeps for itself: in this file they hold what they were at the start.
    """
    content = {
        "schema": SCHEMA,
        "weights": _tensors(weights),
        "methods": {name: _tensors(arrays) for name, arrays in methods.items()},
        "round": round_,
        "job": job.dump(),
        "personal": personal,
        "scores": scores,
    }
    beside = path.with_suffix(".partial")
    torch.save(content, beside)
    beside.replace(path)


def _tensors(arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {key: torch.from_numpy(np.asarray(value)) for key, value in arrays.items()}


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a model that `save_checkpoint` wrote.

    Raises:
        ConfigError: not there, truncated, or of another make.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{path} cannot be read as a model ({reason}): copy it again from the server") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA or "weights" not in content:
        raise ConfigError(f"{path} is not a model that fedshift wrote")
    return content
