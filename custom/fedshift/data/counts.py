"""Approximate number of samples that a job uses from a site, estimated from its manifest alone."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod
from typing import Any, get_args

from fedshift.data.splits import case_splits, split_by_content
from fedshift.runtime.grids import shape_at
from fedshift.schema.manifest import Manifest, Split

FOREGROUND = 0.6
"""Assumed fraction of a volume's slices that contain foreground (on which the papers' protocols train)."""
SAMPLES_PER_CASE = 2
"""Default of ``data.samples_per_case``."""
STEP = 0.75
"""From one window to the next, as a part of a window, when rounds are scored."""
FEWEST = 32
"""Minimum number of training slices when ``data.fraction`` is set."""


def used_pictures(
    sizes: Mapping[Split, int], *, fraction: float, of_site: bool, images: int | None
) -> dict[Split, int]:
    """Number of pictures that a job uses of each split.

    Args:
        sizes: the pictures in each split.
        fraction: of the training pictures; or of all pictures, with ``of_site``, which cuts validation as well.
        of_site: see ``fraction``.
        images: at most that many training pictures.
    """
    kept = dict(sizes)
    whole = sum(sizes.values()) if of_site else sizes["train"]
    kept["train"] = min(sizes["train"], max(1, round(fraction * whole)), images or sizes["train"])
    if of_site and sizes["val"]:
        kept["val"] = max(1, round(fraction * sizes["val"]))
    return kept


def about_counts(manifest: Manifest, data: Mapping[str, Any]) -> dict[str, int]:
    """Estimated number of samples in each split; ``data`` is the ``data`` section of the task. Exact for pictures.

    Of patches: those of an epoch, and the windows that evaluation slides over.
    """
    if manifest.pictures:
        splits = [picture.split for picture in manifest.pictures]
        if data.get("shares"):
            splits = split_by_content(manifest.pictures, data["shares"]).tolist()
        used = used_pictures(
            {split: splits.count(split) for split in get_args(Split)},
            fraction=float(data.get("fraction") or 1.0),
            of_site=data.get("fraction_of") == "site",
            images=data.get("images"),
        )
        return {split: max(n, split == "train") for split, n in used.items()}
    if data.get("patch"):
        return _patches(manifest, data)
    sizes = {"train": 0.0, "val": 0.0, "test": 0.0}
    for case, split in zip(manifest.cases, _splits(manifest, data), strict=True):
        sizes[split] += case.shape[0]
    if data.get("split") == "slice-legacy":
        every = FOREGROUND * sum(sizes.values())
        sizes = {"train": 0.6 * every, "val": 0.2 * every, "test": 0.2 * every}
    elif data.get("train_slices") == "foreground":
        sizes["train"] *= FOREGROUND
    few = min(sizes["train"], FEWEST)
    sizes["train"] = max(few, sizes["train"] * float(data.get("fraction") or 1.0))
    return {"train": max(round(sizes["train"]), 1), "val": round(sizes["val"]), "test": round(sizes["test"])}


def _splits(manifest: Manifest, data: Mapping[str, Any]) -> list[Split]:
    return case_splits(manifest.cases, site=manifest.site, fold=data.get("fold"))


def _patches(manifest: Manifest, data: Mapping[str, Any]) -> dict[str, int]:
    patch = list(data["patch"])
    window = [1] * (3 - len(patch)) + patch
    counts = {"train": 0, "val": 0, "test": 0}
    for case, split in zip(manifest.cases, _splits(manifest, data), strict=True):
        if split == "train":
            counts["train"] += int(data.get("samples_per_case") or SAMPLES_PER_CASE)
            continue
        shape = shape_at(case.shape, manifest.known_spacing(case), data.get("spacing"), data.get("matrix"))
        steps = [ceil(max(size - side, 0) / (STEP * side)) for size, side in zip(shape, window, strict=True)]
        counts[split] += prod(step + 1 for step in steps)
    return {**counts, "train": max(counts["train"], 1)}
