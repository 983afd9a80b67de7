"""Adaptation to scans without masks, and how a model's outlines of altered scans agree.

- ``statistics``: the running statistics of norm layers become those of the scans (Nado et al., "Evaluating
  prediction-time batch normalization for robustness under covariate shift", 2020). A network without any has nothing
  to set.
- ``entropy``: scale and shift of the norm layers are trained for a small mean entropy of the predictions (Tent: Wang et
  al., "Fully test-time adaptation by entropy minimization", ICLR 2021).
- ``agreement``: the same layers are trained to predict, of an image whose tones are changed or that is mirrored, what
  the model as it was predicts on average over such changes (its cross-entropy; self-distillation). Images are mirrored
  where training did so too.

Statistics come first in the last two, where there are any. A network whose answer is the same for all images has no
entropy and full agreement. So the goal of ``agreement`` is fixed beforehand, agreement is judged by outlines, an empty
outline agrees with nothing, and `implausible` says what else speaks against a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedshift.data.case_check import known_spacing
from fedshift.data.scan_file import ScanError
from fedshift.federation.site.local_training import make_optimizer
from fedshift.inference.adaptation.parts import keys_of, trained
from fedshift.inference.model import Model
from fedshift.inference.ready import Images, ReadyModel
from fedshift.inference.segment import Stacked, refuse_other_kind
from fedshift.inference.sequences import ScanCase
from fedshift.methods.base import Run
from fedshift.methods.shared.norms import re_estimate
from fedshift.runtime.regions import voxels_of
from fedshift.runtime.segmentation import network_images
from fedshift.schema.adaptation import Means
from fedshift.schema.job import JobSpec
from fedshift.schema.seeding import generator
from fedshift.tasks.evaluation.by_class import dice_by_class

SITE = "adapted"
MEANS: tuple[Means, ...] = ("statistics", "entropy", "agreement")
MOST_WINDOWS, LEAST_OF_EACH = 48, 4
"""Windows of all scans together that are looked at, so that few scans do not take many times as long as a prediction,
and how many of each scan at least."""
STEPS, BATCH_SIZE = 10, 16
"""Of ``entropy`` and ``agreement``."""
TONES = (0.7, 1.4)
"""Exponents of the tone curves under which outlines are compared; training draws from between and a little beyond."""
DRAWN = (0.6, 1.6)
LEAST_LEFT, MOST_COVERED = 0.5, 0.5
"""A structure may not shrink to less than this part of what it was, unless that covered more of the windows than any
structure may be expected to; nor grow to cover so much."""


def unavailable(ready: ReadyModel, means: Means) -> str | None:
    """Why a network cannot be adapted so; None if it can."""
    net = ready.predictor.net
    if means == "statistics":
        has_any = any(name.endswith("running_mean") for name, _ in net.named_buffers())
        return None if has_any else "the network's norm layers keep no running statistics"
    return None if keys_of(ready.model.header.job, "norm") else "the network's norm layers have no scale and shift"


def windows_of(model: Model, cases: Sequence[ScanCase | Stacked], *, true_spacing: bool) -> list[Tensor]:
    """Of each scan some windows as the network sees them, (n, C, *spatial) float32: the middle of each of n parts.

    So no window is at an end of the scan, where there may be no structure.

    Raises:
        DataError: a scan cannot be read, or is there twice: evidence counts scans.
    """
    assert model.spec is not None
    first: dict[bytes, Path] = {}
    most = max(LEAST_OF_EACH, MOST_WINDOWS // max(len(cases), 1))
    scans = []
    for case in cases:
        scan, voxels = case.read_stacked()
        if isinstance(case, ScanCase):
            refuse_other_kind(scan, case.image, pictures=model.of_pictures)
            same = first.setdefault(sha256(voxels.tobytes()).digest(), case.image)
            if same != case.image:
                what, remedy = f"has the same voxels as {same}", "remove one of the two, or it counts twice"
                raise ScanError("same-content", case.image, what, remedy)
        images = network_images(voxels, known_spacing(scan, true=true_spacing), model.spec)
        each = torch.cat(images)
        n = min(most, len(each))
        chosen = (np.arange(n) + 0.5) * len(each) // n
        scans.append(each[torch.from_numpy(chosen).long()].clone())
    return scans


# --- adapting ---------------------------------------------------------------------------------------------


def adapt(ready: ReadyModel, scans: Sequence[Tensor], means: Means, *, seed: int) -> None:
    """Adapt a model to windows of scans, in place."""
    net = ready.predictor.net
    keys = keys_of(ready.model.header.job, "norm")
    _set_statistics(ready, scans, seed)
    if means == "statistics":
        return
    job, images = ready.model.header.job, torch.cat(list(scans))
    wanted = None if means == "entropy" else _averaged(ready, images)
    order = generator(seed, SITE, 0, means)
    optimizer = make_optimizer(net, job.task.optimizer.model_copy(update={"weight_decay": 0.0}))
    with trained(net, keys):
        for _ in range(STEPS):
            index = torch.randperm(len(images), generator=order)[:BATCH_SIZE]
            optimizer.zero_grad(set_to_none=True)
            if wanted is None:
                loss = _entropy(ready, images[index])
            else:
                loss = _disagreement(ready, images[index], wanted[index], order)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    _set_statistics(ready, scans, seed)


def _set_statistics(ready: ReadyModel, scans: Sequence[Tensor], seed: int) -> None:
    """Of the norm layers that keep running statistics; of others nothing is changed."""
    model, net = ready.model, ready.predictor.net
    job = model.header.job
    run = Run(
        seed=seed,
        site=SITE,
        round=0,
        rounds=1,
        sites=(),
        net=net,
        objective=model.task.loss,
        n_classes=len(job.task.classes),
        normalise=ready.predictor.chain.inputs,
    )
    re_estimate(net, Images(list(torch.split(torch.cat(list(scans)), BATCH_SIZE))), run)


def _entropy(ready: ReadyModel, images: Tensor) -> Tensor:
    """Mean entropy over pixels, of classes or of each region, in nats."""
    logits = ready.logits(images)
    return _cross_entropy(ready, logits, _probabilities(ready, logits))


@torch.no_grad()
def _averaged(ready: ReadyModel, images: Tensor) -> Tensor:
    """Mean probabilities over an image and all that is made of it to judge a model, (n, K, *spatial)."""
    batches = []
    for batch in torch.split(images, BATCH_SIZE):
        views = [_probabilities(ready, ready.logits(view)) for view in (batch, *_toned(batch))]
        if is_mirrored(ready.model.header.job):
            views.append(_probabilities(ready, ready.logits(batch.flip(-1))).flip(-1))
        batches.append(torch.stack(views).mean(0))
    return torch.cat(batches)


def _disagreement(ready: ReadyModel, images: Tensor, wanted: Tensor, order: torch.Generator) -> Tensor:
    """Mean cross-entropy of predictions of images altered by chance with what is wanted of the images."""
    low, high = DRAWN
    altered = with_tone(images, low * (high / low) ** torch.rand(len(images), generator=order))
    if is_mirrored(ready.model.header.job) and torch.rand((), generator=order) < 0.5:
        return _cross_entropy(ready, ready.logits(altered.flip(-1)), wanted.flip(-1))
    return _cross_entropy(ready, ready.logits(altered), wanted)


def _cross_entropy(ready: ReadyModel, logits: Tensor, wanted: Tensor) -> Tensor:
    """Mean over pixels, of classes or of each region; ``wanted``: probabilities (B, K, *spatial)."""
    logits = logits.float()
    if ready.written:
        sigmoid = torch.nn.functional.logsigmoid
        return -(wanted * sigmoid(logits) + (1 - wanted) * sigmoid(-logits)).mean()
    return -(wanted * logits.log_softmax(1)).sum(1).mean()


def _probabilities(ready: ReadyModel, logits: Tensor) -> Tensor:
    return logits.float().sigmoid() if ready.written else logits.float().softmax(1)


def _toned(images: Tensor) -> list[Tensor]:
    return [with_tone(images, torch.full((len(images),), exponent)) for exponent in TONES]


def with_tone(images: Tensor, exponents: Tensor) -> Tensor:
    """Images (B, C, *spatial) with their tones on another curve: ((x - min) / (max - min))^g, in the old range.

    ``exponents``: g of each image, (B,); minimum and maximum are of each channel.
    """
    flat = images.flatten(2)
    shape = (*images.shape[:2], *[1] * (images.dim() - 2))
    low, high = flat.amin(2).view(shape), flat.amax(2).view(shape)
    span = (high - low).clamp_min(torch.finfo(images.dtype).tiny)
    curve = exponents.view(-1, *[1] * (images.dim() - 1)).to(images)
    return ((images - low) / span).clamp(0, 1) ** curve * span + low


def is_mirrored(job: JobSpec) -> bool:
    """Whether training mirrors images along their last axis."""
    data = job.task.data
    if "patch" not in data:
        return data.get("augmentation") == "rot90-flip"
    mirror = data.get("mirror")
    return data.get("augmentation", "none") != "none" and (mirror is None or len(data["patch"]) - 1 in mirror)


# --- judging ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """``agreement`` (scans,), from 0 to 1; ``covered`` (scans, structures): which part of its windows each covers."""

    agreement: np.ndarray
    covered: np.ndarray


@torch.no_grad()
def judge(ready: ReadyModel, scans: Sequence[Tensor]) -> Judged:
    """How a model's outlines of each scan agree with those of the scan altered, and what they cover."""
    agreement, covered = zip(*(_judged(ready, scan) for scan in scans), strict=True)
    return Judged(np.array(agreement), np.array(covered))


def _judged(ready: ReadyModel, images: Tensor) -> tuple[float, list[float]]:
    regions, n_classes = bool(ready.written), 1 + len(ready.classes)
    outlined = _outlined(ready, images)
    covered = [float(voxels_of(outlined, n, regions=regions).mean()) for n in range(1, n_classes)]
    if not any(covered):
        return 0.0, covered
    values = [
        np.nanmean(dice_by_class(altered, outlined, n_classes, regions=regions)) for altered in _altered(ready, images)
    ]
    return float(np.mean(values)), covered


def _altered(ready: ReadyModel, images: Tensor) -> Iterator[np.ndarray]:
    """Outlines of the images altered in each way, where they are in the images as they were."""
    for altered in _toned(images):
        yield _outlined(ready, altered)
    if is_mirrored(ready.model.header.job):
        yield np.flip(_outlined(ready, images.flip(-1)), -1)


def _outlined(ready: ReadyModel, images: Tensor) -> np.ndarray:
    """Classes, or sets of regions, of windows, (n, *spatial) uint8."""
    batches = torch.split(images, BATCH_SIZE if images.dim() == 4 else 1)
    return torch.cat([ready.model.task.predicted(ready.logits(batch)) for batch in batches]).numpy()


def implausible(before: Judged, after: Judged, names: Sequence[str]) -> str | None:
    """What speaks against outlines after an adaptation, a sentence; None if nothing does."""
    for number, name in enumerate(names):
        old, new = before.covered[:, number], after.covered[:, number]
        if np.count_nonzero(new) < np.count_nonzero(old):
            return f"{name} would be found in {np.count_nonzero(new)} of {len(new)} scans, and not in as many as before"
        if new.mean() < LEAST_LEFT * old.mean() <= LEAST_LEFT * MOST_COVERED:
            return f"{name} would shrink to {new.mean() / old.mean():.0%} of what it was"
        if new.mean() > max(MOST_COVERED, old.mean()):
            return f"{name} would cover {new.mean():.0%} of the scans"
    return None
