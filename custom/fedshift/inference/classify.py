"""Classify images, decoded and resized in the same way as the training images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from data_prep.decode import read_picture, resize_picture
from data_prep.depth import DeepPicture, Depth
from fedshift.data.scan_file import suffix_of
from fedshift.inference.model import Choice, Images, Model, ReadyModel, make_ready, readable
from fedshift.schema.errors import DataError
from fedshift.schema.reading import Reading

BATCH_SIZE = 64
"""Images per batch, as in evaluation."""


@dataclass(frozen=True)
class Classified:
    """The most likely class of one image and its probability, or an ``error``."""

    image: Path
    label: str = ""
    probability: float = 0.0
    reading: Reading | None = None
    """Of a grey image with more than 8 bits."""
    error: str | None = None


def depth_of(images: Sequence[Path], bits: int | None = None) -> Depth:
    """The range of those images that are grey with more than 8 bits: of all of them together, or as many as given."""
    return Depth([partial(read_picture, image) for image in images], given=bits)


def read_input(path: Path, model: Model, depth: Depth) -> tuple[Tensor, Reading | None]:
    """Read an image as the network's normalised input, (C, S, S) float32, with what was decided if it is deep.

    Raises:
        DataError: the file is a scan or cannot be read.
    """
    if suffix_of(path):
        said = f"{path} is a scan, but {model.path.name} classifies images: name PNG or JPEG files"
        raise DataError("scan-for-pictures", said)
    data, stored = model.data, read_picture(path)
    picture = depth.shown(stored)
    if data["channels"] == 1:
        picture = picture.convert("L")
    pixels = resize_picture(picture, data["size"])
    mean, std = (torch.tensor(data[name]).reshape(-1, 1, 1) for name in ("mean", "std"))
    x = torch.from_numpy(np.array(pixels)).float().div_(255).sub_(mean).div_(std)
    return x, stored.reading(depth.bits) if isinstance(stored, DeepPicture) else None


def ready_for(
    model: Model, images: Sequence[Path], choice: Choice, *, depth: Depth, device: str = "auto"
) -> ReadyModel:
    """Prepare a model for prediction. With ``choice.estimate``, statistics come from the images that can be read.

    Raises:
        ConfigError: as `make_ready`.
        DataError: none of the images can be read.
    """

    def batches() -> Images:
        inputs = [x for x, _ in readable(partial(read_input, image, model, depth) for image in images)]
        return Images([torch.stack(inputs[start : start + BATCH_SIZE]) for start in range(0, len(inputs), BATCH_SIZE)])

    return make_ready(model, choice, images=batches, device=device)


def classify(ready: ReadyModel, images: Sequence[Path], *, depth: Depth) -> Iterator[Classified]:
    """Yield one result per image, in order. An unreadable image gives an error result and does not stop the rest.

    ``depth`` is that of `depth_of`.
    """
    model = ready.model
    for start in range(0, len(images), BATCH_SIZE):
        read: dict[Path, tuple[Tensor, Reading | None] | str] = {}
        for image in images[start : start + BATCH_SIZE]:
            try:
                read[image] = read_input(image, model, depth)
            except DataError as error:
                read[image] = str(error)
        inputs = [content[0] for content in read.values() if not isinstance(content, str)]
        predicted = iter(_probabilities(ready, torch.stack(inputs)) if inputs else ())
        for image, content in read.items():
            if isinstance(content, str):
                yield Classified(image, error=content)
                continue
            probabilities = next(predicted)
            best = int(probabilities.argmax())
            yield Classified(image, model.header.job.task.classes[best], float(probabilities[best]), reading=content[1])


@torch.inference_mode()
def _probabilities(ready: ReadyModel, x: Tensor) -> Tensor:
    """Class probabilities (B, classes) on the CPU, of images (B, C, S, S)."""
    return ready.logits(x).float().softmax(1).cpu()
