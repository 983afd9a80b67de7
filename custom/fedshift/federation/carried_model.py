"""A model as a job carries it: arrays in NumPy's format and the header as JSON, in one file without compression.

A job comes from outside, so nothing in it is unpickled, not even by PyTorch's restricted reader, and no array takes
more memory than it has bytes in the file.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshift.federation.model_files import ARRAYS, checked_model, read_model_file
from fedshift.schema.errors import ConfigError
from fedshift.schema.packages import PackageSpec

SUFFIX = ".npz"
HEADER = "header.json"
DATE = (1980, 1, 1, 0, 0, 0)
"""Of every part, so that a model is the same bytes whenever it is packed."""
REMEDY = "make the job again with 'fedshift job --evaluate'"


def pack_model(source: Path, target: Path) -> str:
    """Write a model file as a job carries it; returns the SHA-256 of what was written.

    Raises:
        ConfigError: ``source`` is no model file, or is encrypted.
    """
    content = read_model_file(source)
    if content["encrypted"]:
        raise ConfigError(
            "model-encrypted", f"{source} is encrypted: open it with 'fedshift site decrypt' at a site first"
        )
    arrays = {f"weights/{key}": value for key, value in content["weights"].items()}
    for method, named in content["methods"].items():
        arrays |= {f"methods/{method}/{key}": value for key, value in named.items()}
    header = {key: value for key, value in content.items() if key not in ARRAYS}
    made_from = {"file": source.name, "sha256": sha256_of(source)}
    return write_carried(target, {"model": header, "source": made_from}, arrays)


def write_carried(target: Path, header: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> str:
    """Write header and arrays by name; returns the file's SHA-256."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as file:
        file.writestr(zipfile.ZipInfo(HEADER, DATE), json.dumps(header))
        for name, value in arrays.items():
            with file.open(zipfile.ZipInfo(f"{name}.npy", DATE), "w", force_zip64=True) as part:
                np.lib.format.write_array(part, np.require(value.numpy(), requirements="C"), allow_pickle=False)
    return sha256_of(target)


def sha256_of(path: Path) -> str:
    """Of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Source:
    """The model file that a carried model was made from."""

    file: str
    sha256: str


def unpack_model(
    path: Path,
    header: dict[str, Any],
    arrays: dict[str, Tensor],
    *,
    packages: Mapping[str, PackageSpec] | None = None,
) -> tuple[dict[str, Any], Source]:
    """The content of a carried model, as `fedshift.federation.model_files.read_model_file` gives it, and its source.

    ``header``, ``arrays``: what `read_carried` has read of the file. ``packages``: those that the site lets a model
    use; None for all that are installed.

    Raises:
        PolicyError: it needs a package that is not among them.
        ConfigError: it is damaged, or does not fit its own job's network.
    """
    weights: dict[str, Tensor] = {}
    methods: dict[str, dict[str, Tensor]] = {}
    for name, value in arrays.items():
        part, _, key = name.partition("/")
        method, _, rest = key.partition("/")
        if part == "weights":
            weights[key] = value
        else:
            methods.setdefault(method, {})[rest] = value
    model, source = header.get("model"), header.get("source")
    if not isinstance(model, dict) or not isinstance(source, dict) or set(source) != {"file", "sha256"}:
        raise ConfigError("file-damaged", f"{path.name} is no model that a job carries (its header): {REMEDY}")
    content = checked_model({**model, "weights": weights, "methods": methods}, where=path.name, packages=packages)
    return content, Source(str(source["file"]), str(source["sha256"]))


def read_carried(path: Path, *, sha256: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `write_carried` wrote.

    Raises:
        ConfigError: it is missing, damaged or another than the job names.
    """
    if not path.is_file():
        raise ConfigError("file-missing", f"the job names the model {path.name} and does not bring it: {REMEDY}")
    if sha256_of(path) != sha256:
        raise ConfigError("file-damaged", f"the job brings another {path.name} than it names: {REMEDY}")
    try:
        with zipfile.ZipFile(path) as file:
            header = json.loads(file.read(_stored(file.getinfo(HEADER))))
            arrays = dict(_arrays(file))
    except (zipfile.BadZipFile, KeyError, ValueError, RecursionError, OSError, EOFError, RuntimeError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ConfigError("file-damaged", f"{path.name} is no model that a job carries ({reason}): {REMEDY}") from None
    if not isinstance(header, dict):
        raise ConfigError("file-damaged", f"{path.name} is no model that a job carries (its header): {REMEDY}")
    return header, arrays


def _arrays(file: zipfile.ZipFile) -> Iterator[tuple[str, Tensor]]:
    for info in file.infolist():
        if info.filename != HEADER:
            name = info.filename.removesuffix(".npy")
            yield name, torch.from_numpy(_array(file.read(_stored(info)), name))


def _stored(info: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """A part that takes no more memory than the file has bytes."""
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise ValueError(f"{info.filename[:100]} is compressed")
    return info


def _array(content: bytes, name: str) -> np.ndarray:
    """An array of numbers, of as many bytes as it says."""
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError(f"{name[:100]} is of another version")
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.kind not in "iufb" or (by_columns and len(shape) > 1):
        raise ValueError(f"{name[:100]} is no array of numbers")
    values = np.frombuffer(content, dtype, offset=stream.tell())
    return values.reshape(shape).copy()
