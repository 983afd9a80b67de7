"""Classify pictures or volumes, prepared in the same way as the training images."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fedshift.data.case_check import known_spacing
from fedshift.data.decode import cached_picture, read_picture
from fedshift.data.depth import DeepPicture, Depth, warnings_of
from fedshift.data.dicom import looks_like_dicom
from fedshift.data.scan_file import suffix_of
from fedshift.data.scans import stem_of
from fedshift.inference.dicom_source import Source, open_picture, open_source
from fedshift.inference.model import Model
from fedshift.inference.ready import Choice, Images, ReadyModel, make_ready, readable
from fedshift.inference.sequences import ScanCase
from fedshift.schema.errors import DataError
from fedshift.schema.reading import Reading
from fedshift.tasks.classification.task import Task
from fedshift.tasks.classification.volumes import Volumes, VolumeSpec
from fedshift.tasks.evaluation.by_finding import PLAIN
from fedshift.tasks.saliency import grad_cam

BATCH_SIZE = 64
"""Images per batch, as in evaluation."""
BySite = Mapping[str, Mapping[str, float]]
"""Site -> class -> threshold."""


@dataclass(frozen=True)
class Saliency:
    """Where an image (C, *spatial), as the task prepares it, speaks for a class: (*spatial) from 0 to 1."""

    name: str
    image: np.ndarray
    places: np.ndarray


@dataclass(frozen=True)
class Thresholds:
    """From which probability on each class is said to be there, and who has chosen that."""

    values: Mapping[str, float]
    source: str

    def decided(self, probabilities: Mapping[str, float]) -> list[str]:
        """The classes that are said to be there."""
        return [name for name, value in probabilities.items() if value >= self.values[name]]


def thresholds_of(model: Model, choice: Choice) -> Thresholds:
    """The thresholds of the site that ``choice`` names or has the state of; else, of each class, the median of all.

    A class of which no site's validation part has chosen one has `by_finding.PLAIN`.
    """
    chosen = _chosen(model.header.thresholds, choice)
    medians = _medians(chosen)
    values = {name: medians.get(name, PLAIN) for name in model.header.job.task.classes}
    plain = [name for name in values if name not in medians]
    if not medians:
        return Thresholds(values, f"{PLAIN:g}, since no site's validation part has chosen one")
    who = f"of those that {', '.join(chosen)} chose on their validation parts"
    source = f"median {who}" if len(chosen) > 1 else f"chosen on the validation part of {', '.join(chosen)}"
    return Thresholds(values, f"{source}; {PLAIN:g} for {', '.join(plain)}" if plain else source)


def specific_thresholds(model: Model, choice: Choice) -> dict[str, float]:
    """Those of the job's specificity, likewise; a class of which no site has one is left out."""
    return _medians(_chosen(model.header.specific, choice))


def of_statistics(model: Model, choice: Choice, *, thresholds: BySite) -> Choice:
    """``choice`` of statistics, without a site of which the model holds ``thresholds`` alone."""
    alone = choice.site in thresholds and choice.site not in model.header.statistics
    return Choice() if alone else choice


def _chosen(known: BySite, choice: Choice) -> BySite:
    site = choice.site or (choice.state.name if choice.state is not None else "")
    return {site: known[site]} if site in known else known


def _medians(chosen: BySite) -> dict[str, float]:
    names = {name for thresholds in chosen.values() for name in thresholds}
    return {
        name: statistics.median_low([thresholds[name] for thresholds in chosen.values() if name in thresholds])
        for name in names
    }


@dataclass(frozen=True)
class Classified:
    """The most likely class of one image and its probability; or an ``error``."""

    image: Path
    name: str = ""
    label: str = ""
    probability: float = 0.0
    probabilities: Mapping[str, float] = field(default_factory=dict)
    """That of each class."""
    saliency: Saliency | None = None
    reading: Reading | None = None
    """Of a grey image with more than 8 bits, or of a volume's first sequence."""
    warnings: tuple[str, ...] = ()
    """What a person should look at in how a DICOM image was read."""
    error: str | None = None


@dataclass(frozen=True)
class ImageRead:
    """An image as the network's normalised input ``x``, (C, *spatial) float32; the others as in `Classified`."""

    x: Tensor
    reading: Reading | None = None
    warnings: tuple[str, ...] = ()


def depth_of(images: Sequence[Path], bits: int | None = None) -> Depth:
    """The range of those images that are grey with more than 8 bits: of all of them together, or as many as given."""
    return Depth([partial(read_picture, image) for image in images], bits=bits)


def read_input(path: Path, model: Model, depth: Depth) -> ImageRead:
    """Read a picture as the network's input, (C, S, S).

    Raises:
        DataError: the file is a scan or cannot be read.
    """
    if suffix_of(path):
        message = f"{path} is a scan, but {model.path.name} classifies images: name PNG or JPEG files"
        raise DataError("scan-for-pictures", message)
    data, stored = model.data, read_picture(path)
    pixels = torch.from_numpy(np.array(cached_picture(stored, depth, size=data["size"], channels=data["channels"])))
    mean, std = (torch.tensor(data[name]).reshape(-1, 1, 1) for name in ("mean", "std"))
    x = pixels.float().div_(65535 if pixels.dtype == torch.uint16 else 255).sub_(mean).div_(std)
    reading = stored.reading(depth.bits_of(stored)) if isinstance(stored, DeepPicture) else None
    return ImageRead(x, reading, warnings_of(stored))


@dataclass(frozen=True)
class Input:
    """An image, and how it is read as the network's input."""

    image: Path
    name: str
    """Of files that are written of it."""
    read: Callable[[], ImageRead]
    source: Callable[[], Source] | None = None
    """Its DICOM objects, if it is DICOM."""


def of_pictures(model: Model, images: Sequence[Path], depth: Depth) -> list[Input]:
    """Pictures, each a case; ``depth`` is that of `depth_of`."""
    return [
        Input(
            image,
            image.stem,
            partial(read_input, image, model, depth),
            partial(open_picture, image) if looks_like_dicom(image) else None,
        )
        for image in images
    ]


def of_volumes(model: Model, cases: Sequence[ScanCase], *, true_spacing: bool) -> list[Input]:
    """Volumes; ``true_spacing``: whether voxels of 1 x 1 x 1 mm are no placeholder."""
    spec = cast(Task, model.task).spec
    assert isinstance(spec, VolumeSpec)

    def read(case: ScanCase) -> ImageRead:
        scans = case.read()
        if scans[0].is_picture:
            message = f"{case.image} is a picture, and {model.path.name} classifies volumes: name scans"
            raise DataError("kind-of-data", message)
        voxels = np.stack([scan.voxels for scan in scans])
        try:
            x = spec.image(voxels, known_spacing(scans[0], true=true_spacing))
        except ValueError as error:
            raise DataError("intensities", f"{case.image} {error}") from None
        remarks = (remark for scan in scans for remark in scan.reading.remarks) if case.is_dicom else ()
        return ImageRead(x, scans[0].reading, tuple(dict.fromkeys(remarks)))

    return [
        Input(
            case.image,
            stem_of(case.named),
            partial(read, case),
            partial(open_source, case.image, volume=case.volume) if case.is_dicom else None,
        )
        for case in cases
    ]


def ready_for(model: Model, inputs: Sequence[Input], choice: Choice, *, device: str = "auto") -> ReadyModel:
    """Prepare a model for prediction. With ``choice.estimate``, statistics come from the images that can be read.

    Raises:
        ConfigError: as `make_ready`.
        DataError: none of the images can be read.
    """
    size = batch_size(model)

    def batches() -> Images:
        images = [image.x for image in readable(each.read for each in inputs)]
        return Images([torch.stack(images[start : start + size]) for start in range(0, len(images), size)])

    return make_ready(model, choice, images=batches, device=device)


def batch_size(model: Model) -> int:
    """Images of a batch, as in evaluation."""
    return Volumes.eval_batch if model.classifies_volumes else BATCH_SIZE


def classify(ready: ReadyModel, inputs: Sequence[Input], *, saliency: bool = False) -> Iterator[Classified]:
    """Yield one result per image, in order. An unreadable image gives an error result and does not stop the rest.

    ``saliency``: also where the image speaks for its most likely class.

    Raises:
        ConfigError: the network has no features that ``saliency`` could be of.
    """
    model = ready.model
    classes, size = model.header.job.task.classes, batch_size(model)
    for start in range(0, len(inputs), size):
        read: dict[Path, ImageRead | str] = {}
        names: dict[Path, str] = {}
        for each in inputs[start : start + size]:
            names[each.image] = each.name
            try:
                read[each.image] = each.read()
            except DataError as error:
                read[each.image] = str(error)
        images = [content.x for content in read.values() if not isinstance(content, str)]
        predicted = iter(_probabilities(ready, torch.stack(images)) if images else ())
        for image, content in read.items():
            if isinstance(content, str):
                yield Classified(image, names[image], error=content)
                continue
            probabilities = next(predicted)
            best = int(probabilities.argmax())
            every = dict(zip(classes, probabilities.tolist(), strict=True))
            shown = _saliency(ready, content.x, best) if saliency else None
            label = classes[best], float(probabilities[best])
            yield Classified(image, names[image], *label, every, shown, content.reading, content.warnings)


@torch.inference_mode()
def _probabilities(ready: ReadyModel, x: Tensor) -> Tensor:
    """Class probabilities (B, classes) on the CPU, of images (B, C, *spatial)."""
    return ready.model.task.probabilities(ready.logits(x))


def _saliency(ready: ReadyModel, x: Tensor, best: int) -> Saliency:
    image = ready.predictor.chain.inputs(x[None].to(ready.device), training=False)
    places = grad_cam(ready.predictor.net, image, best).numpy()
    return Saliency(ready.model.header.job.task.classes[best], x.numpy(), places)
