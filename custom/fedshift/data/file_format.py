"""A file of voxels: what is taken from its header beside what ITK takes, how it is checked, and how it is read.

All geometry is kept in mm, whatever unit of length a file says it in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.schema.reading import Reading

_WORDS = {
    1e-6: "nm nanometer nanometers nanometre nanometres",
    1e-3: "um \u00b5m \u03bcm micron microns micrometer micrometers micrometre micrometres",  # two signs for micro
    1.0: "mm millimeter millimeters millimetre millimetres",
    10.0: "cm centimeter centimeters centimetre centimetres",
    25.4: "in inch inches",
    100.0: "dm",
    1000.0: "m meter meters metre metres",
}
MM = {word: factor for factor, words in _WORDS.items() for word in words.split()}
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


@dataclass(frozen=True)
class Unclear:
    """``what`` a header leaves unclear, what is ``used``, and what whoever prepares the file does (``mend``)."""

    code: str
    what: str
    used: str
    mend: str
    is_twofold: bool = True
    """Whether the header says it twice, rather than not at all."""


@dataclass(frozen=True)
class FileHeader:
    """The record of a file, mm in one of its units along x, y and z of its world, and what it leaves unclear."""

    reading: Reading
    to_mm: tuple[float, ...] = (1.0, 1.0, 1.0)
    unclear: tuple[Unclear, ...] = ()


class FileFormat:
    """A file as ITK reads it; formats of which more is known override what they know."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def refuse_header(self, *, trusted: bool) -> None:
        """Refuse a header that readers understand differently; ``trusted``: its geometry is not used.

        Raises:
            ScanError: it is such.
        """

    def itk_header(self) -> sitk.ImageFileReader:
        """ITK's reader, which has read the header and no voxels.

        Raises:
            ScanError: too many voxels along an axis.
            RuntimeError: ITK cannot read it.
        """
        return read_information(self.path)

    def damage(self) -> str | None:
        """What is missing or damaged, which ITK does not report; None if length and checksums are correct."""
        return None

    def header(self) -> FileHeader:
        """What the header says.

        Raises:
            ScanError: something that would be read wrong.
        """
        return FileHeader(Reading(format=self.path.suffix or "a file without a suffix"))

    def unclear(self) -> Iterable[Unclear]:
        """What the header leaves unclear of where voxels lie."""
        return self.header().unclear

    def read(self) -> sitk.Image:
        """The voxels and their places.

        Raises:
            ScanError: values of a kind that is not read.
            RuntimeError: ITK cannot read it.
        """
        return sitk.ReadImage(str(self.path))

    def non_finite(self) -> int:
        """How many voxels are NaN or infinite, which ITK may turn into 0; 0 where ITK leaves them."""
        return 0


def read_information(file: Path) -> sitk.ImageFileReader:
    """ITK's reader, which has read a file's header."""
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(file))
    reader.ReadImageInformation()
    return reader
