"""Units of length in headers: all geometry is kept in mm, whatever a file says it in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

MM = {
    "mm": 1.0,
    "millimeter": 1.0,
    "millimeters": 1.0,
    "millimetre": 1.0,
    "millimetres": 1.0,
    "nm": 1e-6,
    "nanometer": 1e-6,
    "nanometers": 1e-6,
    "nanometre": 1e-6,
    "nanometres": 1e-6,
    "um": 1e-3,
    "\u00b5m": 1e-3,  # the micro sign
    "\u03bcm": 1e-3,  # the Greek letter
    "micron": 1e-3,
    "microns": 1e-3,
    "micrometer": 1e-3,
    "micrometers": 1e-3,
    "micrometre": 1e-3,
    "micrometres": 1e-3,
    "cm": 10.0,
    "centimeter": 10.0,
    "centimeters": 10.0,
    "centimetre": 10.0,
    "centimetres": 10.0,
    "dm": 100.0,
    "m": 1000.0,
    "meter": 1000.0,
    "meters": 1000.0,
    "metre": 1000.0,
    "metres": 1000.0,
    "in": 25.4,
    "inch": 25.4,
    "inches": 25.4,
}
"""Unit -> mm."""
UNSAID = ("", "?", "??", "???", "unknown", "none")
"""How a header says that it does not know the unit; such lengths are taken for mm, as all readers do."""


def in_mm(unit: str) -> float | None:
    """One of a unit in mm; 1 where a header does not know the unit, None for a word that is no length."""
    word = unit.strip().lower()
    return 1.0 if word in UNSAID else MM.get(word)


def described(units: Sequence[str]) -> str | None:
    """What a record says of the units of the three axes; None where all are mm."""
    words = [unit.strip() for unit in units]
    if all(in_mm(word) == 1 for word in words):
        unsaid = [word for word in words if word.lower() in UNSAID]
        return "lengths without a unit, taken for mm" if len(unsaid) == len(words) else None
    shown = words[0] if len(set(words)) == 1 else ", ".join(word or "mm" for word in words)
    return f"lengths in {shown}, converted to mm"


def scaled(image: sitk.Image, factors: Sequence[float]) -> sitk.Image:
    """An image whose world's axes x, y and z are stretched by ``factors``; its voxels stay.

    Axes of unequal units may lose their right angles, which whoever reads the image looks for.
    """
    if all(factor == 1 for factor in factors):
        return image
    n = image.GetDimension()
    stretch = np.array([*factors, *[1.0] * n][:n])
    axes = stretch[:, None] * np.reshape(image.GetDirection(), (n, n)) * np.array(image.GetSpacing())
    sizes = np.linalg.norm(axes, axis=0)
    image.SetOrigin((stretch * image.GetOrigin()).tolist())
    image.SetSpacing(sizes.tolist())
    image.SetDirection((axes / sizes).ravel().tolist())
    return image
