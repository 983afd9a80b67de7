"""Federations on patches of volumes: from NIfTI files to scores by class, in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from volumesites import make_volume_site

from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.resolve import resolve
from fedshift.schema.results import LAST, Results

TASK = """
name: blobs
kind: segmentation
dataset: blobs
sites: [A, B]
classes: [background, left, right]
data: {DATA}
network:
  name: monai.DynUNet
  options:
    kernel_size: [3, 3, 3]
    strides: [1, 2, 2]
    upsample_kernel_size: [2, 2]
    filters: [8, 16, 16]
    deep_supervision: true
    deep_supr_num: 1
loss: {name: monai.DiceCELoss, options: {batch: true}}
optimizer: {name: adam, lr: 0.01}
schedule: {rounds: 3, local_epochs: 2, batch_size: 2}
"""
IN_3D = "{dims: 3, patch: [16, 16, 16], spacing: [1.5, 1.2, 1.2], samples_per_case: 4, augmentation: light}"
IN_2D = "{dims: 2, patch: [16, 16], context: 3, samples_per_case: 6, normalise: percentile}"


@pytest.fixture
def sites(tmp_path: Path) -> dict[str, Path]:
    return {
        "A": make_volume_site(tmp_path, "A"),
        "B": make_volume_site(tmp_path, "B", gain=3.0, offset=100.0, shape=(14, 24, 24), spacing=(1.5, 0.9, 1.1)),
    }


def run(folder: Path, sites: dict[str, Path], methods: str, data: str, *options: str) -> tuple[Results, dict]:
    folder.mkdir()
    (folder / "task.yaml").write_text(TASK.replace("{DATA}", data), encoding="utf-8")
    job = resolve(str(folder / "task.yaml"), methods, options=options, seed=1)
    outcome = run_in_process(job, sites, folder / "run")
    return outcome.results, read_model_file(folder / "run" / LAST)["weights"]


@pytest.mark.slow
@pytest.mark.parametrize(("methods", "data"), [("fedavg", IN_3D), ("fedfa", IN_3D), ("fedavg", IN_2D)])
def test_a_federation_learns_two_classes_and_gives_the_same_bits_again(
    tmp_path: Path, sites: dict[str, Path], methods: str, data: str
) -> None:
    results, weights = run(tmp_path / "1", sites, methods, data)
    again, same = run(tmp_path / "2", sites, methods, data)
    assert all(torch.equal(weights[key], same[key]) for key in weights)
    scores = results.final.best.sites["A"]["test"]
    assert scores == again.final.best.sites["A"]["test"]
    assert scores["dice"] == pytest.approx((scores["dice left"] + scores["dice right"]) / 2)
    assert scores["dice"] > 0.3
    assert {"hd95", "asd left", "surface_dice right", "volume_difference"} <= set(scores)
