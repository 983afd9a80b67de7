"""Approximate number of samples that a job uses from a site, estimated from its manifest alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedshift.schema.manifest import Manifest

FOREGROUND = 0.6
"""Assumed fraction of a volume's slices that contain foreground (on which the papers' protocols train)."""
FEWEST = 32
"""Minimum number of training slices when ``data.fraction`` is set."""


def about_counts(manifest: Manifest, data: Mapping[str, Any]) -> dict[str, int]:
    """Estimated number of samples in each split; ``data`` is the ``data`` section of the task."""
    sizes = {"train": 0.0, "val": 0.0, "test": 0.0}
    for case in manifest.cases:
        sizes[case.split] += case.shape[0]
    for picture in manifest.pictures:
        sizes[picture.split] += 1
    if data.get("split") == "slice-legacy":
        every = FOREGROUND * sum(sizes.values())
        sizes = {"train": 0.6 * every, "val": 0.2 * every, "test": 0.2 * every}
    elif data.get("train_slices") == "foreground":
        sizes["train"] *= FOREGROUND
    few = min(sizes["train"], FEWEST) if manifest.cases else 1.0
    sizes["train"] = max(few, sizes["train"] * float(data.get("fraction") or 1.0))
    sizes["train"] = min(sizes["train"], data.get("images") or float("inf"))
    return {"train": max(round(sizes["train"]), 1), "val": round(sizes["val"]), "test": round(sizes["test"])}
