"""Every method on every kind of task, found by file name, and the combinations that the papers report."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from conftest import small_image_job, small_job

from fedshift.methods import method_set
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec

ROUNDS = {"segmentation": 2, "classification": 3}
KINDS = {"segmentation": small_job, "classification": small_image_job}
SMALLER = {"segmentation": (), "classification": ("network.options.width=2",)}

# FedRDN's Table 1 and 2, FedFA's Table 6, and the augmentation paper's tables.
REPORTED = [
    *(
        f"{other}+fedrdn"
        for other in ("fedavg", "fedavgm", "fedprox", "scaffold", "fednova", "fedbn", "fedproto", "fedfa")
    ),
    *(
        f"{other}+fedmix"
        for other in ("fedavg", "fedavgm", "fedprox", "scaffold", "fednova", "fedbn", "fedproto", "fedfa")
    ),
    *(f"fedfa+{other}" for other in ("mixup", "manifold_mixup", "mixstyle", "moex")),
    *(f"augmentation+{other}" for other in ("afl", "gen_afl", "vm", "fedprox")),
]
BESIDE = ["fedawa+fedper", "fedbn+fedce", "fedfa+feddg_ga", "fedheal+fedrdn", "fedlws+silobn", "fedomg+fedprox"]
"""Server rules beside a method at the sites that keeps parts, changes features or images, or the loss."""

REFUSED = {(name, "segmentation") for name in ("fedproto", "fedrod", "fedsr", "fpl", "fraug", "moon")}
"""(method, kind): a segmentation network has no embedding of an image."""
REFUSED |= {("landmarks", kind) for kind in KINDS}  # slices and pictures have no landmarks; its own test has volumes


@cache
def job_for(names: str, kind: str) -> JobSpec:
    """A small job with these methods, with SGD if they require it."""
    options = (f"schedule.rounds={ROUNDS[kind]}", *SMALLER[kind])
    try:
        return KINDS[kind](names, *options)
    except ConfigError as error:
        if error.code != "method-needs" or "optimizer.name=sgd" not in str(error):
            raise
        return KINDS[kind](names, *options, "optimizer.name=sgd", "optimizer.lr=0.02", "optimizer.weight_decay=0")


def cases() -> Iterator[tuple[str, str]]:
    """(methods, kind of task)."""
    for names in (*method_set.available(), *REPORTED, *BESIDE):
        for kind in KINDS:
            if not REFUSED & {(name, kind) for name in names.split("+")}:
                yield names, kind
