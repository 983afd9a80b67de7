"""Model files: plain network keys under ``weights`` behind a header, loadable with ``weights_only=True``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

import fedshift
from fedshift.federation.site.state import first_words, write_whole
from fedshift.schema.errors import ConfigError, FedshiftError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import MethodArrays, Weights
from fedshift.schema.strict import Strict
from fedshift.tasks.base import build_task

log = logging.getLogger("fedshift")

FORMAT, SCHEMA = "fedshift model", 2
STATE_FILE, FORMER_STATE_FILE = "server_state.pt", "former_server_state.pt"
ARRAYS = ("weights", "methods")
"""What of a model file is no header."""

Kind = Literal["phantom", "patients", "images"]


class Header(Strict):
    """What a model file says of itself.

    ``kind`` is that of the training data, ``sites`` how many have trained. ``statistics`` names the sites, in order,
    whose arrays of the statistics round are stacked in the methods' arrays, such as FedRDN's pairs. ``scores`` are
    those of the round, as far as they were known; ``preparation`` is that of `fedshift.tasks.base.Task`.
    ``personal`` names the keys that each site keeps for itself: here they hold what they were at the start. With
    ``encrypted`` the weights are ciphertexts, which a site must open first.
    """

    format: Literal["fedshift model"]
    schema_: Literal[2] = Field(alias="schema")
    fedshift: str
    job: JobSpec
    round: int = Field(ge=0)
    kind: Kind
    sites: int = Field(ge=0)
    statistics: tuple[str, ...]
    scores: dict[str, float]
    preparation: dict[str, Any]
    personal: tuple[str, ...]
    initial_weights: str
    encrypted: bool


def save_checkpoint(
    path: Path,
    *,
    job: JobSpec,
    round_: int,
    weights: Weights,
    methods: MethodArrays,
    personal: Sequence[str],
    scores: dict[str, float],
    kind: Kind,
    sites: int,
    statistics: Sequence[str],
    initial_weights: str,
    encrypted: bool = False,
) -> None:
    """Write a model (whole or not at all).

    ``methods`` holds the arrays of each method that go with the weights, such as FedRDN's pairs. For the rest see
    `Header`.
    """
    content = {
        "format": FORMAT,
        "schema": SCHEMA,
        "fedshift": fedshift.__version__,
        "job": job.dump(),
        "round": round_,
        "kind": kind,
        "sites": sites,
        "statistics": list(statistics),
        "scores": scores,
        "preparation": build_task(job).preparation(),
        "personal": list(personal),
        "initial_weights": initial_weights,
        "encrypted": encrypted,
        "weights": _tensors(weights),
        "methods": {name: _tensors(arrays) for name, arrays in methods.items()},
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
    """`fedshift.federation.server.outliers.medians` of the rounds so far. Files of earlier versions have none."""


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
    """Read a model that `save_checkpoint` wrote; nothing in it is run.

    Raises:
        ConfigError: not there, truncated, of another make or a newer version, or not the network of its own job.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist")
    content = _read(path, "copy it again from the server")
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ConfigError(f"{path} is not a model that fedshift wrote")
    if content.get("schema") != SCHEMA:
        raise ConfigError(
            f"{path} is a model file of schema {content.get('schema')!s:.20} and fedshift "
            f"{content.get('fedshift')!s:.40}, this version reads schema {SCHEMA}: install that version"
        )
    header = header_of(content, where=str(path))
    weights, arrays = (content.get(part) for part in ARRAYS)
    if not _named_tensors(weights) or not isinstance(arrays, dict) or not all(map(_named_tensors, arrays.values())):
        raise ConfigError(f"{path} does not hold arrays by name: copy it again from the server")
    if not header.encrypted:
        _check_fits(header.job, content["weights"], where=str(path))
    return content


def header_of(content: dict[str, Any], *, where: str) -> Header:
    """The header of what `load_checkpoint` reads.

    Raises:
        ConfigError: something in it is missing or has no place there.
    """
    return Header.parse({key: value for key, value in content.items() if key not in ARRAYS}, where=where)


def _check_fits(job: JobSpec, weights: dict[str, Tensor], *, where: str) -> None:
    """Compare with the network of the job, which is built without memory or random numbers."""
    unfit = f"{where} does not fit its own job, it is damaged or was changed"
    try:
        with torch.device("meta"):
            wanted = build_task(job).network().state_dict()
    except FedshiftError as error:
        raise ConfigError(f"{unfit} ({error})") from None
    odd = sorted(wanted.keys() ^ weights.keys())
    if odd:
        what = "is missing" if odd[0] in wanted else "has no place in the network"
        raise ConfigError(f"{unfit}: {odd[0]} {what}; copy it again from the server")
    for key, value in wanted.items():
        if weights[key].shape != value.shape or weights[key].dtype != value.dtype:
            raise ConfigError(
                f"{unfit}: {key} is {_described(weights[key])}, the network's {_described(value)}; copy it again from "
                "the server"
            )
        if not torch.isfinite(weights[key]).all():
            raise ConfigError(f"{unfit}: {key} has numbers that are not finite; copy it again from the server")


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _named_tensors(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items())


def _read(path: Path, mend: str) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises all kinds for a damaged file, some without a word
        reason = first_words(error)
        raise ConfigError(f"{path} cannot be read ({reason}): {mend}") from None
