"""Figures of the page on nnU-Net."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from results_files import link, load, table

DATA = {"hippocampus": "hippocampus (real, one voxel size)", "phantom": "phantom of the prostate in 3D (resampled)"}
PLANS = ("prostate_phantom", "hippocampus_simulated")
WAYS = ("added up", "averaged", "all cases")


def masks() -> str:
    """How many voxels differ, and with what precision."""
    rows = []
    for name, called in DATA.items():
        record = load(f"nnunet/masks_{name}")
        rows.append(
            (called, record["cases"], f"{record['voxels']:,}", record["different"], f"{100 * record['share']:.4f} %")
        )
    single = load("nnunet/masks_hippocampus")["in single precision"]
    shown = table(("scans", "cases", "voxels", "other class", "share"), rows)
    links = " and ".join(link(f"nnunet/masks_{name}.json", name) for name in DATA)
    return (
        f"{shown}\n\nWith logits assembled in single precision there too, {single['different']} of the hippocampus's "
        f"{single['voxels']:,} voxels differ: rounding is all the difference. Figures and commands: {links}."
    )


def fingerprints() -> str:
    """The plan of each way, by data set."""
    rows = []
    for name in PLANS:
        record = load(f"pooled_fingerprints/{name}")
        for way in WAYS:
            each = record[way]
            rows.append((name.replace("_", ", "), way, _size(each, "spacing"), _size(each, "patch"), *_inside(each)))
    head = ("sites", "fingerprints", "spacing in mm", "patch", "mean", "standard deviation", "0.5 %", "99.5 %")
    links = " and ".join(link(f"pooled_fingerprints/{name}.json", name.replace("_", ", ")) for name in PLANS)
    return f"{table(head, rows, words=4)}\n\nFigures and commands: {links}."


def _size(each: Mapping[str, Any], key: str) -> str:
    return " x ".join(f"{value:g}" for value in each[key]) if key in each else "–"


def _inside(each: Mapping[str, Any]) -> list[str]:
    return [f"{each['intensities'][key]:,.0f}" for key in ("mean", "std", "0.5 %", "99.5 %")]
