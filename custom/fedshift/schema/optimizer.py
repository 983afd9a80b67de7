"""The sites' optimiser, and how its learning rate changes from round to round."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedshift.schema.strict import Sparse, Strict

Beta = Annotated[float, Field(ge=0, lt=1)]


class LearningRateSpec(Strict):
    """A factor on ``optimizer.lr`` for every round. All local steps of a round have the same learning rate.

    In the first ``warm_up`` rounds the factor of round r is r / (warm_up + 1). After them, with n rounds left and
    i = 0 … n − 1::

        constant      1
        step          factor^⌊i / every⌋
        cosine        last + (1 − last) (1 + cos(π i / n)) / 2
        polynomial    last + (1 − last) (1 − i / n)^power

    ``name``: the curve. ``every``: after how many rounds a step falls. ``factor``: by which it falls. ``power``: of the
    polynomial. ``last``: the factor of the last round.
    """

    name: Literal["constant", "step", "cosine", "polynomial"] = "constant"
    warm_up: int = Field(default=0, ge=0)
    every: int | None = Field(default=None, ge=1)
    factor: float = Field(default=0.1, gt=0, lt=1)
    power: float = Field(default=0.9, gt=0)
    last: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _of_the_curve(self) -> Self:
        for key, names in (("every", ("step",)), ("factor", ("step",)), ("power", ("polynomial",))):
            self._only(key, names)
        self._only("last", ("cosine", "polynomial"))
        if self.name == "step" and self.every is None:
            raise ValueError("'every' is missing: after how many rounds the learning rate falls")
        return self

    def _only(self, key: str, names: tuple[str, ...]) -> None:
        if getattr(self, key) != type(self).model_fields[key].default and self.name not in names:
            raise ValueError(f"'{key}' is an option of {' and '.join(names)}, not of {self.name}")

    def at(self, round_: int, rounds: int) -> float:
        """The factor in a round, from 1 to ``rounds``."""
        if round_ <= self.warm_up:
            return round_ / (self.warm_up + 1)
        i, n = round_ - 1 - self.warm_up, rounds - self.warm_up
        if self.name == "step":
            assert self.every is not None
            return self.factor ** (i // self.every)
        if self.name == "constant":
            return 1.0
        falling = (1 + math.cos(math.pi * i / n)) / 2 if self.name == "cosine" else (1 - i / n) ** self.power
        return self.last + (1 - self.last) * falling


class OptimizerSpec(Sparse):
    """The local optimiser.

    ``name``: which one. ``lr``: its learning rate. ``lr_schedule``: how that changes from round to round.

    ``adam`` adds ``weight_decay`` to the loss as an L2 penalty, as the papers' code does; ``adamw`` decays the weights
    apart from the gradient. ``momentum`` and ``nesterov`` are SGD's, ``betas`` Adam's. ``clip_norm`` scales the
    gradient of a batch down to this L2 norm, over all parameters, if it is larger. With ``keep`` a site keeps the
    optimiser's state (such as Adam's moments) between rounds.
    """

    RARE = ("nesterov", "betas", "clip_norm", "lr_schedule")

    name: Literal["adam", "adamw", "sgd"] = "adam"
    lr: float = Field(gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    nesterov: bool = False
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    clip_norm: float | None = Field(default=None, gt=0)
    lr_schedule: LearningRateSpec = LearningRateSpec()
    keep: bool = True

    @model_validator(mode="after")
    def _of_the_optimizer(self) -> Self:
        if self.name != "sgd" and self.momentum:
            raise ValueError(f"'momentum' is an option of sgd, not of {self.name}: set optimizer.momentum=0")
        if self.nesterov and not self.momentum:
            raise ValueError("'nesterov' needs sgd with a momentum above 0")
        if self.name == "sgd" and self.betas != type(self).model_fields["betas"].default:
            raise ValueError("'betas' is an option of adam and adamw, not of sgd")
        return self

    def at(self, round_: int, rounds: int) -> OptimizerSpec:
        """The optimiser with a round's learning rate; before the first and after the last round with theirs."""
        factor = self.lr_schedule.at(min(max(round_, 1), rounds), rounds)
        return self if factor == 1 else self.model_copy(update={"lr": self.lr * factor})
