"""A site's comparison of two models on the same test cases: the federation's and the one that it trained alone.

The site computes it, because scores of single cases need not leave (`fedshift.tasks.evaluation.paired`).
"""

from __future__ import annotations

from math import isclose
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from fedshift.schema.evaluation import MOST_CASES, Number, Share
from fedshift.schema.names import ClassName

Verdict = Literal["better", "worse", "open"]
"""Whether the federated model is better or worse at the site than its own, or whether the cases cannot tell."""

SIGNIFICANT = 0.05
"""p must be below this for a verdict other than ``open``."""
FEWEST_FOR_TEST = 6
"""Fewest subjects for a test: of five, not even all differences of one sign give a two-sided p below `SIGNIFICANT`."""
FEWEST_FOR_NEEDED = 3
"""Fewest subjects from which the number that would tell is estimated."""
COMPARISON_FILE = "against_local.json"
"""A site's own `LocalComparison` with all its cases, in the site's folder of the job, if not all of it may leave."""
POWER = 0.8
"""Of `LocalComparison.needed`: the chance that so many cases show the difference."""


class PairedClass(BaseModel):
    """The areas under the ROC curve of two models for one class, on the same cases.

    ``p``: of DeLong's two-sided test that they are equal; None if some subjects have several cases, which the test
    takes for independent, or for fewer than two cases with the class or without.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    positives: int = Field(ge=1, le=10**9)
    negatives: int = Field(ge=1, le=10**9)
    federated: Share
    local: Share
    p: Share | None = None


class LocalComparison(BaseModel):
    """Federated against local on the same ``n`` test cases; every difference is federated minus local.

    ``subjects``: whose cases these are, if some subjects have several. The test is then of each subject's mean
    difference, and ``needed`` a number of subjects, because scans of one patient are alike.

    ``score``: the score that is compared, of which higher is better; ``federated`` and ``local`` are its means over
    the cases. ``round``: the round after which the local model was best on the site's validation cases (0: untrained).
    ``test``: the two-sided paired test that ``p`` is of, Wilcoxon's signed-rank test or, for scores that are right or
    wrong, McNemar's exact test; None for fewer than `FEWEST_FOR_TEST` subjects.

    ``interval``: 95 % bootstrap interval of the mean difference. ``std``, ``quantiles``: of the differences, at
    `fedshift.schema.evaluation.QUANTILES`. ``needed``: about so many cases would show a difference of this size with
    the chance `POWER`. ``cases``: the pairs (federated, local) in the order of the site's manifest, without ids. A
    value is None if the site's policy withholds it or if there are too few cases. ``classes``: of a classifier that is
    scored by class, those with cases of both kinds; left out of files and messages where there are none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    score: str = Field(max_length=64)
    n: int = Field(ge=1, le=10**9)
    subjects: int | None = Field(default=None, ge=1, le=10**9)
    federated: Number
    local: Number
    round: int = Field(ge=0, le=10**9)
    verdict: Verdict
    test: Literal["wilcoxon", "mcnemar"] | None = None
    p: Annotated[float, Field(ge=0, le=1)] | None = None
    interval: tuple[Number, Number] | None = None
    std: Annotated[float, Field(allow_inf_nan=False, ge=0)] | None = None
    quantiles: tuple[Number, Number, Number, Number, Number] | None = None
    needed: int | None = Field(default=None, ge=1, le=10**12)
    cases: list[tuple[Number, Number]] | None = Field(default=None, max_length=MOST_CASES)
    classes: dict[ClassName, PairedClass] = Field(default={}, max_length=256)

    @model_serializer(mode="wrap")
    def _without_classes(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = serialise(self)
        return {key: value for key, value in content.items() if value or key != "classes"}

    @property
    def difference(self) -> float:
        return self.federated - self.local

    @property
    def independent(self) -> int:
        """What a test counts: subjects if some have several cases, else cases."""
        return self.n if self.subjects is None else self.subjects

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.subjects is not None and self.subjects >= self.n:
            raise ValueError(f"{self.subjects} subjects were given for n = {self.n} cases")
        for ascending in (self.quantiles, self.interval):
            if ascending is not None and list(ascending) != sorted(ascending):
                raise ValueError("quantiles and interval must ascend")
        if (self.p is None) != (self.test is None) or (self.p is not None and self.independent < FEWEST_FOR_TEST):
            raise ValueError("p must come with its test, and with enough subjects")
        if self.verdict != "open":
            signed = self.difference if self.verdict == "better" else -self.difference
            if self.p is None or self.p >= SIGNIFICANT or signed <= 0:
                raise ValueError(f"the verdict {self.verdict!r} does not follow from the difference and its p")
        if self.cases is not None:
            if len(self.cases) != self.n:
                raise ValueError(f"{len(self.cases)} pairs were given for n = {self.n}")
            for mean, column in zip((self.federated, self.local), zip(*self.cases, strict=True), strict=True):
                if not isclose(sum(column) / self.n, mean, rel_tol=1e-6, abs_tol=1e-9):
                    raise ValueError("a mean is not the mean of the case scores")
        return self
