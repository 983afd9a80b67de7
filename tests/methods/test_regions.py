"""Every method that segments, on regions that overlap with voxels to ignore: it trains, or is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from errors import raises
from volumesites import make_volume_site

from fedshift.data.prepared import mask_file, read_labels
from fedshift.data.scans import read_scan
from fedshift.federation.in_process import run_in_process, run_pooled
from fedshift.federation.resolve import resolve
from fedshift.inference.masks import write_mask
from fedshift.methods import method_set
from fedshift.runtime.regions import IGNORED
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import read_manifest

from .cases import REFUSED

TASK = """
name: blobs
kind: segmentation
dataset: blobs
sites: [A, B]
classes: [background, left, right]
data: {dims: 2, patch: [16, 16], samples_per_case: 4}
network: {name: unet, options: {features: 4}}
loss: monai.DiceCELoss
optimizer: {name: sgd, lr: 0.05, keep: false}
schedule: {rounds: 2, local_epochs: 1, batch_size: 4}
"""
REGIONS = "regions: {both: [left, right], right: [right]}\n"
IGNORE = "ignore: true\n"


def job_of(folder: Path, name: str, more: str) -> JobSpec:
    (folder / "task.yaml").write_text(TASK + more, encoding="utf-8")
    options = ["feddg_ga.variant=released"] if name == "feddg_ga" else []  # the paper's has three sites at least
    return resolve(str(folder / "task.yaml"), name, options=options, seed=1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two sites whose masks have voxels to ignore."""
    sites = {}
    for site in "AB":
        folder = make_volume_site(tmp_path_factory.mktemp("data"), site, gain=1.0 + (site == "B"))
        manifest = read_manifest(folder)
        for case in manifest.cases:
            path = mask_file(folder, case.id)
            labels, scan = read_labels(folder, case), read_scan(path)
            labels[:, :5] = IGNORED
            path.unlink()
            write_mask(labels, scan, path, source=Path("none.nrrd"))
        manifest.model_copy(update={"ignore": True}).write(folder)
        sites[site] = folder
    return sites


@pytest.mark.parametrize("name", [n for n in method_set.available() if (n, "segmentation") not in REFUSED])
def test_a_method_trains_on_regions_or_is_refused(name: str, data: dict[str, Path], tmp_path: Path) -> None:
    if name == "fedmix":
        for more in (REGIONS, IGNORE):
            with raises("method-needs", naming=name):
                job_of(tmp_path, name, more)
        return
    torch.set_num_threads(1)
    job = job_of(tmp_path, name, REGIONS + IGNORE)
    pooled = method_set.pooled_reference(job.methods)
    results = (run_pooled if pooled else run_in_process)(job, data, tmp_path / "run").results
    told = [site for record in results.rounds for site in record.sites.values()]
    assert told and all(site.train_loss is not None and np.isfinite(site.train_loss) for site in told)
    assert results.final is not None
    scores = [splits["test"] for splits in results.final.last.sites.values()]
    assert all({"dice both", "dice right"} <= score.keys() | {"dice right"} for score in scores)
    assert all(np.isfinite(value) for score in scores for value in score.values())
