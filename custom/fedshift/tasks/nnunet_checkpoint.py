"""Checkpoints of nnU-Net 2 as a start: the network is built from the plans, and its weights are taken one to one.

A checkpoint (``checkpoint_final.pth``) holds weights and, under ``init_args``, the plans, the data set's description
and the configuration that it trained. Where those are missing, ``plans.json`` and ``dataset.json`` are read beside it
or in the folder above, as a results folder has them. Plans of nnU-Net 2.0 to 2.3, which describe a network without
naming its class, are read as nnU-Net itself reads them.

nnU-Net may train on patches whose axes are not in the order of the files' (``transpose_forward``). Kernels, strides and
all else are put back into that order, so that the network says of a volume what nnU-Net's says of the turned one.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch

from fedshift.data.nnunet_plans import AS_THEY_LIE, AXES, FIXED, in_order, layers_in_order
from fedshift.schema.codes import plain_name
from fedshift.schema.errors import ConfigError
from fedshift.schema.strict import nearest
from fedshift.tasks import nnunet_networks

WEIGHTS, ARGUMENTS = "network_weights", "init_args"
MIRROR = "inference_allowed_mirroring_axes"
FINAL = "checkpoint_final.pth"
USUAL_TRAINER = "nnUNetTrainer"
NOT_OPTIONS = ("conv_op",)
"""What follows from the task."""
LONGER = 1.5
"""So many times longer than along the other axes are voxels of thick slices, at least."""


@dataclass(frozen=True)
class Described:
    """The network of a checkpoint, and how the plans prepared its images.

    ``name`` and ``options``: as a job has them. ``dims``: 2 or 3. ``images``: names of the channels, in their order.
    ``named``: what the logits are of, in their order, classes with the background first or ``regions``. ``patch``
    (voxels), ``spacing`` (mm): along the axes of files; ``normalisation``: a word a channel; ``nonzero``: whether of
    what is not 0; ``fixed``: the numbers of ``data.fixed``, of CT. ``other_slices``: whether
    a network in 2D has learnt slices across another axis than the first of files. ``thin``: whether the network treats
    one axis otherwise. ``mirror``: axes of a patch along which nnU-Net mirrors in training and in prediction.
    ``reader``: nnU-Net's, of images. ``trainer``: nnU-Net's class.
    """

    name: str
    options: dict[str, Any]
    dims: int
    images: tuple[str, ...]
    named: tuple[str, ...]
    regions: bool
    patch: tuple[int, ...]
    spacing: tuple[float, ...]
    normalisation: tuple[str, ...]
    nonzero: bool = False
    fixed: Mapping[str, float] = field(default_factory=dict)
    other_slices: bool = False
    thin: bool = False
    mirror: tuple[int, ...] = ()
    reader: str = ""
    trainer: str = USUAL_TRAINER

    @property
    def channels(self) -> int:
        """Of images."""
        return len(self.images)


def is_checkpoint(content: Any) -> bool:
    """Whether the content of a file is what nnU-Net's trainer saves."""
    return isinstance(content, dict) and WEIGHTS in content and ("trainer_name" in content or ARGUMENTS in content)


def checkpoint_in(folder: Path) -> Path | None:
    """The checkpoint of a data set's results, of a trainer's in them, or of one of its folds; None of other folders.

    Raises:
        ConfigError: it has several folds, or its training was interrupted.
    """
    inside = _inside(folder, FINAL)
    if len(inside) > 1:
        folds = ", ".join(str(path.parent.relative_to(folder)) for path in inside)
        raise ConfigError("weights-missing", f"{folder} has several folds ({folds}): name the {FINAL} of one")
    if not inside and (unfinished := _inside(folder, "checkpoint_*.pth")):
        files = ", ".join(str(path.relative_to(folder)) for path in unfinished)
        raise ConfigError(
            "weights-missing",
            f"{folder} has no {FINAL}, as its training was interrupted: train on, or name the file to start from "
            f"({files})",
        )
    return inside[0] if inside else None


def _inside(folder: Path, name: str) -> list[Path]:
    """Checkpoints of this name in a fold, in the folds of a trainer, or in those of a data set's trainers."""
    return next((files for place in ("", "fold_*/", "*/fold_*/") if (files := sorted(folder.glob(place + name)))), [])


def described(content: Mapping[str, Any], path: Path) -> Described:
    """The network of a checkpoint's ``content``, read from ``path``.

    Raises:
        ConfigError: plans are missing, or their network is not on the list.
    """
    arguments = content.get(ARGUMENTS)
    arguments = arguments if isinstance(arguments, dict) else {}
    plans = arguments.get("plans") or _beside(path, "plans.json")
    dataset = arguments.get("dataset_json") or _beside(path, "dataset.json")
    missing = [
        name
        for name, content_of_file in (("plans.json", plans), ("dataset.json", dataset))
        if not isinstance(content_of_file, dict)
    ]
    if missing:
        raise ConfigError(
            "plans-missing",
            f"{path} has no plans with it, which say what its network is: put {' and '.join(missing)} of its results "
            "folder beside it",
        )
    try:
        planned = _described(
            cast(dict[str, Any], plans), cast(dict[str, Any], dataset), arguments.get("configuration"), path
        )
        order = _order(cast(dict[str, Any], plans), planned.dims)
        if order != AS_THEY_LIE[: planned.dims] and not arguments.get("plans"):
            raise ConfigError(
                "weights-unfit",
                f"{path}: the plans beside it turn the axes of files, and a site gets the checkpoint alone: take it as "
                "nnU-Net wrote it, with its plans inside, or leave out --init",
            )
        places = in_order(range(planned.dims), order)
        return replace(
            planned,
            mirror=tuple(sorted(places.index(int(axis)) for axis in content.get(MIRROR) or ())),
            trainer=str(content.get("trainer_name", USUAL_TRAINER)),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise ConfigError(
            "plans-form", f"{path}: its plans are not as nnU-Net 2 writes them ({type(error).__name__}: {error})"
        ) from None


def _beside(path: Path, name: str) -> dict[str, Any] | None:
    for folder in (path.parent, path.parent.parent):
        file = folder / name
        if file.is_file():
            try:
                read = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                raise ConfigError("plans-form", f"{file} cannot be read as JSON: copy it again") from None
            return read if isinstance(read, dict) else None
    return None


def _described(plans: dict[str, Any], dataset: dict[str, Any], configuration: Any, path: Path) -> Described:
    configurations = plans["configurations"]
    if configuration is None:  # as the results folder is named: TRAINER__PLANS__CONFIGURATION
        configuration = next(
            (each for each in (folder.name.rpartition("__")[2] for folder in path.parents) if each in configurations),
            None,
        )
    if configuration not in configurations:
        known = ", ".join(map(str, configurations))
        raise ConfigError("plans-form", f"{path} does not say which of its plans' configurations it is of ({known})")
    chosen = _inherited(configurations, configuration)
    if chosen.get("previous_stage"):
        raise ConfigError(
            "network-unlisted",
            f"{path} is the second stage of a cascade, which takes the masks of its first stage "
            f"({chosen['previous_stage']}) as channels: start from a checkpoint of 3d_fullres",
        )
    dims = len(chosen["patch_size"])
    images = dataset.get("channel_names") or dataset["modality"]
    name, arguments = _architecture(chosen, path)
    labels = dataset["labels"]
    regions = any(isinstance(value, list) and len(value) > 1 for value in labels.values())
    kept = {str(key): value for key, value in labels.items() if key != "ignore"}
    if regions:
        named = [name for name, values in kept.items() if values not in (0, [0])]
    else:
        named = sorted(kept, key=lambda name: _least(kept[name]))
    order = _order(plans, dims)
    arguments = layers_in_order(arguments, order)
    return Described(
        name=nnunet_networks.PREFIX + name,
        options=_options(name, arguments, dims, path),
        dims=dims,
        images=tuple(str(images[number]) for number in sorted(images, key=int)),
        named=tuple(named),
        regions=regions,
        patch=tuple(int(side) for side in in_order(chosen["patch_size"], order)),
        spacing=tuple(float(mm) for mm in in_order(chosen["spacing"], order)) if "spacing" in chosen else (),
        normalisation=tuple(map(str, chosen.get("normalization_schemes", ()))),
        nonzero=any(chosen.get("use_mask_for_norm") or ()),
        fixed=_fixed(plans, chosen),
        other_slices=dims < AXES and _forward(plans)[0] != 0,
        thin=_is_thin(arguments),
        reader=str(plans.get("image_reader_writer", "")),
    )


def _fixed(plans: Mapping[str, Any], configuration: Mapping[str, Any]) -> dict[str, float]:
    """The numbers by which CT is normalised; none of several channels, each of which has its own."""
    if configuration.get("normalization_schemes") != ["CTNormalization"]:
        return {}
    intensities = plans["foreground_intensity_properties_per_channel"]["0"]
    return {key: float(intensities[name]) for key, name in FIXED.items()}


def _least(values: Any) -> int:
    return int(min(values) if isinstance(values, list) else values)


def _forward(plans: Mapping[str, Any]) -> tuple[int, ...]:
    """The axis of files that each axis of a prepared volume is."""
    forward = tuple(int(axis) for axis in plans.get("transpose_forward") or AS_THEY_LIE)
    if sorted(forward) != [*AS_THEY_LIE]:
        raise ValueError(f"transpose_forward is {list(forward)}")
    return forward


def _order(plans: Mapping[str, Any], dims: int) -> tuple[int, ...]:
    """The axis of files that each axis of a patch is; in 2D that of slices, of those across the first axis of files."""
    forward = _forward(plans)
    if dims == AXES:
        return forward
    return tuple(axis - 1 for axis in forward[1:]) if forward[0] == 0 else AS_THEY_LIE[:dims]


def weights_along_files(content: Mapping[str, Any]) -> Any:
    """The weights in a checkpoint's ``content``, with kernels along the axes of files."""
    weights, arguments = content[WEIGHTS], content.get(ARGUMENTS)
    plans = arguments.get("plans") if isinstance(arguments, dict) else None
    if not isinstance(plans, dict) or not isinstance(weights, dict):
        return weights
    return {key: _along_files(value, plans) for key, value in weights.items()}


def _along_files(value: Any, plans: Mapping[str, Any]) -> Any:
    dims = value.ndim - 2 if isinstance(value, torch.Tensor) else 0
    if dims not in (AXES - 1, AXES):
        return value
    return value.permute(0, 1, *(2 + axis for axis in in_order(range(dims), _order(plans, dims)))).contiguous()


def _is_thin(arguments: Mapping[str, Any]) -> bool:
    """Whether a network treats one axis otherwise than others."""
    layers = [*(arguments.get("kernel_sizes") or ()), *(arguments.get("strides") or ())]
    return any(len(set(layer)) > 1 for layer in layers if isinstance(layer, list | tuple))


def _inherited(configurations: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A configuration with what it inherits from others."""
    chain, current = [], name
    while current is not None:
        if current in chain:
            raise ValueError(f"configuration {current} inherits from itself")
        chain.append(current)
        current = configurations[current].get("inherits_from")
    return {key: value for each in reversed(chain) for key, value in configurations[each].items()}


def _architecture(configuration: Mapping[str, Any], path: Path) -> tuple[str, dict[str, Any]]:
    """Name and arguments of the network."""
    described_by = configuration.get("architecture")
    whole = configuration["UNet_class_name"] if described_by is None else described_by["network_class_name"]
    name = str(whole).rpartition(".")[2]
    if name not in nnunet_networks.ALLOWED:
        known = nnunet_networks.ALLOWED
        raise ConfigError(
            "network-unlisted",
            f"{path}: its plans' network {whole} is not on the list ({', '.join(known)}){nearest(name, known)}",
        )
    if described_by is not None:
        return name, dict(described_by["arch_kwargs"])
    layers = configuration["n_conv_per_stage_encoder"]
    widest, first = configuration["unet_max_num_features"], configuration["UNet_base_num_features"]
    return name, {
        "features_per_stage": [min(widest, first * 2**stage) for stage in range(len(layers))],
        "kernel_sizes": configuration["conv_kernel_sizes"],
        "strides": configuration["pool_op_kernel_sizes"],
        nnunet_networks.ALLOWED[name].layers: layers,
        "n_conv_per_stage_decoder": configuration["n_conv_per_stage_decoder"],
    }


def _options(name: str, arguments: Mapping[str, Any], dims: int, path: Path) -> dict[str, Any]:
    """Options of the network, with words in place of torch's classes; checked."""
    options = {key: _plain(value) for key, value in arguments.items() if key not in NOT_OPTIONS}
    for key, words in nnunet_networks.CLASSES.items():
        if (value := options.get(key)) is not None:
            short = str(value).rpartition(".")[2]
            known = {f"{cls}{dims}d": word for word, cls in words.items()}
            if short not in known:
                raise ConfigError("network-unlisted", f"{path}: {key} {value} of its plans is not on the list")
            options[key] = known[short]
    if "nonlin" in options:
        options["nonlin"] = str(options["nonlin"]).rpartition(".")[2]
    try:
        nnunet_networks.complete(name, options, dims=dims)
    except ConfigError as error:
        raise ConfigError(error.code, f"{path}: its plans: {error}") from None
    return options


def _plain(value: Any) -> Any:
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def other_axes(nnunet: Described, spacing: Sequence[float | None] | None) -> bool:
    """Whether the voxels of a checkpoint are long along another axis than the task's: scans lay otherwise in files.

    ``spacing``: as of `check_fits`.
    """
    axes = (spacing or ())[-nnunet.dims :]
    if None in axes or len(axes) != len(nnunet.spacing):
        return False
    trained, longest = _longest(nnunet.spacing), _longest([float(mm or 0) for mm in axes])
    return None not in (trained, longest) and trained != longest


def _longest(spacing: Sequence[float]) -> int | None:
    """The axis along which voxels are clearly longer than along the others, if there is one."""
    second, first = sorted(spacing)[-2:]
    return list(spacing).index(first) if first > LONGER * second else None


def _mm(spacing: Sequence[float | None] | None) -> str:
    return " x ".join("own" if mm is None else f"{mm:g}" for mm in spacing or ())


def alike(trained: Sequence[str], named: Sequence[str]) -> bool:
    """Whether the channels or outputs of a checkpoint are called so, in this order, but for case and the like."""
    return [*map(plain_name, trained)] == [*map(plain_name, named)]


def check_fits(
    nnunet: Described,
    *,
    channels: int,
    sequences: Sequence[str] | None,
    named: Sequence[str],
    regions: bool,
    dims: int,
    path: Path,
    spacing: Sequence[float | None] | None = None,
) -> None:
    """Refuse a checkpoint of a network for other images or outputs than the task's (`ConfigError`).

    ``sequences``: the task's, in their order; empty for one without a name, None for a task that has none.
    ``named``: what its outputs are of, in their order: classes with the background first, or ``regions``.
    ``spacing``: mm of the task's voxels along z, y, x; None if it has none, or none along an axis.
    """
    for what, trained, wanted in (
        ("dimensions", nnunet.dims, dims),
        ("channels of images", nnunet.channels, channels),
        ("classes or regions", len(nnunet.named), len(named)),
    ):
        if trained != wanted:
            raise ConfigError(
                "weights-unfit",
                f"{path} was trained with {trained} {what}, and the task has {wanted}: take a task with as many, or "
                "another checkpoint",
            )
    if nnunet.regions != regions:
        words = ("regions, which overlap", "classes") if nnunet.regions else ("classes", "regions")
        raise ConfigError(
            "weights-unfit", f"{path} was trained on {words[0]}, and the task has {words[1]}: take another checkpoint"
        )
    if sequences is not None and channels != max(len(sequences), 1):
        raise ConfigError(
            "weights-unfit",
            f"{path} was trained on the channels {', '.join(nnunet.images)}, and the task's are of neighbouring "
            "slices: set data.context=1 and as many sequences, or take another checkpoint",
        )
    if nnunet.thin and other_axes(nnunet, spacing):
        raise ConfigError(
            "weights-unfit",
            f"{path}: it has learnt voxels of {_mm(nnunet.spacing)} mm, and the task's are of {_mm(spacing)}, and its "
            "network has thin layers along one axis, which would be another here: take one whose files lie as the "
            "task's volumes, or leave out --init",
        )
    for what, trained_on, of_task in (("channels", nnunet.images, sequences or ()), ("outputs", nnunet.named, named)):
        if not alike(trained_on, of_task) and sorted(map(plain_name, trained_on)) == sorted(map(plain_name, of_task)):
            raise ConfigError(
                "weights-unfit",
                f"{path} has the {what} {', '.join(trained_on)}, and the task the same in the order "
                f"{', '.join(of_task)}: put the task's in that of the checkpoint",
            )


# --- numbers of NumPy in a checkpoint -----------------------------------------------------------------------


class _Type:
    """Stands for ``numpy.dtype`` while a checkpoint is read: the name of a type, and its byte order."""

    def __init__(self, name: str, *_: Any) -> None:
        self.name, self.order = name, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]


def _number(kind: _Type, data: bytes) -> float | int | bool:
    """Stands for NumPy's ``scalar``: a Python number, and nothing else."""
    import numpy as np

    kinds = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"}
    if not isinstance(kind, _Type) or kind.name not in kinds or kind.order not in ("<", ">", "|", "="):
        raise pickle.UnpicklingError("no plain number")
    (value,) = np.frombuffer(data, np.dtype(kind.order + kind.name)).tolist()
    return cast("float | int | bool", value)


NUMBERS: tuple[tuple[Any, str], ...] = (
    (_Type, "numpy.dtype"),
    (_number, "numpy._core.multiarray.scalar"),
    (_number, "numpy.core.multiarray.scalar"),
)
"""What takes the place of NumPy's names, so that no code of NumPy is called by a file."""


def load(path: Path) -> Any:
    """What a file of ``torch.save`` holds: arrays, plain values and NumPy's numbers; errors as ``torch.load``'s."""
    with torch.serialization.safe_globals(list(NUMBERS)):
        return torch.load(path, map_location="cpu", weights_only=True)
