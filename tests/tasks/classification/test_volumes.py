"""Volumes to classify: from a table to a federated model, in 3D, and to a prediction of the same numbers."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
import torch
from errors import raises

from fedshift.cli import main
from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.resolve import resolve
from fedshift.runtime.grids import INNER
from fedshift.schema.job import JobSpec
from fedshift.schema.results import BEST, read_results
from fedshift.tasks.classification.volumes import Volumes
from fedshift.tasks.kinds import build_task

TASK = """
name: breast
kind: classification
dataset: breast
sites: [NORTH, SOUTH]
classes: [benign, malignant]
data: {patch: [8, 16, 16], spacing: [2, 1, 1], sequences: [pre, post]%s}
network: {name: monai.resnet10, options: {widen_factor: 0.125, conv1_t_size: 3, norm: [instance, {affine: true}]}}
loss: ce
optimizer: {name: adam, lr: 0.003}
schedule: {rounds: 6, local_epochs: 4, batch_size: 4, precision: fp32}
"""
GRADES = ", ordinal: true"


def write_case(folder: Path, number: int, *, bright: bool) -> None:
    """A ball in noise, which is bright in the second sequence if it is malignant."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(number)
    shape = (8, 20, 20)
    place = np.indices(shape) - np.array(shape)[:, None, None, None] / 2
    ball = (place**2).sum(0) < 14
    for name, height in (("pre", 80), ("post", 240 if bright else 80)):
        image = sitk.GetImageFromArray((rng.integers(1, 50, shape) + height * ball).astype(np.int16))
        image.SetSpacing((1.0, 1.0, 2.0))
        sitk.WriteImage(image, str(folder / f"{name}.nii.gz"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("volumes")
    (root / "task.yaml").write_text(TASK % GRADES, encoding="utf-8")
    for place, site in enumerate(("NORTH", "SOUTH")):
        lines = ["id,file pre,file post,label,patient"]
        for k in range(20):
            write_case(root / site / f"p{k}", 100 * place + k, bright=bool(k % 2))
            lines.append(f"p{k},p{k}/pre.nii.gz,p{k}/post.nii.gz,{'malignant' if k % 2 else 'benign'},S{k}")
        (root / site / "labels.csv").write_text("\n".join(lines), encoding="utf-8")
        words = ["--table", str(root / site / "labels.csv"), "--task", str(root / "task.yaml"), "--site", site]
        assert main(["data", "prepare", "own", *words, "--out", str(root / "data")]) == 0
    job = resolve(str(root / "task.yaml"), "fedavg")
    data = {site: root / "data" / "breast" / site for site in ("NORTH", "SOUTH")}
    run_in_process(job, data, root / "run")
    return root


def job_of(root: Path, methods: str = "fedavg", *options: str) -> JobSpec:
    return resolve(str(root / "task.yaml"), methods, options=options)


@pytest.mark.slow
def test_a_federated_model_learns_volumes(root: Path) -> None:
    final = read_results(root / "run").final
    assert final is not None
    told = final.best.evaluations["NORTH"]["test"]
    assert told.classes is not None and told.classes["malignant"].positives == 2
    assert all(parts["test"]["accuracy"] == 1 for parts in final.best.sites.values()), "the ball is bright or not"


def test_samples_are_whole_volumes(root: Path) -> None:
    task = build_task(job_of(root))
    data = task.open(root / "data" / "breast" / "NORTH", "NORTH")
    assert isinstance(data, Volumes) and task.spatial == (8, 16, 16)
    x, y = data.train_samples(np.arange(3))
    assert x.shape == (3, 2, 8, 16, 16) and x.dtype == torch.float32 and y.dtype == torch.int64
    batch = data.train_batch(np.arange(3), seeds=torch.zeros(3, dtype=torch.int64))
    assert torch.equal(batch[0], x) and torch.equal(batch[1], y)
    folds = [
        task_at.open(root / "data" / "breast" / "NORTH", "NORTH").members("test")
        for task_at in (build_task(job_of(root, "fedavg", f"data.fold={fold}")) for fold in range(1, 6))
    ]
    assert sorted(np.concatenate(folds)) == list(range(20))


@pytest.mark.parametrize("methods", ["fedfa", "fedproto", "moon", "mixup", "fedrdn", "harmofl", "fedsr", "moex"])
def test_methods_train_in_3d(methods: str, root: Path, tmp_path: Path) -> None:
    data = {site: root / "data" / "breast" / site for site in ("NORTH", "SOUTH")}
    job = job_of(root, methods, "schedule.rounds=2", "schedule.local_epochs=1")
    results = run_in_process(job, data, tmp_path).results
    assert all(site.steps > 0 for record in results.rounds for site in record.sites.values())


def test_histogram_landmarks_of_whole_volumes_make_a_standard_and_predict_alike(root: Path, tmp_path: Path) -> None:
    """The ball's volume is a small part of the histogram, so the classes stay apart."""
    data = {site: root / "data" / "breast" / site for site in ("NORTH", "SOUTH")}
    job = job_of(root, "landmarks", "data.normalise=landmarks", "schedule.rounds=1", "schedule.local_epochs=1")
    run_in_process(job, data, tmp_path / "run")
    file = read_model_file(tmp_path / "run" / BEST)
    opened = [build_task(job).open(folder, site).landmarks for site, folder in data.items()]
    assert [part.shape for part in opened] == [(12, 2, INNER)] * 2
    standard = file["methods"]["landmarks"]["standard"].numpy()
    np.testing.assert_allclose(standard, np.concatenate(opened).mean(0), rtol=1e-12)
    words = [str(root / "NORTH" / "p1"), "--out", str(tmp_path / "out")]
    assert main(["predict", str(tmp_path / "run" / BEST), *words]) == 0


def test_a_volume_is_predicted_as_it_was_prepared(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [str(root / "NORTH" / "p1"), str(root / "SOUTH" / "p4"), "--out", str(out), "--overlay"]
    assert main(["predict", str(root / "run" / BEST), *words]) == 0
    with (out / "predictions.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == ["malignant", "benign"]
    record = json.loads((out / "predictions.json").read_text(encoding="utf-8"))
    assert all((out / entry["written"]["saliency"]).is_file() for entry in record["images"])


def test_what_does_not_fit_volumes_is_refused(root: Path) -> None:
    with raises("network-dims", naming="monai.DenseNet121"):
        job_of(root, "fedavg", "network={name: resnet18}")
    with raises("unknown-key", naming="size"):
        job_of(root, "fedavg", "data.size=32")
    with raises("sequence-unknown", naming="T3"):
        build_task(job_of(root, "fedavg", "data.sequences=[T3]")).open(root / "data" / "breast" / "NORTH", "NORTH")
