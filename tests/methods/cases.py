"""Every method on every kind of task, found by file name, and the combinations that the papers report."""

from __future__ import annotations

from collections.abc import Iterator

from fedshift.methods import method_set
from fedshift_testing.jobs import KINDS

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


def cases() -> Iterator[tuple[str, str]]:
    """(methods, kind of task)."""
    for names in (*method_set.available(), *REPORTED, *BESIDE):
        for kind in KINDS:
            if not REFUSED & {(name, kind) for name in names.split("+")}:
                yield names, kind
