"""Risk curves that sites send of a model, and what is promised from them: numbers of many cases, none of a single one.

The mathematics is in `fedshift.tasks.evaluation.guarantee`.
"""

from __future__ import annotations

from itertools import pairwise
from math import exp
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedshift.schema.evaluation import Share
from fedshift.schema.names import ClassName, Line, Name
from fedshift.schema.strict import Strict

LEVELS: tuple[float, ...] = tuple(round(1 / (1 + exp(-step / 4)), 6) for step in range(-28, 29))
"""Probabilities at which risks are known, ascending from 0.0009 to 0.9991: a quarter apart in logits."""

Risks = Annotated[tuple[Share, ...], Field(min_length=len(LEVELS), max_length=len(LEVELS))]
"""A risk at each of the `LEVELS`."""


class Curve(Strict):
    """Mean risks of one structure or class over the subjects of a site that have it.

    ``missed``: the share of the structure that is below each level, ascending. ``false``: the largest share of what is
    above a level that is not the structure, over this level and all higher ones, descending; None of classes, whose
    ``missed`` is the share of cases. ``missed_variance`` and ``false_variance``: over subjects; None of fewer than
    `fedshift.tasks.evaluation.spread.FEWEST`.
    """

    n: int = Field(ge=1, le=10**9)
    missed: Risks
    false: Risks | None = None
    missed_variance: Risks | None = None
    false_variance: Risks | None = None

    @model_validator(mode="after")
    def _are_monotone(self) -> Self:
        for name, values in (("missed", self.missed), ("false", self.false and self.false[::-1])):
            if values and any(after < before for before, after in pairwise(values)):
                raise ValueError(f"{name!r} is not monotone")
        if self.false is None and self.false_variance is not None:
            raise ValueError("'false_variance' is given without 'false'")
        return self


class RiskCurves(Strict):
    """What a site sends of a final model for a guarantee.

    ``calibration``: structure -> its curve over cases that chose no weights, from which levels are set. ``tested``:
    likewise over the cases on which the promise is looked at afterwards. Structures of too few subjects are left out.
    """

    calibration: dict[ClassName, Curve] = {}
    tested: dict[ClassName, Curve] = {}


class Outcome(Strict):
    """The promised share on test cases: its mean over ``n`` subjects, and the 95 % interval of that mean if known."""

    n: int = Field(ge=1)
    mean: Share
    interval: tuple[Share, Share] | None = None


class Level(Strict):
    """A probability from which on voxels are in an outline, or classes in a set, and what it promises.

    ``level``: None if there is none that keeps the promise. ``others``: how many cases the mean curve of the other
    sites counts as. ``at_most``: the most that the expected share can be at this site alone, however much it differs
    from the others. ``needed``: of no level, how many more labelled cases are needed; None if the model misses too much
    for any number. ``tested``: the share on test cases.
    """

    level: Share | None
    others: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    at_most: Share | None = None
    needed: int | None = Field(default=None, ge=1)
    tested: Outcome | None = None


class Promise(Strict):
    """Of one structure or class. ``n``: the cases, or of a new hospital the sites, that the levels rest on.

    ``outer``: the level of the outer outline, which misses little. ``inner``: that of the inner outline, of which
    little is not the structure; None of classes.
    """

    n: int = Field(ge=0)
    outer: Level
    inner: Level | None = None


Reason = Literal["absent", "policy", "few-cases", "held-out"]
"""Why a site has no curve in a model: it did not score it, its policy keeps the curve, it has too few validation cases
of each structure or class, or it took no part in training, so that its cases set no level."""


class Guarantee(Strict):
    """What a model file promises: shares of at most ``alpha`` on average.

    ``sites``: site -> structure -> its promise, to new patients of that site. ``newcomer``: structure -> the promise on
    average over hospitals like the sites; empty where sites keep personal parts, which a new hospital has not.
    ``left_out``: the same promise with what came of it at each site that was held out.
    ``without_curve``: the other sites of the job, and why nothing is promised to their patients.
    ``calibrated``: after a calibration at one hospital (``fedshift evaluate --guarantee``) the promise to its
    patients, which takes the place of all others. ``statistics``: whose statistics the model had there.
    """

    alpha: float = Field(gt=0, lt=1)
    sites: dict[Name, dict[ClassName, Promise]] = {}
    newcomer: dict[ClassName, Promise] = {}
    left_out: dict[Name, dict[ClassName, Promise]] = {}
    without_curve: dict[Name, Reason] = {}
    calibrated: dict[ClassName, Promise] = {}
    statistics: Line = ""

    @property
    def is_empty(self) -> bool:
        """Whether no site has sent a curve: each has too few validation cases, or a policy that keeps it."""
        return not (self.sites or self.newcomer or self.calibrated)
