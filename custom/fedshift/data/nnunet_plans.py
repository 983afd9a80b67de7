"""What a plans file of nnU-Net 2 says of a configuration: how its volumes are prepared, and its patch and network.

nnU-Net counts axes as they lie in a file, and puts the coarsest first (``transpose_forward``); fedshift turns every
scan to slices, rows and columns. So plans are read for files whose axes lie along one of these, which `Plans.turned`
says; with nnU-Net's readers that reorient (``…WithReorient``) it is known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift.schema.errors import ConfigError
from fedshift.schema.strict import nearest

AXES = 3
AS_THEY_LIE = (0, 1, 2)
AXES_KEY = "fedshift_axes"
"""Of `Plans.axes`, in plans that are kept with a prepared site."""
DEFAULT_PLANS = "nnUNetPlans"
CONFIGURATION = "3d_fullres"
REORIENTING = ("SimpleITKIOWithReorient", "NibabelIOWithReorient")
READERS = ("SimpleITKIO", "NibabelIO", *REORIENTING)
"""nnU-Net's readers of volumes whose axes are those of the file."""
RESAMPLING = {
    "data": {"order": 3, "order_z": 0, "force_separate_z": None, "is_seg": False},
    "seg": {"order": 1, "order_z": 0, "force_separate_z": None, "is_seg": True},
    "probabilities": {"order": 1, "order_z": 0, "force_separate_z": None, "is_seg": False},
}
RESAMPLE = "resample_data_or_seg_to_shape"
"""nnU-Net's default, which ``data.convention: nnunet`` does."""
SCHEMES = {"ZScoreNormalization": "volume", "CTNormalization": "fixed", "NoNormalization": "none"}
FIXED = {"low": "percentile_00_5", "high": "percentile_99_5", "mean": "mean", "std": "std"}
"""Keys of ``data.fixed``, and nnU-Net's of a channel's intensities."""
PER_AXIS = ("kernel_sizes", "strides", "pool_op_kernel_sizes", "conv_kernel_sizes")


@dataclass(frozen=True)
class Configuration:
    """One configuration of plans; ``patch`` and ``spacing`` along slices, rows and columns, in 2D rows and columns.

    ``architecture``: nnU-Net's own description of the network, whose axes are turned likewise; empty in plans from
    before nnU-Net 2.4.
    """

    where: str
    name: str
    identifier: str
    patch: tuple[int, ...]
    spacing: tuple[float | None, float, float]
    batch: int
    batch_dice: bool
    schemes: tuple[str, ...]
    masks: tuple[bool, ...]
    intensities: tuple[Mapping[str, float], ...]
    architecture: Mapping[str, Any]

    @property
    def dims(self) -> int:
        """2 or 3."""
        return len(self.patch)

    def data(self) -> dict[str, Any]:
        """The keys of ``task.data`` that prepare volumes likewise.

        Raises:
            ConfigError: fedshift has no such normalisation.
        """
        if len(set(zip(self.schemes, self.masks, strict=True))) > 1 or self.schemes[0] not in SCHEMES:
            schemes = ", ".join(self.schemes)
            raise ConfigError(
                "nnunet-plans",
                f"{self.where} normalises its channels by {schemes}, and a task has one of {', '.join(SCHEMES)} for "
                "all: leave out channels, or survey the sites and plan anew",
            )
        normalise = SCHEMES[self.schemes[0]]
        if normalise == "fixed" and len(self.schemes) > 1:
            raise ConfigError(
                "nnunet-plans",
                f"{self.where} clips {len(self.schemes)} channels each by its own percentiles, and a task has the same "
                "for all: leave out channels, or survey the sites and plan anew",
            )
        settings: dict[str, Any] = {
            "dims": self.dims,
            "patch": [*self.patch],
            "spacing": [*self.spacing],
            "convention": "nnunet",
            "normalise": normalise,
        }
        if normalise == "volume" and self.masks[0]:
            settings["nonzero"] = True
        if normalise == "fixed":
            settings["fixed"] = {key: float(self.intensities[0][name]) for key, name in FIXED.items()}
        return settings


@dataclass(frozen=True)
class Plans:
    """A plans file: where it is, its name, its content, and which axis of slices, rows and columns each of a file is.

    ``axes``: of the first, second and third axis of arrays as nnU-Net's reader gives them.
    """

    path: Path
    content: Mapping[str, Any]
    axes: tuple[int, int, int] = AS_THEY_LIE

    @property
    def name(self) -> str:
        """Such as ``nnUNetPlans``."""
        return str(self.content.get("plans_name", self.path.stem))

    @property
    def reader(self) -> str:
        """nnU-Net's reader of images."""
        return str(self.content["image_reader_writer"])

    @property
    def axes_known(self) -> bool:
        """Whether the reader turns scans, so that axes do not depend on how they lie in files."""
        return self.reader in REORIENTING or AXES_KEY in self.content

    @property
    def forward(self) -> tuple[int, ...]:
        """Which axis of a file each axis of a prepared array is."""
        return tuple(int(axis) for axis in self.content["transpose_forward"])

    def turned(self, axes: Sequence[int]) -> Plans:
        """The same for files whose axes are these of slices, rows and columns."""
        first, second, third = axes
        return Plans(self.path, self.content, (first, second, third))

    def configuration(self, name: str = CONFIGURATION) -> Configuration:
        """A configuration with what it inherits.

        Raises:
            ConfigError: there is none of this name, it needs another's output, or fedshift prepares no such volumes.
        """
        where = f"{self.path}, configuration {name},"
        try:
            raw = self._inherited(name, ())
        except (TypeError, ValueError) as error:
            raise _broken(self.path, f"{type(error).__name__}: {error}") from None
        if raw.get("previous_stage"):
            raise ConfigError(
                "nnunet-cascade",
                f"{where} is the second stage of a cascade, which takes the masks of {raw['previous_stage']}: name "
                "that or another configuration",
            )
        for what, usual in RESAMPLING.items():
            stored = raw.get(f"resampling_fn_{what}"), raw.get(f"resampling_fn_{what}_kwargs")
            if stored != (RESAMPLE, usual):
                raise ConfigError(
                    "nnunet-plans",
                    f"{where} resamples {what} by {stored[0]} {stored[1]}, and fedshift does what nnU-Net's default "
                    f"planner says, {RESAMPLE} {usual}: plan with nnU-Net's default planner",
                )
        try:
            return self._configuration(where, name, raw)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise _broken(self.path, f"{type(error).__name__}: {error}") from None

    def _configuration(self, where: str, name: str, raw: Mapping[str, Any]) -> Configuration:
        dims = len(raw["patch_size"])
        if dims not in (AXES - 1, AXES) or not raw["normalization_schemes"]:
            raise ValueError("its patch has no 2 or 3 axes, or its images no channel")
        # Which of slices, rows and columns each axis of a prepared array is.
        order = [self.axes[axis] for axis in self.forward]
        if dims == AXES - 1 and order[0] != 0:
            raise ConfigError(
                "nnunet-plans",
                f"{where} cuts slices across another axis than the first of a scan in RAS orientation, and fedshift "
                "across that one alone: take a configuration in 3D",
            )
        order = order[AXES - dims :]
        patch, spacing = in_order(raw["patch_size"], order), in_order(raw["spacing"], order)
        known = [None] * (AXES - dims) + [float(mm) for mm in spacing]
        ranges = self.content["foreground_intensity_properties_per_channel"]
        return Configuration(
            where=where.removesuffix(","),
            name=name,
            identifier=str(raw["data_identifier"]),
            patch=tuple(int(side) for side in patch),
            spacing=(known[0], float(known[1] or 0), float(known[2] or 0)),
            batch=int(raw["batch_size"]),
            batch_dice=bool(raw.get("batch_dice", False)),
            schemes=tuple(map(str, raw["normalization_schemes"])),
            masks=tuple(map(bool, raw["use_mask_for_norm"])),
            intensities=tuple(ranges[str(number)] for number in range(len(raw["normalization_schemes"]))),
            architecture=_turned(raw.get("architecture") or {}, order),
        )

    def _inherited(self, name: str, heirs: tuple[str, ...]) -> dict[str, Any]:
        known = self.content["configurations"]
        if name not in known or name in heirs:
            names = ", ".join(known)
            raise ConfigError(
                "nnunet-plans",
                f"{self.path} has no configuration {name!r}{nearest(name, known)}: it has {names}, name one",
            )
        settings = dict(known[name])
        parent = settings.pop("inherits_from", None)
        return settings if parent is None else self._inherited(str(parent), (*heirs, name)) | settings


def read_plans(path: Path) -> Plans:
    """Read a plans file, such as ``nnUNetPlans.json`` or the ``plans.json`` of a trained model.

    Raises:
        ConfigError: it is none of nnU-Net 2.
    """
    if path.suffix == ".pkl":
        raise ConfigError("nnunet-plans", f"{path} is a plan of nnU-Net 1: plan the data set with nnU-Net 2")
    if path.is_dir():
        plans_files = sorted(file.name for file in path.glob("*lans*.json"))
        order = (
            f"name a file in it ({', '.join(plans_files)})"
            if plans_files
            else "name the plans file, such as nnUNetPlans.json"
        )
        raise ConfigError("nnunet-plans", f"{path} is a folder: {order}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("nnunet-plans", f"{path} does not exist: plan the data set with nnU-Net 2") from None
    except (ValueError, RecursionError) as error:
        raise _broken(path, str(error)) from None
    needed = ("configurations", "transpose_forward", "image_reader_writer")
    missing = [key for key in needed if not isinstance(content, dict) or key not in content]
    if missing:
        raise _broken(path, f"it lacks {missing[0]!r}")
    if not isinstance(content["configurations"], dict):
        raise _broken(path, "its 'configurations' are no table")
    try:
        plans = Plans(path, content).turned(content.get(AXES_KEY, AS_THEY_LIE))
        axes = [sorted(order) for order in (plans.forward, plans.axes)]
    except (TypeError, ValueError) as error:
        raise _broken(path, f"its axes are none ({error})") from None
    if axes != [[*AS_THEY_LIE]] * 2:
        raise _broken(path, f"its axes are {list(plans.forward)} and {list(plans.axes)}")
    if plans.reader not in READERS:
        raise ConfigError(
            "nnunet-plans", f"{path} reads images by {plans.reader}, and fedshift takes volumes of {', '.join(READERS)}"
        )
    return plans


def in_order(values: Sequence[Any], order: Sequence[int]) -> list[Any]:
    """Values of a prepared array's axes, along slices, rows and columns."""
    return [values[place] for place in sorted(range(len(order)), key=lambda place: order[place])]


def layers_in_order(arguments: Mapping[str, Any], order: Sequence[int]) -> dict[str, Any]:
    """A network's arguments with kernels and strides along slices, rows and columns."""
    return {
        key: [in_order(each, order) if isinstance(each, list | tuple) else each for each in value]
        if key in PER_AXIS and isinstance(value, list | tuple)
        else value
        for key, value in arguments.items()
    }


def _turned(architecture: Mapping[str, Any], order: Sequence[int]) -> dict[str, Any]:
    """A network's description with kernels and strides along slices, rows and columns."""
    arguments = architecture.get("arch_kwargs") or {}
    return {**architecture, "arch_kwargs": layers_in_order(arguments, order)} if architecture else {}


def _broken(path: Path, why: str) -> ConfigError:
    return ConfigError("nnunet-plans", f"{path} is no plans file of nnU-Net 2 ({why:.200}): copy it again")
