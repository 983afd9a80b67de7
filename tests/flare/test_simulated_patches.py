"""Patches with random places and augmentation give the same weights in FLARE's simulator as in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from modelfiles import assert_same_weights
from volumesites import make_volume_site

from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.flare.export import write_job
from fedshift.flare.simulate import simulate
from fedshift.schema.results import BEST, LAST

TASK = """
name: blobs
kind: segmentation
dataset: blobs
sites: [A, B]
classes: [background, left, right]
data: {patch: [8, 16, 16], spacing: [2.0, 1.2, 1.2], samples_per_case: 3, augmentation: strong}
network:
  name: monai.DynUNet
  options: {kernel_size: [3, 3, 3], strides: [1, 2, 2], upsample_kernel_size: [2, 2], filters: [4, 4, 4]}
loss: monai.DiceCELoss
optimizer: {name: adam, lr: 0.01}
schedule: {rounds: 2, batch_size: 3}
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("methods", "options"),
    [("fedfa+fedrdn", ()), ("fedfa+landmarks", ("data.normalise=landmarks", "data.bias_field=n4"))],
)
def test_the_simulator_gives_the_same_weights(
    methods: str, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = {site: make_volume_site(tmp_path / "data", site, cases=5, gain=g) for site, g in (("A", 1.0), ("B", 3.0))}
    (tmp_path / "task.yaml").write_text(TASK, encoding="utf-8")
    job = resolve(str(tmp_path / "task.yaml"), methods, options=options, seed=1)
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDSHIFT_DEVICE", "cpu")
    write_job(job, tmp_path / "job")
    run = simulate(job, tmp_path / "job", tmp_path / "workspace", parallel=2, ignore_memory=True)
    run_in_process(job, sites, tmp_path / "run", device="cpu")
    for name in (BEST, LAST):
        assert_same_weights(run.server / name, tmp_path / "run" / name)
