"""Grey pictures with more than 8 bits, such as X-ray exports, and the range of their values.

Detectors give 10, 12, 14 or 16 bits, and all are stored in 16. Scaled as if all 16 were used, a picture of 12 bits
would be nearly black. DICOM says which value is white; of other files the range is that of all pictures of a site.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image

from fedshift.schema.errors import DataError
from fedshift.schema.reading import Reading

DEPTHS = (8, 10, 12, 14, 16)
WHITE = 0xFFFF
"""The largest value of 16 bits."""
DICOM = "dicom"
"""Key in ``info`` of a colour picture that comes from DICOM: its file."""
WARNINGS = "warnings"
"""Key in ``info`` of such a picture: see `warnings_of`."""


@dataclass(frozen=True)
class DeepPicture:
    """An upright grey picture.

    ``name`` is for errors. ``values``: uint16 (rows, columns). ``stored``: bits that the file has for each.
    ``turned``: whether 0 is white in the file. ``known``: how the file says which value is white, in words, and
    ``values`` are then from 0 to `WHITE`; "" if it does not say it. ``how``: what was decided in reading it, if more
    than this. ``warnings``: see `warnings_of`.
    """

    name: str
    values: np.ndarray
    stored: int = 16
    turned: bool = False
    known: str = ""
    how: Reading | None = None
    warnings: tuple[str, ...] = ()

    @property
    def bits(self) -> int:
        """The fewest of `DEPTHS` that hold the values, or what the file says."""
        most = int(self.values.max())
        return self.stored if self.stored < 16 else next(bits for bits in DEPTHS if most < 1 << bits)

    def reading(self, bits: int) -> Reading:
        """What was decided in reading it; ``bits``: what its range is taken for, unless it is known."""
        if self.how is not None:
            return self.how
        turned = "0 is white, turned" if self.turned else None
        return Reading(format="grey picture", bits=f"{bits} of {self.stored} bits, unsigned", photometric=turned)

    def shown(self, bits: int) -> Image.Image:
        """8-bit RGB, with the largest value of ``bits`` as white.

        Raises:
            DataError: it has a larger one.
        """
        white = self._white(bits)
        levels = (self.values.astype(np.uint32) * 255 + white // 2) // white
        return Image.fromarray((255 - levels if self.turned else levels).astype(np.uint8)).convert("RGB")

    def resized(self, size: int, *, bits: int) -> np.ndarray:
        """uint16 (size, size), with the largest value of ``bits`` as `WHITE`; filtered as 8-bit pictures are.

        Raises:
            DataError: it has a larger one.
        """
        levels = Image.fromarray(self.values.astype(np.float32) * np.float32(WHITE / self._white(bits)))
        small = np.asarray(levels.resize((size, size), Image.Resampling.BILINEAR))
        small = np.rint(small.clip(0, WHITE)).astype(np.uint16)
        return np.asarray(np.uint16(WHITE) - small if self.turned else small)

    def _white(self, bits: int) -> int:
        white, most = WHITE if self.known else (1 << bits) - 1, int(self.values.max())
        if most > white:
            raise DataError(
                "picture-range", f"{self.name} holds {most}, and {bits} bits at most {white}: give more with --bits"
            )
        return white


def warnings_of(picture: Image.Image | DeepPicture) -> tuple[str, ...]:
    """What a person should look at in a picture of DICOM, each as the rest of a sentence about its file."""
    return picture.warnings if isinstance(picture, DeepPicture) else tuple(picture.info.get(WARNINGS, ()))


class Depth:
    """How many bits the deep pictures among some use: those that hold the largest value of all of them.

    Pictures whose range is known do not count. All are read when the first deep one is met, so that others are decoded
    once.
    """

    def __init__(self, readers: Sequence[Callable[[], Image.Image | DeepPicture]], *, bits: int | None = None) -> None:
        """``readers``: each reads a picture, or raises DataError; ``bits``: how many, if somebody has said them."""
        self._readers, self._fixed_bits, self._met = readers, bits, False
        self._known: dict[str, str] = {}

    def shown(self, picture: Image.Image | DeepPicture) -> Image.Image:
        """The picture as 8-bit RGB.

        Raises:
            DataError: it has a larger value than the given bits hold.
        """
        return picture if not isinstance(picture, DeepPicture) else picture.shown(self.bits_of(picture))

    def bits_of(self, picture: DeepPicture) -> int:
        """How many bits a picture uses: what it says, what was given, or what all together do."""
        if picture.known:
            self._known[picture.name] = picture.known
            return picture.stored
        self._met = True
        return self.bits

    @property
    def bits(self) -> int:
        """Of the deep pictures; one must have been met."""
        return self._fixed_bits or max(each.bits for each in self._deep)

    @property
    def settled_together(self) -> bool:
        """Whether a picture was met whose range is that of all."""
        return self._met

    @property
    def description(self) -> str | None:
        """What the manifest and ``predict`` say; None if no deep picture was met."""
        known = [f"{times} grey DICOM shown {how}" for how, times in sorted(Counter(self._known.values()).items())]
        return "; ".join([*known, *([self._together()] if self._met else [])]) or None

    def _together(self) -> str:
        whence = "as was given" if self._fixed_bits else "the fewest of 8, 10, 12, 14 and 16 that hold it"
        most, turned = max(each.most for each in self._deep), sum(each.turned for each in self._deep)
        also = f"; in {turned} 0 is white, and they are turned" if turned else ""
        return f"{len(self._deep)} grey of 16 bits, largest value {most}: taken as {self.bits} bits, {whence}{also}"

    @cached_property
    def _deep(self) -> list[_Values]:
        deep = []
        for read in self._readers:
            with suppress(DataError):  # is reported where the picture is used
                picture = read()
                if isinstance(picture, DeepPicture) and not picture.known:
                    deep.append(_Values(picture.bits, int(picture.values.max()), picture.turned))
        return deep


@dataclass(frozen=True)
class _Values:
    """What is kept of the values of a deep picture."""

    bits: int
    most: int
    turned: bool
