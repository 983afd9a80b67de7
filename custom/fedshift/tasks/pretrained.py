"""Initial weights from a file: torchvision's ImageNet weights for ResNet-18, a fedshift model, a MONAI bundle's model.

A job holds the file's name and hash. Only the server needs the file: sites receive the weights with the first round,
unless the job trains adapters beside them (`fedshift.tasks.starting`).
The head is reinitialised if its number of classes differs, and so are group norms where the file's network has batch
norms, as in the released code of "Mitigating Data Heterogeneity…". Any other mismatch is refused, unless the job asks
for the arrays that fit (``partial``).
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedshift.data.locate import data_home
from fedshift.schema.errors import ConfigError
from fedshift.schema.results import Lineage, lineage_of
from fedshift.schema.task import WeightsSpec
from fedshift.tasks import networks, nnunet_checkpoint, nnunet_networks
from fedshift.tasks.encoder_names import for_encoder
from fedshift.tasks.monai_networks import without_second_names

SHOWN = 12
"""Number of hash digits shown in messages and file names."""
COUNTER = ".num_batches_tracked"
IN_BUNDLE = Path("models") / "model.pt"
"""Where a MONAI bundle keeps its weights."""
WRAPPERS = ("model", "state_dict", nnunet_checkpoint.WEIGHTS)
"""Keys under which training programs save the network beside the optimiser."""
AROUND = re.compile(r"^(?:module\.|_orig_mod\.)+")
"""What data-parallel training and ``torch.compile`` put before the names of all arrays."""


@dataclass(frozen=True)
class LoadedArrays:
    """The arrays that a network loads from a file."""

    arrays: dict[str, Tensor]
    """Network key -> array."""
    total: int
    """Number of arrays in the network."""
    new: tuple[str, ...]
    """Arrays that keep their random initial values, for messages."""
    unused: tuple[str, ...] = ()
    """Arrays of the file that the network does not have, for messages."""

    def __str__(self) -> str:
        """``120 of 122 arrays; new: fc.weight, fc.bias``."""
        parts = [f"{len(self.arrays)} of {self.total} arrays"]
        parts += [
            f"{what}: {', '.join(names)}" for what, names in (("new", self.new), ("unused", self.unused)) if names
        ]
        return "; ".join(parts)


def file_of(path: Path) -> Path:
    """The file of weights that a path names: the file itself, or that in a MONAI bundle or in results of nnU-Net."""
    if not path.is_dir():
        return path
    inside = path / IN_BUNDLE
    file = inside if inside.is_file() else nnunet_checkpoint.checkpoint_in(path)
    if file is None:
        raise ConfigError(
            "weights-missing",
            f"{path} has no {IN_BUNDLE}, as a MONAI bundle has, and no fold_0/{nnunet_checkpoint.FINAL}, as results of "
            "nnU-Net have: name a file of weights",
        )
    return file


def identify(path: Path, *, partial: bool = False) -> WeightsSpec:
    """Name and hash of a file, as a job holds them.

    Raises:
        ConfigError: it cannot be read, or its name is not allowed in a job.
    """
    digest = _sha256(path)
    try:
        return WeightsSpec.parse({"file": path.name, "sha256": digest, "partial": partial}, where="weights")
    except ConfigError:
        raise ConfigError(
            "file-name",
            f"{path} may only have letters, digits, '.', '-' and '_' in its name, since the job contains it: rename it",
        ) from None


def read(path: Path) -> dict[str, Tensor]:
    """Read a ``state_dict``, bare or in a checkpoint, or the weights of a fedshift model file. No code is executed.

    Raises:
        ConfigError: it cannot be read, or is something else than named tensors.
    """
    content = _content(path)
    if isinstance(content, dict) and "schema" in content:
        content = content.get("weights")
    elif nnunet_checkpoint.is_checkpoint(content):
        content = nnunet_checkpoint.weights_along_files(content)
    elif isinstance(content, dict):
        content = next((content[key] for key in WRAPPERS if isinstance(content.get(key), dict)), content)
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()) or not content:
        raise ConfigError("weights-format", f"{path} does not hold named tensors: save the network's state_dict()")
    return {AROUND.sub("", str(key)): value.detach() for key, value in content.items()}


def take_what_fits(net: nn.Module, state: Mapping[str, Tensor], *, where: str) -> LoadedArrays:
    """Select the arrays of a file that the network has by name and shape. The network is not changed.

    A file of a classification network is for the encoder of one that has it (`fedshift.tasks.encoder_names`).

    Raises:
        ConfigError: no parameter fits, or one that fits is not finite.
    """
    initial, state = net.state_dict(), for_encoder(net, _named_once(net, state))
    fitting = {key for key, value in initial.items() if key in state and state[key].shape == value.shape}
    if not any(key in fitting for key, _ in net.named_parameters()):
        raise ConfigError(
            "weights-unfit", f"{where} has no array that the job's network has by name and shape{_hint(state)}"
        )
    arrays = {key: _checked(state[key], initial[key], f"{where}: {key}") for key in initial if key in fitting}
    new, unused = (key for key in initial if key not in fitting), (key for key in state if key not in fitting)
    return LoadedArrays(arrays, len(initial), _by_layer(new), _by_layer(unused))


def _named_once(net: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A file's arrays under the first of their names, where the network's class has several."""
    if nnunet_networks.is_of_nnunet(net):
        return nnunet_networks.without_second_names(state)
    return without_second_names(net, state)


def _by_layer(keys: Iterable[str]) -> tuple[str, ...]:
    """``conv (2 arrays)``, by the first two parts of the arrays' names."""
    counts = Counter(".".join(_owner(key).split(".")[:2]) or key for key in keys)
    return tuple(f"{layer} ({n} array{'' if n == 1 else 's'})" for layer, n in counts.items())


def select(net: nn.Module, spec: WeightsSpec, path: Path) -> LoadedArrays:
    """The arrays of a job's file at ``path`` that its network starts from: all that must fit, or those that do."""
    return (take_what_fits if spec.partial else take)(net, read(path), where=spec.file)


def take(net: nn.Module, state: Mapping[str, Tensor], *, where: str) -> LoadedArrays:
    """Select the arrays of a file, as `read` gave them, that fit a network, which is not changed.

    Raises:
        ConfigError: an array is missing, unexpected, not finite or of another shape; the first one is named.
    """
    initial, state = net.state_dict(), _named_once(net, state)
    head = {name for name, module in net.named_modules() if module is getattr(net, "head", None)}
    norms = {name for name, m in net.named_modules() if isinstance(m, nn.GroupNorm) and f"{name}.running_mean" in state}
    heads = [key for key in initial if _owner(key) in head]
    fits = all(key in state and state[key].shape == initial[key].shape for key in heads)
    of_norms = [key for key in initial if _owner(key) in norms]
    counters = [key for key in initial if key.endswith(COUNTER) and key not in state]  # torch before 0.4.1 had none
    new = {*(() if fits else heads), *of_norms, *counters}
    wanted = {key: value for key, value in initial.items() if key not in new}
    unfit = f"{where} does not fit the job's network"
    for key in wanted:
        if key not in state:
            raise ConfigError("weights-unfit", f"{unfit}: it has no {key}{_hint(state)}")
    for key in state:
        if key not in initial and _owner(key) not in norms | head:
            raise ConfigError("weights-unfit", f"{unfit}: the network has no {key}{_hint(state)}")
    for key, value in wanted.items():
        if state[key].shape != value.shape:
            raise ConfigError(
                "weights-unfit",
                f"{unfit}: its {key} is {_shape(state[key])}, the network's {_shape(value)}: choose network.options "
                "and data.channels as they were when the file was made, or another file",
            )
    arrays = {key: _checked(state[key], value, f"{where}: {key}") for key, value in wanted.items()}
    words = [] if fits else list(heads)
    words += [f"group norms ({len(of_norms)} arrays)"] if of_norms else []
    words += [f"counters of norms ({len(counters)} arrays)"] if counters else []
    return LoadedArrays(arrays, len(initial), tuple(words))


def from_nnunet(path: Path) -> nnunet_checkpoint.Described | None:
    """The network of a checkpoint that nnU-Net wrote; None for other files. Errors as `read` and `described`."""
    content = _content(path)
    return nnunet_checkpoint.described(content, path) if nnunet_checkpoint.is_checkpoint(content) else None


def describe(spec: WeightsSpec, loaded: LoadedArrays) -> str:
    """One line for the log, results and reports."""
    return f"{spec.file} (sha256 {spec.sha256[:SHOWN]}…, {loaded})"


def trained_by(
    spec: WeightsSpec, environ: Mapping[str, str] = os.environ, *, site_folder: Path | None = None
) -> Lineage:
    """The sites that have trained a job's file, if fedshift wrote it; arguments and errors as `find`."""
    return lineage_of(_content(find(spec, environ, site_folder=site_folder)), where=spec.file)


def find(spec: WeightsSpec, environ: Mapping[str, str] = os.environ, *, site_folder: Path | None = None) -> Path:
    """Path of a job's file: in the folder that a site's settings name, if they do; in ``$FEDSHIFT_WEIGHTS``, or in
    ``weights/`` of `data_home`.

    ``site_folder``: that of the settings (`fedshift.data.locate.SiteSettings.weights`).

    Raises:
        ConfigError: it is missing, or the file of that name has another hash. The message lists the folders searched.
    """
    looked = [*([site_folder] if site_folder else []), *_folders(environ)]
    others = []
    for path in (folder / name for folder in looked for name in (_kept_as(spec), spec.file)):
        if path.is_file():
            if _sha256(path) == spec.sha256:
                return path
            others.append(path)
    what = f"{spec.file} (sha256 {spec.sha256[:SHOWN]}…)"
    remedy = (
        "copy the file there, name its folder with 'weights:' in the site's local/fedshift.yaml, or make the job on "
        "this machine with 'fedshift job … --weights FILE'"
    )
    if others:
        other = f"{others[0]} has sha256 {_sha256(others[0])[:SHOWN]}…"
        raise ConfigError("weights-missing", f"the job starts from {what}, but {other}: {remedy}")
    raise ConfigError(
        "weights-missing",
        f"the job starts from {what}, which is not on this machine: looked in {', '.join(map(str, looked))}; {remedy}",
    )


def keep(path: Path, spec: WeightsSpec, environ: Mapping[str, str] = os.environ) -> Path:
    """Copy a file atomically to where `find` looks, unless it is there already. Returns its path."""
    try:
        return find(spec, environ)
    except ConfigError:
        target = _folders(environ)[0] / _kept_as(spec)
    partial = target.with_name(f".{target.name}.partial-{uuid.uuid4().hex[:8]}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, partial)
        if _sha256(partial) != spec.sha256:
            raise ConfigError("file-changed", f"{path} changed while it was copied: name it again")
        partial.replace(target)
    except OSError as error:
        raise ConfigError(
            "file-unwritable",
            f"{path} cannot be copied to {target.parent} ({error.strerror}): set FEDSHIFT_WEIGHTS to another folder",
        ) from None
    finally:
        with suppress(OSError):
            partial.unlink()
    return target


def _content(path: Path) -> Any:
    """What a file of ``torch.save`` holds; only arrays and plain values are loaded."""
    try:
        return nnunet_checkpoint.load(path)
    except pickle.UnpicklingError:
        raise ConfigError(
            "weights-format",
            f"{path} is not a file of tensors written by torch.save, and nothing else is loaded: save the network's "
            "state_dict()",
        ) from None
    except Exception as error:  # a damaged file may fail anywhere in torch
        raise ConfigError(
            "file-unreadable", f"{path} cannot be read ({type(error).__name__}): download it again"
        ) from None


def _folders(environ: Mapping[str, str]) -> list[Path]:
    named = environ.get("FEDSHIFT_WEIGHTS")
    return [*([Path(named).absolute()] if named else []), data_home(environ) / "weights"]


def _kept_as(spec: WeightsSpec) -> str:
    return f"{spec.sha256[:SHOWN]}-{spec.file}"


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError("file-unreadable", f"{path} cannot be read ({error.strerror})") from None


def _owner(key: str) -> str:
    """Name of the module that an array belongs to."""
    return key.rpartition(".")[0]


def _shape(value: Tensor) -> str:
    return " x ".join(map(str, value.shape)) or "a number"


def _checked(value: Tensor, initial: Tensor, what: str) -> Tensor:
    """Convert to the dtype of the network's array; refuse arrays that are not dense, finite and on the CPU."""
    plain = value.layout == torch.strided and not value.is_quantized and value.device.type == "cpu"
    if not plain or value.is_floating_point() != initial.is_floating_point():
        raise ConfigError("weights-format", f"{what} is not an array of {initial.dtype}".replace("torch.", ""))
    value = value.to(initial.dtype)
    if not bool(torch.isfinite(value).all()):
        raise ConfigError(
            "not-finite", f"{what} is not finite: the training that made it had failed; name another file"
        )
    return value


def _hint(state: Mapping[str, Tensor]) -> str:
    """Suggest which network the file was made for, from the names of its arrays."""
    keys = {key for key in state if not key.endswith(COUNTER)}
    for name in networks.available():
        try:
            with torch.device("meta"):
                net = networks.build(name, {}, in_channels=3, n_classes=2, seed=0)
        except ConfigError:
            continue  # not made without a patch, without a package, or for three channels
        if keys == {key for key in net.state_dict() if not key.endswith(COUNTER)}:
            return f"; it looks like a file of network {name}"
    return ": name a file that was made for it"
