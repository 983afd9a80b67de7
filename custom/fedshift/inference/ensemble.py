"""Several models of one task as one segmenter, such as the models of several folds: their probabilities are averaged.

Of a window x and models f_1 … f_n::

    p(x) = 1/n Σ_i softmax(f_i(x))          of regions, which may overlap: sigmoid in place of softmax

What is given on are logits of p, so mirror images and overlapping windows go on as with a single model. nnU-Net 2
averages the five models of a cross-validation by their logits, so its masks differ a little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fedshift.inference.model import Model, open_model
from fedshift.inference.ready import SAME_EVERYWHERE, Choice, ReadyModel
from fedshift.schema.errors import ConfigError


@dataclass(frozen=True)
class Ensemble(ReadyModel):
    """The model of the other fields and ``others``, which take scans alike, averaged."""

    others: tuple[ReadyModel, ...]

    def logits(self, images: Tensor) -> Tensor:
        first = super().logits(images)
        every = torch.stack([first, *(ready.logits(images) for ready in self.others)]).float()
        if self.written:
            return _log_mean(logsigmoid(every)) - _log_mean(logsigmoid(-every))
        return _log_mean(every.log_softmax(2))


def _log_mean(logs: Tensor) -> Tensor:
    """The logarithm of the mean over the first axis of what ``logs`` are the logarithms of."""
    return logs.logsumexp(0) - math.log(len(logs))


def averaged(ready: ReadyModel, others: Sequence[ReadyModel]) -> ReadyModel:
    """The mean of models that are ready; a single one is as it was."""
    if not others:
        return ready
    members = (ready, *others)
    notes = dict.fromkeys(note for each in members for note in each.notes)
    chosen = next((each for each in members if each.used != Choice()), ready)  # whose statistics matter
    if chosen.used != Choice():
        notes.pop(SAME_EVERYWHERE, None)
    ready_fields = {field.name: getattr(ready, field.name) for field in fields(ready)}
    about = {"notes": tuple(notes), "used": chosen.used, "statistics": chosen.statistics}
    return Ensemble(**ready_fields | about, others=tuple(others))


def open_others(model: Model, paths: Sequence[Path]) -> list[Model]:
    """Read the models that are averaged with a model.

    Raises:
        ConfigError: as `open_model`; or one of them does not take scans as ``model`` does, is of simulated scans where
            the others are of patients, or is given twice.
    """
    if paths and not model.is_segmentation:
        message = "classifies, and --models averages models that segment: leave it out"
        raise ConfigError("no-effect", f"{model.path} {message}")
    opened: list[Model] = []
    for path in paths:
        if path.is_dir():
            message = "is a bundle, and bundles are not averaged: name model files with --models"
            raise ConfigError("models-differ", f"{path} {message}")
        other = open_model(path)
        same = next((each for each in (model, *opened) if _same(each, other)), None)
        if same is not None:
            raise ConfigError("models-differ", f"{path} is the same model as {same.path}: name each once")
        for what, ours, theirs in (
            ("structures", model.structures, other.structures),
            ("sequences", model.sequences, other.sequences),
            ("kinds of training data", (model.header.kind,), (other.header.kind,)),
            ("preparation of scans", (model.data, model.spec), (other.data, other.spec)),
        ):
            if ours != theirs:
                shown = "" if what.startswith("preparation") else f" ({_named(ours)} and {_named(theirs)})"
                message = f"{path} and {model.path} have different {what}{shown}: average models of the same task"
                raise ConfigError("models-differ", message)
        opened.append(other)
    return opened


def _same(model: Model, other: Model) -> bool:
    """Whether two models have the same weights; their files may still say other things, as those of a kept one do."""
    return model.weights.keys() == other.weights.keys() and all(
        torch.equal(value, other.weights[key]) for key, value in model.weights.items()
    )


def _named(names: Sequence[object]) -> str:
    return ", ".join(map(str, names)) or "without a name"
