"""What a model file says of its adaptation at one hospital: numbers and sentences, nothing of single cases."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedshift.schema.names import Line
from fedshift.schema.strict import Strict

Means = Literal["fine-tuning", "statistics", "entropy", "agreement"]
"""How a model is adapted: with masks by fine-tuning; without by the running statistics of its norm layers, or by
training their scale and shift for little entropy, or for the agreement of its predictions."""
Part = Literal["norm", "decoder", "all"]
"""What of the network is trained: its norm layers, what comes after its bottleneck, or all of it."""
Decision = Literal["adapted", "kept", "asked"]
"""``asked``: it was adapted because that was asked for, although there was too little evidence."""


class Evidence(Strict):
    """Paired scores before and after, on cases that the adapted model was not trained on where there are masks.

    ``score``: ``dice``, or the ``agreement`` of a model's outlines of the same scan, altered and as it is; from 0 to 1.
    ``n``: over how many subjects (or scans without masks). ``gain``: the mean difference; ``interval``: the 80 %
    t-interval of that mean, None for fewer than two or if all gains are the same; ``confidence`` that it is above 0
    (`fedshift.inference.adaptation.evidence.confidence`), None for fewer than two.
    """

    score: Literal["dice", "agreement"]
    n: int = Field(ge=1)
    before: float
    gain: float
    interval: tuple[float, float] | None = None
    confidence: float | None = Field(default=None, ge=0, le=1)


class Adaptation(Strict):
    """The result of ``fedshift adapt``.

    ``reason``: of the decision, a sentence. ``labelled``, ``unlabelled``: on how many cases it was made. ``means``,
    ``part``, ``rate`` (learning rate), ``steps``, ``anchor`` and ``share`` (how far of the way from the weights before
    to those after training it went): how the model was adapted, or would have been had it not been kept; None where
    nothing was tried. ``statistics``: whose statistics it was adapted with.
    """

    decision: Decision
    reason: Line
    labelled: int = Field(ge=0)
    unlabelled: int = Field(ge=0)
    means: Means | None = None
    part: Part | None = None
    rate: float | None = Field(default=None, gt=0)
    steps: int | None = Field(default=None, ge=1)
    anchor: float | None = Field(default=None, ge=0)
    share: float | None = Field(default=None, gt=0, le=1)
    seed: int = Field(ge=0)
    evidence: Evidence | None = None
    statistics: Line
    fedshift: Line

    @property
    def trained_on(self) -> int:
        """On how many cases of the hospital the model's weights depend: none where it was kept."""
        return 0 if self.decision == "kept" else self.labelled + self.unlabelled
