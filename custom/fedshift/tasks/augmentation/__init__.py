"""Augmentation of patches, in 2D and 3D: ``data.augmentation: none | PRESET | [{name, options}, …]``.

`make_augmentation` gives one object for a task. It takes batches that are larger than the patch by `margin`, so that
rotated and scaled patches have real voxels in their corners, and gives patches. Every number is drawn from the
sample's own seed: batch size, workers and processes change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from fedshift.schema.errors import ConfigError
from fedshift.schema.strict import nearest
from fedshift.tasks.augmentation.colours import PictureBatches
from fedshift.tasks.augmentation.listed import Listed
from fedshift.tasks.augmentation.presets import ALL, PicturePreset, ScannerPreset, selected
from fedshift.tasks.augmentation.scanners import ScannerBatches
from fedshift.tasks.augmentation.whole_batches import WholeBatches

NONE = "none"
Spec = str | Sequence[Mapping[str, Any]]
"""``none``, a preset's name, or a list of MONAI's transforms."""


class Augmentation(Protocol):
    """Changes batches."""

    margin: tuple[int, ...]
    """How many voxels more than the patch a sample must have, on each axis, in all (half on each side)."""
    in_threads: bool
    """Whether it may run in a thread beside training: not if it draws from torch's global generator."""

    def __call__(self, images: Tensor, labels: Tensor, *, seeds: Tensor) -> tuple[Tensor, Tensor]:
        """Augment a batch.

        Args:
            images: (B, C, *spatial) float32, with spatial sides of the patch and `margin`, on any device.
            labels: (B, *spatial) of a whole-number type.
            seeds: (B,) int64 on the CPU; a sample's numbers depend on its seed alone.

        Returns:
            images (B, C, *patch) and labels (B, *patch) of the same types.
        """
        ...


def make_augmentation(
    spec: Spec,
    *,
    dims: int,
    patch: Sequence[int],
    sequences: int = 1,
    mirror: Sequence[int] | None = None,
    nonzero: bool = False,
    coloured: bool = False,
    levels: tuple[float, float] | None = None,
    only: Sequence[str] = (),
    without: Sequence[str] = (),
) -> Augmentation | None:
    """The augmentation that a task names; None for ``none``.

    Args:
        spec: ``none``, a preset's name, or a list of ``{name: monai.RandGaussianNoise, options: {prob: 0.2}}``.
        dims: 2 or 3.
        patch: sides of a patch.
        sequences: how many sequences the channels are of, in equal parts; intensities change for each by itself, and
            alike for the neighbouring slices of one.
        mirror: axes that a preset may mirror, from 0; None for all. Leave out left and right where classes differ in
            the side.
        nonzero: voxels that are 0, beyond what was scanned, stay 0 with a preset.
        coloured: whether the sequences are red, green and blue.
        levels: intensities of black and of white, which the presets of pictures need; None if they are not known.
        only: the parts of a preset that are applied; all if empty.
        without: parts of a preset that are left out.

    Raises:
        ConfigError: no such preset, part or transform, or an option that does not exist or does not fit.
    """
    if len(patch) != dims:
        raise ConfigError(
            "patch-size", f"data.patch has {len(patch)} sides and data.dims is {dims}: give one side for each dimension"
        )
    if (only or without) and (spec == NONE or not isinstance(spec, str)):
        raise ConfigError(
            "options-clash", "data.augmentation_only and data.augmentation_without name parts of a preset: name one"
        )
    if only and without:
        raise ConfigError(
            "options-clash", "data.augmentation_only and data.augmentation_without: give the parts that stay, or others"
        )
    if not isinstance(spec, str):
        return Listed(spec, patch=patch)
    if spec == NONE:
        return None
    if spec not in ALL:
        known = nearest(spec, [NONE, *ALL])
        raise ConfigError(
            "unknown-transform", f"there is no augmentation {spec!r}{known}; or a list of MONAI's transforms"
        )
    axes = tuple(range(dims)) if mirror is None else tuple(mirror)
    if any(axis not in range(dims) for axis in axes):
        raise ConfigError("invalid-value", f"axes to mirror are some of 0 to {dims - 1}, not {list(axes)}")
    preset = selected(ALL[spec], spec, only=only, without=without)
    if isinstance(preset, PicturePreset):
        if levels is None:
            raise ConfigError(
                "transform-unfit",
                f"data.augmentation {spec} changes colours between black and white, which data.normalise must keep "
                "as numbers: set data.normalise=fixed and data.fixed, or data.normalise=percentile",
            )
        return PictureBatches(
            preset, patch=tuple(patch), coloured=coloured, levels=levels, mirror=axes, nonzero=nonzero
        )
    if isinstance(preset, ScannerPreset):
        return ScannerBatches(preset, patch=tuple(patch), sequences=sequences, mirror=axes, nonzero=nonzero)
    return WholeBatches(preset, patch=tuple(patch), sequences=sequences, mirror=axes, nonzero=nonzero)
