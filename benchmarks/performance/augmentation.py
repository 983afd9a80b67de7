"""Strong augmentation of a batch: own code for whole batches, MONAI's transforms, and a step of training beside them.

Beside ``strong`` are the presets ``scanner`` and ``bigaug``, by own code alone.

    python -m benchmarks.performance.augmentation --threads 2

The same changes with the same chances and ranges, in one process. The step is in the precision that tasks have by
default, bf16 where the processor multiplies it: there the share of augmentation is largest. With one thread the times
are the processor's, which other work on the machine does not change much; with more they are the clock's. MONAI's are
the list of `transforms`, which a job can name, without MONAI's record of what was done (``set_track_meta(False)``).
MONAI gets batches of the size of the patch, own code larger ones with the margin that it cuts off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from math import pi
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from benchmarks import frame
from fedshift.tasks import networks
from fedshift.tasks.augmentation import Augmentation, Spec, make_augmentation
from fedshift.tasks.losses import make_loss
from fedshift.tasks.precision import autocast, prepare, settled

if TYPE_CHECKING:
    from fedshift.schema.task import Precision

CPU = torch.device("cpu")
BATCHES: Mapping[str, tuple[int, int, tuple[int, ...]]] = {"2D": (16, 3, (128, 128)), "3D": (4, 1, (40, 56, 40))}
"""Samples, channels and patch."""
NETWORKS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "2D": ("unet", {"features": 16}),
    "3D": ("monai.BasicUNet", {"features": [16, 16, 32, 64, 128, 16]}),
}
"""The papers' U-Net as demos have it, and MONAI's ``BasicUNet``."""
CLASSES = 3
SCANNERS = ("scanner", "bigaug")
NEAREST = {"downsample_mode": "nearest-exact"}


def now() -> float:
    """Seconds of the processor with one thread, else of the clock."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def transforms(dims: int) -> list[dict[str, Any]]:
    """The preset ``strong`` as a list of MONAI's transforms (MONAI's blur and low resolution meet all channels)."""
    angles = [pi] if dims == 2 else [pi / 6] * 3
    gamma = {"gamma": [0.7, 1.5], "retain_stats": True}
    entries: list[tuple[str, dict[str, Any]]] = [
        ("RandAffine", {"prob": 0.2, "rotate_range": angles}),
        ("RandAffine", {"prob": 0.2, "scale_range": [[-0.3, 0.4]] * dims}),
        ("RandGaussianNoise", {"prob": 0.1, "std": 0.1}),
        ("RandGaussianSmooth", {"prob": 0.1, "sigma_x": [0.5, 1.0], "sigma_y": [0.5, 1.0], "sigma_z": [0.5, 1.0]}),
        ("RandScaleIntensity", {"prob": 0.15, "factors": 0.25}),
        ("RandScaleIntensityFixedMean", {"prob": 0.15, "factors": 0.25, "preserve_range": True}),
        ("RandSimulateLowResolution", {"prob": 0.125, "zoom_range": [0.5, 1.0], **NEAREST}),
        ("RandAdjustContrast", {"prob": 0.1, "invert_image": True, **gamma}),
        ("RandAdjustContrast", {"prob": 0.3, **gamma}),
        *(("RandFlip", {"prob": 0.5, "spatial_axis": axis}) for axis in range(dims)),
    ]
    return [{"name": f"monai.{name}", "options": options} for name, options in entries]


def augmented(augment: Augmentation, images: Tensor, labels: Tensor, batches: int) -> float:
    """Seconds a batch, over ``batches`` of other seeds."""
    started = now()
    for number in range(batches):
        seeds = torch.arange(len(images), dtype=torch.int64) + 1000 * number
        augment(images, labels, seeds=seeds)
    return (now() - started) / batches


def training(which: str, steps: int, precision: Precision) -> Callable[[], float]:
    """Seconds a step of training."""
    samples, channels, patch = BATCHES[which]
    name, options = NETWORKS[which]
    network = networks.build(name, options, in_channels=channels, n_classes=CLASSES, seed=0, spatial_dims=len(patch))
    net = prepare(network, precision, CPU).train()
    loss = make_loss("monai.DiceCELoss", {}, n_classes=CLASSES)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    images, labels = batch(samples, channels, patch)

    def measure() -> float:
        started = now()
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            with autocast(precision, CPU):
                logits = net(images)
            loss(logits, labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return (now() - started) / steps

    return measure


def batch(samples: int, channels: int, sides: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Noise, and labels that mean nothing."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randn(samples, channels, *sides, generator=rng)
    return images, torch.randint(CLASSES, (samples, *sides), generator=rng)


def measured(which: str, *, batches: int, steps: int, repeats: int, precision: Precision) -> dict[str, Any]:
    """Times and ratios of a kind of batch."""
    samples, channels, patch = BATCHES[which]
    specs: dict[str, Spec] = {"own": "strong", **{name: name for name in SCANNERS}, "monai": transforms(len(patch))}
    measures, margins = {"step": training(which, steps, precision)}, {}
    for name, spec in specs.items():
        augment = make_augmentation(spec, dims=len(patch), patch=patch)
        assert augment is not None
        margins[name] = augment.margin
        sides = tuple(side + more for side, more in zip(patch, augment.margin, strict=True))
        measures[name] = partial(augmented, augment, *batch(samples, channels, sides), batches)
    seconds = frame.in_turn(measures, repeats)
    mine, theirs, step = (seconds[name]["repeats"] for name in ("own", "monai", "step"))
    shares = {
        "monai to own": [b / a for a, b in zip(mine, theirs, strict=True)],
        "own of an epoch": [a / (a + c) for a, c in zip(mine, step, strict=True)],
        "monai of an epoch": [b / (b + c) for b, c in zip(theirs, step, strict=True)],
    }
    for name in SCANNERS:
        times = seconds[name]["repeats"]
        shares[f"{name} to own"] = [b / a for a, b in zip(mine, times, strict=True)]
        shares[f"{name} of an epoch"] = [b / (b + c) for b, c in zip(times, step, strict=True)]
    ratios = {name: _spread(values) for name, values in shares.items()}
    shape = [samples, channels, *patch]
    return {"batch": shape, "margin": margins["own"], "seconds a batch": seconds, "ratios": ratios}


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(round(value, 4) for value in values)
    return {"median": ordered[len(ordered) // 2], "low": ordered[0], "high": ordered[-1]}


def main() -> None:
    parser = frame.parser(__doc__, steps=3, repeats=5, batches=30, threads=1)
    parser.add_argument("--precision", choices=("fp32", "bf16", "auto"), default="auto", help="of the step")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    content: dict[str, Any] = {"threads": asked.threads, "precision": settled(asked.precision, CPU)}
    for which in BATCHES:
        content[which] = measured(
            which, batches=asked.batches, steps=asked.steps, repeats=asked.repeats, precision=asked.precision
        )
        print(which, content[which]["ratios"], flush=True)
    name = "augmentation" if asked.threads == 1 else f"augmentation_{asked.threads}_threads"
    frame.write_measured(name, content, module="augmentation")


if __name__ == "__main__":
    main()
