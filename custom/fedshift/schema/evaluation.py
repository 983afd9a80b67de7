"""Scores of a model at a site, as plain numbers: sites send them, the server checks them, reports show them."""

from __future__ import annotations

from math import isclose
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from fedshift.schema.names import ClassName

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
CONFIDENCE = 0.95
"""Confidence level of the bootstrap intervals."""
BINS = 15
"""Number of calibration bins: equal parts of the confidence range 0 to 1."""
MOST_CASES = 10**5
"""Up to this many cases, scores of single cases may be sent; for more only their distribution."""
MAX_NUMBER = 1e12
"""Largest absolute value of any number in an evaluation; larger ones are sent as None."""

Number = Annotated[float, Field(allow_inf_nan=False, ge=-MAX_NUMBER, le=MAX_NUMBER)]
Share = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1)]
Counts = Annotated[list[Annotated[int, Field(ge=0, le=10**12)]], Field(max_length=256)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Distribution(_Model):
    """Distribution of one score over the cases of a split.

    ``std``: sample standard deviation. ``quantiles``: at `QUANTILES`. ``interval``: 95 % bootstrap interval of the mean
    over cases, drawn by subjects. ``subjects``: whose cases these are, if some subjects have several. ``cases``: the
    single scores in the order of the site's manifest, without ids. A value is None if the site's policy withholds it or
    if there are too few cases.
    """

    n: int = Field(ge=1, le=10**9)
    mean: Number
    std: Annotated[float, Field(allow_inf_nan=False, ge=0)] | None = None
    quantiles: tuple[Number, Number, Number, Number, Number] | None = None
    interval: tuple[Number, Number] | None = None
    subjects: int | None = Field(default=None, ge=1, le=10**9)
    cases: list[Number] | None = Field(default=None, max_length=MOST_CASES)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.subjects is not None and self.subjects >= self.n:
            raise ValueError(f"{self.subjects} subjects were given for n = {self.n} cases")
        for ascending in (self.quantiles, self.interval):
            if ascending is not None and list(ascending) != sorted(ascending):
                raise ValueError("quantiles and interval must ascend")
        if self.cases is not None:
            if len(self.cases) != self.n:
                raise ValueError(f"{len(self.cases)} case scores were given for n = {self.n}")
            if not isclose(sum(self.cases) / self.n, self.mean, rel_tol=1e-6, abs_tol=1e-9):
                raise ValueError("the mean is not the mean of the case scores")
        return self


class Calibration(_Model):
    """Reliability of the predicted probabilities, in `BINS` equal bins of the predicted class's probability.

    ``counts``: samples in each bin (pictures or pixels, see the task's kind). ``right``: correctly classified ones.
    ``confidence``: mean probability in the bin (0 if it is empty). ``ece``: expected calibration error, the mean over
    samples of |accuracy - confidence| of their bin.
    """

    ece: Number = Field(ge=0, le=1)
    counts: Annotated[Counts, Field(min_length=BINS, max_length=BINS)]
    right: Annotated[Counts, Field(min_length=BINS, max_length=BINS)]
    confidence: list[Annotated[float, Field(ge=0, le=1)]] = Field(min_length=BINS, max_length=BINS)


class OneSided(_Model):
    """Cases in which one mask only has a class: ``missed`` by the model, or ``invented`` by it."""

    missed: int = Field(default=0, ge=0, le=MOST_CASES)
    invented: int = Field(default=0, ge=0, le=MOST_CASES)

    @property
    def cases(self) -> int:
        return self.missed + self.invented


class ClassScores(_Model):
    """Scores of one class of a classifier, over the cases of a split of which it is known.

    ``positives``, ``negatives``: how many of them have the class, and have it not. ``scores``: of
    `fedshift.tasks.evaluation.by_finding.SCORES`, those that the class has: none if it lacks cases of either kind.
    ``intervals``: their 95 % bootstrap intervals over subjects.

    ``threshold``: from this probability on the class was said to be there; None if the most likely class was.
    ``chosen``: whether the site's validation part chose it. ``specific``: the second threshold, of ``sensitivity``.
    ``detected``: of the positives, how many were said to have the class; ``invented``: the same of the negatives.
    ``roc``: points (1 - specificity, sensitivity). ``calibration``: of the class's probability; ``right`` are then
    those that have the class. A value is None if the site's policy withholds it or if there are too few cases.
    """

    positives: int = Field(ge=0, le=10**9)
    negatives: int = Field(ge=0, le=10**9)
    scores: dict[str, Share] = Field(default={}, max_length=16)
    intervals: dict[str, tuple[Share, Share]] = Field(default={}, max_length=16)
    threshold: Share | None = None
    chosen: bool = False
    specific: Share | None = None
    detected: int = Field(default=0, ge=0, le=10**9)
    invented: int = Field(default=0, ge=0, le=10**9)
    roc: list[tuple[Share, Share]] | None = Field(default=None, max_length=1000)
    calibration: Calibration | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.detected > self.positives or self.invented > self.negatives:
            raise ValueError("more cases were found or invented than there are")
        if self.scores and not (self.positives and self.negatives):
            raise ValueError("a class that lacks cases of one kind has no scores")
        if any(low > high for low, high in self.intervals.values()):
            raise ValueError("intervals must ascend")
        return self


class Evaluation(_Model):
    """Evaluation of a model on one split of a site.

    ``scores``: the task's ``metrics`` over the split. ``distributions``: scores that each case has, over the cases.
    ``confusion[i][j]``: number of samples of class i that were predicted as class j. ``empty``: number of volumes in
    which the model found no foreground. ``one_sided``: foreground classes that in some volume one mask only has, where
    distances count as the volume's diagonal; None in records of earlier versions. ``gradient_norm``: norm of the
    gradient of the loss over the split, if the job asks for it.

    ``classes``: scores of each class of a classifier, if the job has them; ``intervals``: of those of ``scores`` that
    are averages over classes. Both are left out of files and messages where there are none.
    """

    scores: dict[str, Number]
    distributions: dict[str, Distribution] = {}
    calibration: Calibration | None = None
    confusion: list[Counts] | None = Field(default=None, max_length=256)
    empty: int | None = Field(default=None, ge=0, le=MOST_CASES)
    one_sided: dict[ClassName, OneSided] | None = Field(default=None, max_length=256)
    gradient_norm: Number | None = Field(default=None, ge=0)
    classes: dict[ClassName, ClassScores] | None = Field(default=None, max_length=256)
    intervals: dict[str, tuple[Number, Number]] = Field(default={}, max_length=64)

    @model_serializer(mode="wrap")
    def _without_classes(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = serialise(self)
        return {key: value for key, value in content.items() if value or key not in ("classes", "intervals")}

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.confusion is not None and any(len(row) != len(self.confusion) for row in self.confusion):
            raise ValueError("the confusion matrix is not square")
        bins = self.calibration
        if bins is not None and any(right > n for right, n in zip(bins.right, bins.counts, strict=True)):
            raise ValueError("a calibration bin has more correct samples than samples")
        return self
