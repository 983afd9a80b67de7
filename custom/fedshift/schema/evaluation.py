"""What a site tells of a model, as plain numbers: results.json holds it, the guard checks it, reports read it."""

from __future__ import annotations

from math import isclose
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
CONFIDENCE = 0.95
"""Of intervals."""
BINS = 15
"""Of calibration: equal parts of the confidence from 0 to 1."""
MOST_CASES = 10**5
"""Whose single scores are told; of more there is the spread."""
LONGEST = 1e12
"""Of a gradient, and of any other number: a longer one is told as None."""

Number = Annotated[float, Field(allow_inf_nan=False, ge=-LONGEST, le=LONGEST)]
Counts = Annotated[list[Annotated[int, Field(ge=0, le=10**12)]], Field(max_length=256)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Distribution(_Model):
    """One score over the cases of a part of a site.

    ``std`` is the sample's, ``quantiles`` are those of `QUANTILES`; ``interval`` is the 95 % bootstrap interval of the
    mean, over cases. ``cases`` are the single scores in the order of the site's manifest, without ids. What a site does
    not let out, or too few cases do not have, is None.
    """

    n: int = Field(ge=1, le=10**9)
    mean: Number
    std: Annotated[float, Field(allow_inf_nan=False, ge=0)] | None = None
    quantiles: tuple[Number, Number, Number, Number, Number] | None = None
    interval: tuple[Number, Number] | None = None
    cases: list[Number] | None = Field(default=None, max_length=MOST_CASES)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        for ascending in (self.quantiles, self.interval):
            if ascending is not None and list(ascending) != sorted(ascending):
                raise ValueError("quantiles and interval must ascend")
        if self.cases is not None:
            if len(self.cases) != self.n:
                raise ValueError(f"{len(self.cases)} single scores were given for n = {self.n}")
            if not isclose(sum(self.cases) / self.n, self.mean, rel_tol=1e-6, abs_tol=1e-9):
                raise ValueError("the mean is not that of the single scores")
        return self


class Calibration(_Model):
    """How often the model is right, by how sure it is: `BINS` equal bins of the winning class's probability.

    ``counts`` are samples (pictures; or pixels, see the task's kind), ``right`` those whose class was right, and
    ``confidence`` is the mean probability in a bin (0 in an empty one). ``ece`` is the expected calibration error:
    the mean over samples of |share right - confidence| of their bin.
    """

    ece: Number = Field(ge=0, le=1)
    counts: Annotated[Counts, Field(min_length=BINS, max_length=BINS)]
    right: Annotated[Counts, Field(min_length=BINS, max_length=BINS)]
    confidence: list[Annotated[float, Field(ge=0, le=1)]] = Field(min_length=BINS, max_length=BINS)


class Evaluation(_Model):
    """A model on one part of a site.

    ``scores`` are the part's plain scores (the task's ``metrics``), ``distributions`` scores of which every case has
    one. ``confusion[i][j]`` counts samples of class i that were taken for class j. ``empty`` counts volumes in which
    the model found nothing. ``gradient_norm`` is the norm of the loss's gradient over the part, where the job asks.
    """

    scores: dict[str, Number]
    distributions: dict[str, Distribution] = {}
    calibration: Calibration | None = None
    confusion: list[Counts] | None = Field(default=None, max_length=256)
    empty: int | None = Field(default=None, ge=0, le=MOST_CASES)
    gradient_norm: Number | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.confusion is not None and any(len(row) != len(self.confusion) for row in self.confusion):
            raise ValueError("the confusion matrix is not square")
        told = self.calibration
        if told is not None and any(right > n for right, n in zip(told.right, told.counts, strict=True)):
            raise ValueError("the calibration has more right than there are")
        return self
