"""Model files: plain network keys under ``weights``, loadable with ``weights_only=True``."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshift.errors import ConfigError
from fedshift.job import JobSpec
from fedshift.messages import MethodArrays, Weights
from fedshift.training.state import first_words, write_whole

log = logging.getLogger("fedshift")

SCHEMA = 1
STATE_FILE, FORMER_STATE_FILE = "server_state.pt", "former_server_state.pt"


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
    write_whole(content, path)


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
    medians: dict[str, float] = field(default_factory=dict)
    """`fedshift.guard.medians` of the rounds so far. Files of earlier versions have none."""


def save_progress(folder: Path, state: ServerState) -> None:
    """Write a server's state (whole or not at all). The one before it is kept, should this one be damaged."""
    methods = {name: _tensors(arrays) for name, arrays in state.methods.items()}
    path = folder / STATE_FILE
    if path.is_file():
        path.replace(folder / FORMER_STATE_FILE)
    write_whole(vars(state) | {"weights": _tensors(state.weights), "methods": methods}, path)


def load_progress(folder: Path) -> ServerState | None:
    """The state in a folder, if there is one; if the last one is damaged or lost, that of the round before.

    Raises:
        ConfigError: neither can be read.
    """
    found = [path for path in (folder / STATE_FILE, folder / FORMER_STATE_FILE) if path.is_file()]
    for path in found:
        try:
            return _read_progress(path)
        except ConfigError as error:
            if path == found[-1]:
                raise
            log.error("%s; the state of the round before is used", str(error).partition(":")[0])
    return None


def _read_progress(path: Path) -> ServerState:
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
    except Exception as error:  # torch raises all kinds for a damaged file, some without a word
        reason = first_words(error)
        raise ConfigError(f"{path} cannot be read ({reason}): {mend}") from None
