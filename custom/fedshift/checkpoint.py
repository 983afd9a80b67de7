"""Model files: plain network keys under ``weights``, loadable with ``weights_only=True``."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshift.errors import ConfigError
from fedshift.job import JobSpec
from fedshift.messages import MethodArrays, Weights

SCHEMA = 1
STATE_FILE = "server_state.pt"


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
    _write(content, path)


@dataclass
class ServerState:
    """All that a server must remember to go on after a closed round."""

    job: dict[str, Any]
    round: int
    best_round: int
    weights: Weights
    methods: MethodArrays
    results: str
    """``results.json`` as it was then."""


def save_progress(folder: Path, state: ServerState) -> None:
    """Write a server's state (whole or not at all)."""
    methods = {name: _tensors(arrays) for name, arrays in state.methods.items()}
    _write(vars(state) | {"weights": _tensors(state.weights), "methods": methods}, folder / STATE_FILE)


def load_progress(folder: Path) -> ServerState | None:
    """The state in a folder, if there is one.

    Raises:
        ConfigError: it cannot be read.
    """
    path = folder / STATE_FILE
    if not path.is_file():
        return None
    content = _read(path, "start the run anew")
    try:
        state = ServerState(**content)
        state.weights = _arrays(content["weights"])
        state.methods = {name: _arrays(tensors) for name, tensors in content["methods"].items()}
    except (TypeError, KeyError, AttributeError):
        raise ConfigError(f"{path} is not the state of a run of this version: start the run anew") from None
    return state


def read_model(path: Path, *, round_: int) -> tuple[Weights, MethodArrays]:
    """Weights and methods' arrays of the model file of a round.

    Raises:
        ConfigError: as `load_checkpoint`, or another round's model is there.
    """
    content = load_checkpoint(path)
    if content["round"] != round_:
        raise ConfigError(f"{path} is the model of round {content['round']}, not {round_}: start the run anew")
    return _arrays(content["weights"]), {name: _arrays(tensors) for name, tensors in content["methods"].items()}


def _write(content: dict[str, Any], path: Path) -> None:
    beside = path.with_suffix(".partial")
    with beside.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _arrays(tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {key: value.numpy() for key, value in tensors.items()}


def _tensors(arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {key: torch.from_numpy(np.asarray(value)) for key, value in arrays.items()}


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a model that `save_checkpoint` wrote.

    Raises:
        ConfigError: not there, truncated, or of another make.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist")
    content = _read(path, "copy it again from the server")
    if not isinstance(content, dict) or content.get("schema") != SCHEMA or "weights" not in content:
        raise ConfigError(f"{path} is not a model that fedshift wrote")
    return content


def _read(path: Path, mend: str) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{path} cannot be read ({reason}): {mend}") from None
