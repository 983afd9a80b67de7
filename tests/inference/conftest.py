"""Model files that are made in no time, and scans on which a network's answer is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK as sitk
import torch
from conftest import make_site, small_job
from scanfiles import volume

from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file, write_model_file
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.tensors import read_weights
from fedshift.schema.job import JobSpec
from fedshift.schema.results import LAST
from fedshift.tasks.kinds import build_task

BALL: dict[str, Any] = {"size": (50, 45, 13), "spacing": (0.7, 0.8, 3.0), "radius": 11.0, "target": (2.0, -3.0, 1.0)}
"""Odd, not square, anisotropic: a bright ball in the dark, for `scanfiles.volume`."""


def bright(x: torch.Tensor) -> torch.Tensor:
    """A network that finds what is bright: (B, 3, M, M) in [0, 1] to logits (B, 2, M, M)."""
    level = 20 * (x[:, 1] - 0.5)
    return torch.stack([-level, level], 1)


def save_model(path: Path, job: JobSpec, weights: dict[str, np.ndarray] | None = None, **changes: Any) -> Path:
    """A model file of a job: initial weights, simulated data, no arrays of methods."""
    fields: dict[str, Any] = {
        "job": job,
        "round_": 1,
        "weights": weights or read_weights(build_task(job).network()),
        "methods": {},
        "personal": [],
        "scores": {"val_dice": 0.5},
        "kind": "phantom",
        "sites": job.task.sites,
        "lineage": {},
        "statistics": job.task.sites,
        "initial_weights": "from scratch",
    }
    write_model_file(path, **(fields | changes))
    return path


def brightness_model(path: Path, *, matrix: int = 64, scale: float = 1.0) -> Path:
    """A U-Net whose weights let the brightness of the middle slice through, as `bright` does."""
    job = small_job("fedavg", f"data.matrix={matrix}", f"data.scale={scale}")
    weights = {key: np.zeros_like(value) for key, value in read_weights(build_task(job).network()).items()}
    for key, value in weights.items():
        if key.endswith("running_var"):
            value[:] = 1
    # Along the skip connection of the first stage: image, convolutions, logits; batch norms only pass on.
    for conv, norm, source in (
        ("encoder1.enc1_conv1", "encoder1.enc1_bn1", 1),
        ("encoder1.enc1_conv2", "encoder1.enc1_bn2", 0),
        ("decoder1.dec1_conv1", "decoder1.dec1_bn1", 4),
        ("decoder1.dec1_conv2", "decoder1.dec1_bn2", 0),
    ):
        weights[f"{conv}.weight"][0, source, 1, 1] = 1
        weights[f"{norm}.weight"][0] = 1
    weights["conv.weight"][:, 0, 0, 0] = (-20 / scale, 20 / scale)
    weights["conv.bias"][:] = (10, -10)
    return save_model(path, job, weights)


def write_ball(path: Path, **options: Any) -> sitk.Image:
    """The scan of `BALL` in any format; returns its mask."""
    image, mask = volume(**(BALL | options))
    path.parent.mkdir(parents=True, exist_ok=True)
    sitk.WriteImage(image, str(path))
    return mask


def dice(one: np.ndarray, other: np.ndarray) -> float:
    return float(2 * np.sum((one > 0) & (other > 0)) / (np.sum(one > 0) + np.sum(other > 0)))


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("sites")
    shifts = {"BIDMC": (1.0, 0.0), "HK": (0.5, 20.0), "UCL": (1.4, -30.0)}
    return {s: make_site(root, s, gain=g, offset=o) for s, (g, o) in shifts.items()}


Run = Callable[..., tuple[Path, Coordinator]]


@pytest.fixture(scope="session")
def trained(sites: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs of one round, each made once: the last model's file, and the server."""
    done: dict[tuple[str, ...], tuple[Path, Coordinator]] = {}

    def run(methods: str, *options: str) -> tuple[Path, Coordinator]:
        key = (methods, *options)
        if key not in done:
            torch.set_num_threads(1)
            folder = tmp_path_factory.mktemp("run")
            done[key] = folder / LAST, run_in_process(small_job(methods, "schedule.rounds=1", *options), sites, folder)
        return done[key]

    return run


def content(path: Path, drop: Sequence[str] = ()) -> dict[str, Any]:
    return {key: value for key, value in read_model_file(path).items() if key not in drop}
