"""A list of MONAI's random transforms, from a job: ``[{name: monai.RandGaussianNoise, options: {prob: 0.2}}, …]``.

One sample at a time, as MONAI works. Those that move voxels move the labels too, which are sampled at the nearest
voxel. Intensities change alike in all channels of a sample.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor

from fedshift.schema.errors import ConfigError
from fedshift.schema.seeding import seeded_global
from fedshift.schema.strict import nearest

PREFIX = "monai."
MOVING = (
    "Rand2DElastic",
    "Rand3DElastic",
    "RandAffine",
    "RandAxisFlip",
    "RandFlip",
    "RandGridDistortion",
    "RandRotate",
    "RandRotate90",
    "RandZoom",
)
"""Transforms of images and labels."""
CHANGING = (
    "RandAdjustContrast",
    "RandBiasField",
    "RandCoarseDropout",
    "RandCoarseShuffle",
    "RandGaussianNoise",
    "RandGaussianSharpen",
    "RandGaussianSmooth",
    "RandGibbsNoise",
    "RandHistogramShift",
    "RandKSpaceSpikeNoise",
    "RandRicianNoise",
    "RandScaleIntensity",
    "RandScaleIntensityFixedMean",
    "RandShiftIntensity",
    "RandSimulateLowResolution",
    "RandStdShiftIntensity",
)
"""Transforms of images alone."""
SET_HERE = frozenset(
    {"self", "keys", "mode", "allow_missing_keys", "device", "lazy", "dtype", "keep_size", "kwargs"}
    | {"factor_key", "meta_keys", "meta_key_postfix"}
)
"""What is set here or is not plain data."""
SIZE = "spatial_size"
"""Of a transform that moves voxels: a patch keeps its size. Of others, it is that of a hole."""
TRIAL = 16
"""Side of the ramp that each transform meets once when it is made, so that bad values are found then.

It is for the longest side of a patch; the ramp's other sides are in proportion. Sides that differ get more voxels, so
that they differ in the ramp too.
"""
DIMENSIONS = {"Rand2DElastic": 2, "Rand3DElastic": 3}
IMAGE, LABEL = "image", "label"


def available() -> list[str]:
    """Names that a list may have."""
    return [PREFIX + name for name in (*MOVING, *CHANGING)]


class Listed:
    """A list of transforms; see `fedshift.tasks.augmentation.Augmentation`."""

    in_threads = False

    def __init__(self, spec: Sequence[Mapping[str, Any]], *, patch: Sequence[int]) -> None:
        """Make the transforms.

        Raises:
            ConfigError: no such transform or option, or a value that does not fit.
        """
        self.margin = (0,) * len(patch)
        self._steps = [_transform(entry, patch) for entry in spec]

    def __call__(self, images: Tensor, labels: Tensor, *, seeds: Tensor) -> tuple[Tensor, Tensor]:
        x, y = [], []
        with _plain_tensors():
            for image, label, seed in zip(images, labels, seeds.tolist(), strict=True):
                sample: dict[str, Any] = {IMAGE: image.clone(), LABEL: label[None].to(image.dtype)}
                with seeded_global(seed):
                    for number, step in enumerate(self._steps):
                        step.set_random_state(seed=(seed + number) % 2**32)
                        sample = step(sample)
                x.append(torch.as_tensor(sample[IMAGE]).to(image))
                y.append(torch.as_tensor(sample[LABEL])[0].to(label))
        return torch.stack(x), torch.stack(y)


def _transform(entry: Mapping[str, Any], patch: Sequence[int]) -> Any:
    where, dims = "data.augmentation", len(patch)
    odd = [key for key in entry if key not in ("name", "options")] if isinstance(entry, Mapping) else [entry]
    if odd or "name" not in entry:
        raise ConfigError(
            "invalid-value", f"{where}: each entry of the list has a name and options, not {odd or dict(entry)}"
        )
    name, options = str(entry["name"]), dict(entry.get("options") or {})
    if name not in available():
        raise ConfigError("unknown-transform", f"{where}: there is no transform {name!r}{nearest(name, available())}")
    short = name.removeprefix(PREFIX)
    if DIMENSIONS.get(short, dims) != dims:
        raise ConfigError(
            "transform-unfit",
            f"{where}: {name} is for {DIMENSIONS[short]} dimensions, and data.dims is {dims}: leave it out",
        )
    cls = getattr(importlib.import_module("monai.transforms"), f"{short}d", None)
    if cls is None:
        raise ConfigError(
            "library-old", f"{where}: the installed MONAI has no {short}: install a newer one, or leave it out"
        )
    parameters = inspect.signature(cls.__init__).parameters
    moves = short in MOVING
    withheld = SET_HERE | {SIZE} if moves else SET_HERE
    known = [key for key in parameters if key not in withheld]
    for key in options:
        if key in withheld and key in parameters:
            raise ConfigError("option-fixed", f"{where}: {name}: {key} follows from the task: leave it out")
        if key not in known:
            raise ConfigError("unknown-option", f"{where}: {name}: unknown option {key!r}{nearest(key, known)}")
    linear = "trilinear" if dims == 3 else "bilinear"
    settings: dict[str, Any] = {"keys": (IMAGE, LABEL) if moves else (IMAGE,)}
    if "mode" in parameters:
        settings["mode"] = (linear if short == "RandZoom" else "bilinear", "nearest")
    if "padding_mode" in parameters and "padding_mode" not in options:
        settings["padding_mode"] = "edge" if short == "RandZoom" else "border"
    if "upsample_mode" in parameters:
        settings["upsample_mode"] = linear
    chosen = {**settings, **{key: _tuples(value) for key, value in options.items()}}
    sides = sorted(set(patch))
    small = [max(round(side * TRIAL / sides[-1]), 4) + sides.index(side) for side in patch]
    ramp = torch.linspace(0, 1, prod(small)).reshape(1, *small)
    try:
        sure = cls(**{**chosen, "prob": 1.0}).set_random_state(seed=0)
        with _plain_tensors():
            after = sure({IMAGE: ramp, LABEL: torch.ones_like(ramp)})
        transform = cls(**chosen)
    except (TypeError, ValueError, AttributeError, AssertionError, KeyError, IndexError, RuntimeError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ConfigError(
            "transform-unfit", f"{where}: {name} cannot be made with options {options} ({reason})"
        ) from None
    if after[IMAGE].shape[1:] != torch.Size(small):
        size = " x ".join(map(str, patch))
        raise ConfigError(
            "transform-unfit",
            f"{where}: {name} changes the shape of a patch of {size}: take equal sides, or leave it out",
        )
    return transform


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


@contextmanager
def _plain_tensors() -> Iterator[None]:
    """MONAI without its record of what was done to a tensor, which costs more than some transforms."""
    data = importlib.import_module("monai.data")
    before = data.get_track_meta()
    data.set_track_meta(False)
    try:
        yield
    finally:
        data.set_track_meta(before)
