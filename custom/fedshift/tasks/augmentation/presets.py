"""The presets ``light`` and ``strong``, ``moves`` for patients who lie alike, ``scanner`` and ``bigaug`` for scanners
that took no part, and ``pictures-light`` and ``pictures-strong`` for pictures.

``strong`` is the list of nnU-Net (version 2, its default trainer): probabilities, ranges and order are its own, with
MONAI's way of drawing: factors are uniform in their range (nnU-Net draws below and above 1 with equal probability).
``light`` has smaller ranges, and no blur or low resolution.

``scanner`` changes what another scanner, coil or protocol would change, from the literature on generalisation beyond
the sites that train; see `ScannerPreset`. ``bigaug`` is the list of Zhang et al. ("Generalizing deep learning for
medical image segmentation to unseen domains via deep stacked transformation", TMI 2020): nine changes, each with one
chance in two. Here moves come before the changes of intensity, a power keeps mean and deviation, and intensities are
in units of the normalised volume. ``moves`` is the part of ``scanner`` that changes no intensity.

Those for pictures move them likewise, and change what cameras, lamps and files change.

Each change of a preset, a part, has its own chance, and may be left out or taken alone (`selected`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from fedshift.schema.errors import ConfigError
from fedshift.schema.strict import nearest

Range = tuple[float, float]


@dataclass(frozen=True)
class Moves:
    """Probabilities for a sample, and ranges: rotation (degrees), scaling, shifting (``ways``, as parts of the patch's
    sides), and mirroring of each axis.
    """

    PARTS: ClassVar[tuple[str, ...]] = ("rotate", "scale", "shift", "mirror")
    """Fields that are the chance of a change."""

    rotate: float = 0.2
    angle_in_plane: float = 180.0
    angle: float = 30.0
    scale: float = 0.2
    scales: Range = (0.7, 1.4)
    shift: float = 0.0
    ways: Range = (-0.15, 0.15)
    mirror: float = 0.5


@dataclass(frozen=True)
class Preset(Moves):
    """Probabilities for a sample, and ranges, of scans, whose sequences change each by itself.

    Gaussian noise (its standard deviation is drawn up to ``noise_std``, in units of the
    normalised intensities); blur (standard deviation in voxels, for each axis); brightness (a factor); contrast (a
    factor around the mean, clipped to the old range); low resolution (a factor for the number of voxels on each axis,
    of flat volumes within their slices only: nearest down, linear up); gamma of inverted and of plain intensities
    (mean and deviation kept).

    ``part``: the probability that blur and low resolution meet a sequence of a chosen sample.
    """

    PARTS = (*Moves.PARTS, "noise", "blur", "brightness", "contrast", "low", "inverted", "gamma")

    noise: float = 0.1
    noise_std: float = 0.1
    blur: float = 0.2
    sigmas: Range = (0.5, 1.0)
    brightness: float = 0.15
    factors: Range = (0.75, 1.25)
    contrast: float = 0.15
    contrasts: Range = (0.75, 1.25)
    low: float = 0.25
    zooms: Range = (0.5, 1.0)
    inverted: float = 0.1
    gamma: float = 0.3
    gammas: Range = (0.7, 1.5)
    part: float = 0.5


@dataclass(frozen=True)
class ScannerPreset(Moves):
    """Probabilities for a sample, and ranges, of scans from other scanners; in the order in which they are applied.

    Shape: patients lie alike in all scanners, so angles are small, and more samples are turned and scaled than with
    ``strong``; ``shift``, since another field of view has the structure at another place; ``deform`` bends images and
    labels smoothly (deviation of the shifts, in voxels).

    Tissue, as another sequence would show it: ``convolve``, a random shallow network mixed into the image (share of the
    network) at the norm that the image had; ``tone``, a rising curve of random slopes (their logarithms); ``negative``,
    dark where it was bright; ``gamma``, a power; ``spectrum``, random factors for the amplitudes of low frequencies
    (deviation of their logarithms).

    Coils and normalisation: ``bias``, a smooth field (deviation of the coefficients of its logarithm); ``coil``, the
    field of a surface coil (how many times brighter it is there, less 1); ``brightness``, a number that is added;
    ``perturb``, a factor (less 1) and a number that is added.

    Acquisition: ``low`` resolution, ``blur`` and ``sharpen`` as MONAI has them; ``gibbs``, high frequencies left out
    (part of them that stays); ``ghost``, damped lines of k-space (by how much); ``noise`` (deviation), with ``rician``
    of the magnitude of a complex signal.
    """

    PARTS = (
        *(*Moves.PARTS, "deform", "convolve", "tone", "negative", "gamma", "spectrum", "bias", "coil", "brightness"),
        *("perturb", "low", "blur", "sharpen", "gibbs", "ghost", "noise"),
    )

    rotate: float = 0.5
    angle_in_plane: float = 20.0
    angle: float = 20.0
    scale: float = 0.5
    shift: float = 0.5
    deform: float = 0.0
    bends: Range = (0.0, 2.2)
    convolve: float = 0.25
    mixes: Range = (0.0, 1.0)
    tone: float = 0.2
    slopes: Range = (-1.2, 1.2)
    negative: float = 0.05
    gamma: float = 0.15
    gammas: Range = (0.6, 1.8)
    spectrum: float = 0.1
    jitters: Range = (0.1, 0.5)
    bias: float = 0.15
    fields: Range = (0.1, 0.4)
    coil: float = 0.15
    gains: Range = (1.0, 8.0)
    brightness: float = 0.0
    shifts: Range = (-0.1, 0.1)
    perturb: float = 0.15
    perturbs: Range = (-0.3, 0.3)
    low: float = 0.1
    zooms: Range = (0.5, 1.0)
    blur: float = 0.1
    sigmas: Range = (0.5, 1.0)
    sharpen: float = 0.05
    amounts: Range = (1.0, 10.0)
    gibbs: float = 0.05
    kept: Range = (0.4, 0.9)
    ghost: float = 0.05
    damped: Range = (0.2, 0.7)
    noise: float = 0.1
    deviations: Range = (0.0, 0.2)
    rician: bool = True


@dataclass(frozen=True)
class PicturePreset(Moves):
    """Probabilities for a sample, and ranges, of pictures, whose colours change together.

    Colours: factors for brightness, for contrast (around the mean grey) and for saturation, and a turn of the hue (as a
    part of the circle), all of a chosen sample. Then blur (standard deviation in pixels), noise (its standard
    deviation, as a part of the way from black to white), and JPEG at a quality.
    """

    PARTS = (*Moves.PARTS, "colours", "blur", "noise", "jpeg")

    colours: float = 0.8
    factors: Range = (0.6, 1.4)
    contrasts: Range = (0.6, 1.4)
    saturations: Range = (0.6, 1.4)
    hues: Range = (-0.05, 0.05)
    blur: float = 0.2
    sigmas: Range = (0.5, 1.0)
    noise: float = 0.2
    noise_std: float = 0.05
    jpeg: float = 0.25
    qualities: Range = (25.0, 95.0)


PRESETS: Mapping[str, Preset] = {
    "light": Preset(
        angle_in_plane=15.0,
        angle=15.0,
        scales=(0.9, 1.1),
        noise_std=0.05,
        blur=0.0,
        factors=(0.9, 1.1),
        contrasts=(0.9, 1.1),
        low=0.0,
        inverted=0.0,
        gamma=0.15,
        gammas=(0.8, 1.25),
    ),
    "strong": Preset(),
}
SCANNERS: Mapping[str, ScannerPreset] = {
    "scanner": ScannerPreset(),
    "moves": ScannerPreset(
        convolve=0.0,
        tone=0.0,
        negative=0.0,
        gamma=0.0,
        spectrum=0.0,
        bias=0.0,
        coil=0.0,
        perturb=0.0,
        low=0.0,
        blur=0.0,
        sharpen=0.0,
        gibbs=0.0,
        ghost=0.0,
        noise=0.0,
    ),
    "bigaug": ScannerPreset(
        scales=(0.4, 1.6),
        shift=0.0,
        mirror=0.0,
        deform=0.5,
        convolve=0.0,
        tone=0.0,
        negative=0.0,
        gamma=0.5,
        gammas=(0.5, 4.5),
        spectrum=0.0,
        bias=0.0,
        coil=0.0,
        brightness=0.5,
        perturb=0.5,
        perturbs=(-0.1, 0.1),
        low=0.0,
        blur=0.5,
        sigmas=(0.25, 1.5),
        sharpen=0.5,
        amounts=(10.0, 30.0),
        gibbs=0.0,
        ghost=0.0,
        noise=0.5,
        deviations=(0.1, 1.0),
        rician=False,
    ),
}
PICTURES: Mapping[str, PicturePreset] = {
    "pictures-light": PicturePreset(
        angle_in_plane=15.0,
        scales=(0.9, 1.1),
        colours=0.5,
        factors=(0.85, 1.15),
        contrasts=(0.85, 1.15),
        saturations=(0.85, 1.15),
        hues=(-0.02, 0.02),
        blur=0.0,
        noise=0.1,
        noise_std=0.02,
        jpeg=0.1,
        qualities=(60.0, 95.0),
    ),
    "pictures-strong": PicturePreset(),
}
ALL: Mapping[str, Preset | ScannerPreset | PicturePreset] = {**PRESETS, **SCANNERS, **PICTURES}
ANISOTROPIC = 3.0
"""With a first side so many times smaller than the largest, a volume is turned and scaled in its planes (nnU-Net)."""
ELONGATED = 1.5
"""With sides in a plane so different, angles in it are at most ``ELONGATED_ANGLE`` (nnU-Net)."""
ELONGATED_ANGLE = 15.0
MARGIN_SCALE = 1 / 0.85
"""The scale that `margin` leaves room for (nnU-Net); beyond it, edge voxels are repeated."""

AnyPreset = TypeVar("AnyPreset", bound=Moves)


def parts(preset: Moves) -> tuple[str, ...]:
    """Names of the changes that a preset makes."""
    return tuple(name for name in preset.PARTS if getattr(preset, name) > 0)


def selected(preset: AnyPreset, name: str, *, only: Sequence[str], without: Sequence[str]) -> AnyPreset:
    """A preset with some of its changes; ``only``: all of them if empty.

    Raises:
        ConfigError: the preset, called ``name``, has no such change.
    """
    known = parts(preset)
    for key, names in (("augmentation_only", only), ("augmentation_without", without)):
        for part in names:
            if part not in known:
                raise ConfigError(
                    "unknown-option", f"data.{key}: augmentation {name!r} has no part {part!r}{nearest(part, known)}"
                )
    dropped = [part for part in known if part in without or (only and part not in only)]
    return replace(preset, **dict.fromkeys(dropped, 0.0))  # type: ignore[arg-type]
