"""Classes of pictures, decoded and resized as those that the model was trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from data_prep.decode import read_picture, resize_picture
from fedshift.data.scans import suffix_of
from fedshift.inference.model import Choice, Images, Model, Ready, make_ready
from fedshift.schema.errors import DataError
from fedshift.tasks.precision import arrange, autocast

TOGETHER = 64
"""Pictures in a batch, as in evaluation."""


@dataclass(frozen=True)
class Classified:
    """The most likely class of a picture and its probability; with an ``error`` it has neither."""

    image: Path
    label: str = ""
    probability: float = 0.0
    error: str | None = None


def read_input(path: Path, model: Model) -> Tensor:
    """A picture as the network gets it, (C, S, S) float32.

    Raises:
        DataError: it cannot be read.
    """
    if suffix_of(path):
        raise DataError(f"{path} is a scan, and {model.path.name} tells classes of pictures: name PNG or JPEG files")
    data, picture = model.data, read_picture(path)
    pixels = resize_picture(picture.convert("L") if data["channels"] == 1 else picture, data["size"])
    mean, std = (torch.tensor(data[name]).reshape(-1, 1, 1) for name in ("mean", "std"))
    return torch.from_numpy(np.array(pixels)).float().div_(255).sub_(mean).div_(std)


def ready_for(model: Model, images: Sequence[Path], choice: Choice, *, device: str = "auto") -> Ready:
    """Make a model ready; with ``choice.own`` from those of the pictures that can be read.

    Raises:
        ConfigError: as `make_ready`.
        DataError: none of the pictures can be read.
    """
    if not choice.own:
        return make_ready(model, choice, device=device)
    read, fault = [], None
    for image in images:
        try:
            read.append(read_input(image, model))
        except DataError as error:  # is told when its turn comes
            fault = fault or error
    if not read and fault is not None:
        raise fault
    stacks = [torch.stack(read[start : start + TOGETHER]) for start in range(0, len(read), TOGETHER)]
    return make_ready(model, choice, images=Images(stacks), device=device)


def classify(
    model: Model, ready: Ready, images: Sequence[Path], *, begin: Callable[[Path], None] = lambda image: None
) -> Iterator[Classified]:
    """One result for each picture, in order; one that cannot be read does not keep the others from being done."""
    for start in range(0, len(images), TOGETHER):
        read: dict[Path, Tensor | str] = {}
        for image in images[start : start + TOGETHER]:
            begin(image)
            try:
                read[image] = read_input(image, model)
            except DataError as error:
                read[image] = str(error)
        inputs = [x for x in read.values() if isinstance(x, Tensor)]
        answers = iter(_probabilities(model, ready, torch.stack(inputs)) if inputs else ())
        for image, content in read.items():
            if isinstance(content, str):
                yield Classified(image, error=content)
                continue
            answer = next(answers)
            best = int(answer.argmax())
            yield Classified(image, model.header.job.task.classes[best], float(answer[best]))


@torch.inference_mode()
def _probabilities(model: Model, ready: Ready, x: Tensor) -> Tensor:
    precision = model.header.job.task.schedule.precision
    with autocast(precision, ready.device):
        logits = ready.predictor(arrange(x, precision, ready.device))
    probabilities: Tensor = logits.float().softmax(1).cpu()
    return probabilities
