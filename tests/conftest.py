"""Shared fixtures: golden numbers, real data where it is present, and small sites made on the spot."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from fedshift.data.manifest import Manifest
from fedshift.job import JobSpec
from fedshift.resolve import resolve

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Results depend on the number of threads; every test uses one, as jobs do."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with real images, for tests that need them."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("FEDSHIFT_SHARED_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: set FEDSHIFT_SHARED_DATA to a folder that holds prostate_mri/")
    return folder


def golden(name: str) -> dict[str, np.ndarray]:
    """Arrays of a golden file."""
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def rule_weights(net: torch.nn.Module) -> None:
    """Fill parameters by the rule of the golden files, so that weights need not be stored."""
    with torch.no_grad():
        for i, (name, parameter) in enumerate(net.named_parameters()):
            k = torch.arange(parameter.numel(), dtype=torch.float64)
            v = torch.sin(0.7 * k + 1.3 * i + 0.5).reshape(parameter.shape)
            if parameter.dim() > 1:
                v = v * 2 / np.sqrt(parameter[0].numel())
            else:
                v = 1 + 0.1 * v if name.endswith("weight") else 0.1 * v
            parameter.copy_(v)


def make_site(
    root: Path,
    site: str,
    *,
    seed: int = 0,
    cases: int = 4,
    depth: int = 8,
    matrix: int = 32,
    gain: float = 1.0,
    offset: float = 0.0,
) -> Path:
    """A prepared site of bright blobs on noise, written straight as cached arrays; shifted by gain and offset."""
    rng = np.random.default_rng([seed, sum(site.encode())])
    folder = root / "prostate" / site
    y, x = np.mgrid[:matrix, :matrix]
    images, labels, records = [], [], []
    splits = ["train"] * (cases - 2) + ["val", "test"] if cases > 2 else ["train"] * cases
    for number in range(cases):
        centre = rng.uniform(0.35, 0.65, 2) * matrix
        for z in range(depth):
            radius = matrix * 0.22 * np.sin(np.pi * (z + 0.01) / (depth - 1)) * rng.uniform(0.9, 1.1)
            mask = ((y - centre[0]) ** 2 + (x - centre[1]) ** 2 < radius**2).astype(np.uint8)
            image = 60 + 80 * mask + rng.normal(0, 12, mask.shape)
            images.append(np.clip(gain * image + offset, 0, 255).astype(np.uint8))
            labels.append(mask)
        records.append(
            {
                "id": f"Case{number:02d}",
                "sha256_image": f"{site}-image-{number}",
                "sha256_label": f"{site}-label-{number}",
                "split": splits[number],
                "shape": (depth, matrix, matrix),
                "spacing": (3.0, 1.0, 1.0),
                "direction": (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0),
                "array": "arrays",
                "offset": number * depth,
            }
        )
    arrays = folder / "arrays" / str(matrix)
    arrays.mkdir(parents=True)
    np.save(arrays / "images.npy", np.stack(images))
    np.save(arrays / "labels.npy", np.stack(labels))
    Manifest.parse(
        {
            "schema": 1,
            "dataset": "prostate",
            "site": site,
            "kind": "phantom",
            "preparation": {"source": "made by the tests"},
            "classes": ["background", "prostate"],
            "cases": records,
            "licence": "Apache-2.0",
            "citation": "none",
        },
        where="test site",
    ).write(folder)
    return folder


SMALL = (
    "data.matrix=32",
    "network.options.features=4",
    "schedule.batch_size=8",
    "schedule.local_epochs=1",
    "schedule.rounds=2",
    "schedule.precision=fp32",
)
"""Options that make the prostate task fit the sites of `make_site`."""


@pytest.fixture
def three_sites(tmp_path: Path) -> dict[str, Path]:
    """Sites whose images differ in gain and offset."""
    shifts = {"BIDMC": (1.0, 0.0), "HK": (0.5, 20.0), "UCL": (1.4, -30.0)}
    return {s: make_site(tmp_path / "data", s, gain=g, offset=o) for s, (g, o) in shifts.items()}


def small_job(methods: str, *options: str, sites: Sequence[str] = ("BIDMC", "HK", "UCL"), seed: int = 0) -> JobSpec:
    """A job on the sites of `make_site` that trains in a second or two."""
    return resolve("prostate", methods, sites=sites, options=(*SMALL, *options), seed=seed)
