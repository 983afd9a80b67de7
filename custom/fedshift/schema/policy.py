"""A site's own rules, ``privacy:`` in its ``local/fedshift.yaml``. No job can see, change or switch them off."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from fedshift.schema.strict import Strict

Kind = Literal["statistics", "prototypes", "images", "generator", "control", "loss", "other"]
"""What an array that a method sends is made of: statistics of images or features; embeddings, one a class; averaged
images or their targets; a trained generator of embeddings; corrections of gradients; the loss on training images;
what a method does not say."""


class Noise(Strict):
    """How much Gaussian noise, for a whole job.

    ``epsilon`` and ``delta`` state the guarantee, over all rounds of the job together; the noise follows from them.
    Or ``multiplier`` states the noise of one message, in multiples of the most that the data can change the message
    by; the log then says which epsilon that makes at ``delta``.
    """

    epsilon: float | None = Field(default=None, gt=0, le=100)
    delta: float = Field(default=1e-5, gt=0, lt=0.1)
    multiplier: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.epsilon is None) == (self.multiplier is None):
            raise ValueError("give either epsilon (with delta) or multiplier")
        return self


class StatisticsNoise(Noise):
    """Noise on statistics of images and features.

    ``clip`` bounds by how much the statistics of features may differ from those that the site received: the L2 norm
    of the difference over all arrays of a round. Statistics of images need no bound, since the task bounds images.
    """

    clip: float | None = Field(default=None, gt=0)


class WeightNoise(Noise):
    """Noise on the network. ``clip`` bounds the change of all parameters in a round: its L2 norm."""

    clip: float = Field(gt=0)


class Policy(Strict):
    """All of a site's rules.

    ``train``: whether the site trains at all. If not, it only scores models, for jobs that hold it out.
    ``allow``: kinds of arrays that methods may send beside the network (`Kind`).
    ``min_cases``: patients to train on (pictures, where a case is one picture) that a site must have before any such
    array leaves; for prototypes, in each class. ``encryption``: ``required`` refuses jobs that do not encrypt updates.
    ``statistics``, ``weights``: noise on these, none by default. With noise on the network nothing that comes from
    training images leaves without noise. ``case_scores``: whether a final model's scores of single cases leave,
    without ids; otherwise their number, mean and, from ten cases on, their spread.
    """

    train: bool = True
    allow: tuple[Kind, ...] = ("statistics", "control", "loss")
    min_cases: int = Field(default=1, ge=1)
    encryption: Literal["required"] | None = None
    statistics: StatisticsNoise | None = None
    weights: WeightNoise | None = None
    case_scores: bool = False
