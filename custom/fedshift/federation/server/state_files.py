"""The server's state on disk: what a run needs to go on after its last closed round."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedshift.federation.tensor_files import read_tensors, to_arrays, to_tensors, write_tensors
from fedshift.schema.errors import ConfigError
from fedshift.schema.messages import MethodArrays, Weights

log = logging.getLogger("fedshift")

STATE_FILE, FORMER_STATE_FILE = "server_state.pt", "former_server_state.pt"


@dataclass
class ServerState:
    """The server's state after a closed round."""

    job: dict[str, Any]
    round: int
    best_round: int
    weights: Weights
    methods: MethodArrays
    results: str
    """Content of ``results.json`` after this round."""
    medians: dict[str, float] = field(default_factory=dict)
    """`fedshift.federation.server.outliers.medians` of the rounds so far; empty in files of earlier versions."""
    ended: int | None = None
    """The round after which the run ends, once patience is over."""


def save_state(folder: Path, state: ServerState) -> None:
    """Write the state atomically. The previous file is kept in case this one is damaged later."""
    methods = {name: to_tensors(arrays) for name, arrays in state.methods.items()}
    path = folder / STATE_FILE
    if path.is_file():
        path.replace(folder / FORMER_STATE_FILE)
    write_tensors(vars(state) | {"weights": to_tensors(state.weights), "methods": methods}, path)


def load_state(folder: Path) -> ServerState | None:
    """Read the newest readable state in a folder: the last one, or else that of the round before. None if none exists.

    Raises:
        ConfigError: there are state files and none can be read.
    """
    found = [path for path in (folder / STATE_FILE, folder / FORMER_STATE_FILE) if path.is_file()]
    for path in found:
        try:
            return _read_state(path)
        except ConfigError as error:
            if path == found[-1]:
                raise
            log.error("%s; the state of the round before is used", str(error).partition(":")[0])
    return None


def _read_state(path: Path) -> ServerState:
    content = read_tensors(path, "start the run anew")
    try:
        state = ServerState(**content)
        state.weights = to_arrays(content["weights"])
        state.methods = {name: to_arrays(tensors) for name, tensors in content["methods"].items()}
    except (TypeError, KeyError, AttributeError):
        raise ConfigError(f"{path} is not the state of a run of this version: start the run anew") from None
    return state
