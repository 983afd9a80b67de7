"""Grey pictures with more than 8 bits, such as X-ray exports, whose range is that of all pictures of a site.

Detectors give 10, 12, 14 or 16 bits, and all are stored in 16. Scaled as if all 16 were used, a picture of 12 bits
would have 17 grey levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image

from fedshift.schema.errors import DataError
from fedshift.schema.reading import Reading

DEPTHS = (8, 10, 12, 14, 16)


@dataclass(frozen=True)
class DeepPicture:
    """An upright grey picture.

    ``name`` is for errors. ``values``: uint16 (rows, columns). ``stored``: bits that the file has for each.
    ``turned``: whether 0 is white in the file.
    """

    name: str
    values: np.ndarray
    stored: int = 16
    turned: bool = False

    @property
    def bits(self) -> int:
        """The fewest of `DEPTHS` that hold the values, or what the file says."""
        most = int(self.values.max())
        return self.stored if self.stored < 16 else next(bits for bits in DEPTHS if most < 1 << bits)

    def reading(self, bits: int) -> Reading:
        """What was decided in reading it."""
        turned = "0 is white, turned" if self.turned else None
        return Reading(format="grey picture", bits=f"{bits} of {self.stored} bits, unsigned", photometric=turned)

    def shown(self, bits: int) -> Image.Image:
        """8-bit RGB, with the largest value of ``bits`` as white.

        Raises:
            DataError: it has a larger one.
        """
        white, most = (1 << bits) - 1, int(self.values.max())
        if most > white:
            raise DataError(
                "picture-range", f"{self.name} holds {most}, and {bits} bits at most {white}: give more with --bits"
            )
        levels = (self.values.astype(np.uint32) * 255 + white // 2) // white
        return Image.fromarray((255 - levels if self.turned else levels).astype(np.uint8)).convert("RGB")


class Depth:
    """How many bits the deep pictures among some use: those that hold the largest value of all of them.

    All are read when the first deep one is met, so that others are decoded once.
    """

    def __init__(self, readers: Sequence[Callable[[], Image.Image | DeepPicture]], *, given: int | None = None) -> None:
        """``readers``: each reads a picture, or raises DataError; ``given``: the bits, if somebody has said them."""
        self._readers, self._given, self._met = readers, given, False

    def shown(self, picture: Image.Image | DeepPicture) -> Image.Image:
        """The picture as 8-bit RGB.

        Raises:
            DataError: it has a larger value than the given bits hold.
        """
        if not isinstance(picture, DeepPicture):
            return picture
        self._met = True
        return picture.shown(self.bits)

    @property
    def bits(self) -> int:
        """Of the deep pictures; one must have been met."""
        return self._given or max(each.bits for each in self._deep)

    @property
    def said(self) -> str | None:
        """What the manifest and ``predict`` say; None if no deep picture was met."""
        if not self._met:
            return None
        whence = "as was given" if self._given else "the fewest of 8, 10, 12, 14 and 16 that hold it"
        most, turned = max(each.most for each in self._deep), sum(each.turned for each in self._deep)
        also = f"; in {turned} 0 is white, and they are turned" if turned else ""
        return f"{len(self._deep)} grey of 16 bits, largest value {most}: taken as {self.bits} bits, {whence}{also}"

    @cached_property
    def _deep(self) -> list[_Values]:
        deep = []
        for read in self._readers:
            with suppress(DataError):  # is reported where the picture is used
                picture = read()
                if isinstance(picture, DeepPicture):
                    deep.append(_Values(picture.bits, int(picture.values.max()), picture.turned))
        return deep


@dataclass(frozen=True)
class _Values:
    """What is kept of the values of a deep picture."""

    bits: int
    most: int
    turned: bool
