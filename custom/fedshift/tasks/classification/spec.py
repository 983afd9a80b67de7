"""Options of ``task.data`` of a classification."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field

from fedshift.schema.errors import ConfigError
from fedshift.schema.strict import Strict
from fedshift.tasks.cache import Cache

Share = Annotated[float, Field(ge=0, le=1)]


def _whole(shares: tuple[float, float, float]) -> tuple[float, float, float]:
    if shares[0] <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"must be fractions for training, validation and testing that sum to 1, not {shares}")
    return shares


class DataSpec(Strict):
    """Options of ``task.data``: how pictures become samples.

    ``size``: height and width in pixels. ``channels``: 1 for grey, 3 for colour. Intensities are scaled to [0, 1], then
    normalised by ``mean`` and ``std`` (one number, or one per channel).

    ``multi_label``: a picture may have several of the classes at once, or none, and of some nobody may have said.
    ``ordinal``: the classes are in order, as grades are, so that quadratic weighted kappa is a score. The loss stays
    the same, cross-entropy by default, which knows no order.

    ``sampling``: ``shuffled`` shows each training image once an epoch. ``balanced`` draws with replacement, first a
    class and then one of its images; of findings, a finding, then whether it is there, then such an image.

    ``shares``: fractions of a site's images for training, validation and testing, by content within each class; None
    for the splits of the prepared data. ``fraction``: fraction of the training images to use; with ``fraction_of:
    site`` so many of all of the site's images (or the whole training part, if it has fewer), and the validation part is
    cut to the same fraction of itself, as if a site had no more. ``images``: at most that many training images.

    ``choose``: which ones, drawn at random, or the first of a published list. ``seed`` of that draw is apart from the
    job's, so that runs that differ in their seed train on the same images. ``cache``: where the pictures lie in
    training, see `fedshift.tasks.cache`.
    """

    size: int = Field(ge=8)
    channels: Literal[1, 3] = 3
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    multi_label: bool = False
    ordinal: bool = False
    sampling: Literal["shuffled", "balanced"] = "shuffled"
    shares: Annotated[tuple[Share, Share, Share], AfterValidator(_whole)] | None = None
    fraction: float = Field(default=1.0, gt=0, le=1)
    fraction_of: Literal["train", "site"] = "train"
    images: int | None = Field(default=None, ge=1)
    choose: Literal["random", "first"] = "random"
    seed: int = Field(default=0, ge=0)
    cache: Cache = "auto"

    @property
    def spatial(self) -> tuple[int, ...]:
        return self.size, self.size

    @property
    def intensities(self) -> tuple[float, float]:
        """The smallest and the largest that a picture can have."""
        mean, std = np.array(self.mean), np.array(self.std)
        return float((-mean / std).min()), float(((1 - mean) / std).max())

    def check(self, where: str) -> None:
        """Refuse means and deviations that do not fit (`ConfigError`)."""
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.channels):
                raise ConfigError(
                    "invalid-value", f"{where}: data.{name} needs 1 or {self.channels} numbers, not {len(values)}"
                )
        if min(self.std) <= 0:
            raise ConfigError("invalid-value", f"{where}: data.std must be above 0, not {self.std}")

    def preparation(self) -> dict[str, Any]:
        """How pictures become the network's input, as plain values: see `fedshift.data.decode`."""
        return {
            "size": self.size,
            "channels": self.channels,
            "resampling": "bilinear, antialiased",
            "intensity": "divided by 255",
            "mean": list(self.mean),
            "std": list(self.std),
        }
