"""Volumes are classified in 3D: samples of one size, augmentation in training alone, findings and folds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from errors import raises
from labelledfiles import write_table

from data_prep.own_labels import prepare_labelled
from fedshift.data.draws import sample_seeds
from fedshift.federation.resolve import misfits, resolve
from fedshift.schema.job import JobSpec
from fedshift.tasks.classification.task import Task

TASK: dict[str, Any] = {
    "name": "breast",
    "kind": "classification",
    "dataset": "breast",
    "sites": ["NORTH"],
    "classes": ["benign", "malignant"],
    "data": {"patch": [6, 16, 16], "spacing": [2, 1, 1], "sequences": ["pre", "post"]},
    "network": {"name": "monai.DenseNet121", "options": {"init_features": 4, "growth_rate": 4, "block_config": [1]}},
    "loss": "ce",
    "optimizer": {"name": "adam", "lr": 0.001},
    "schedule": {"rounds": 1, "local_steps": 1, "batch_size": 4},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("breast")
    table = write_table(folder / "raw", 20)
    prepare_labelled(table, "NORTH", folder, dataset="breast", classes=TASK["classes"], wanted=("pre", "post"))
    return folder


def job(folder: Path, **data: object) -> JobSpec:
    (folder / "task.yaml").write_text(yaml.safe_dump(TASK | {"data": TASK["data"] | data}), encoding="utf-8")
    return resolve(str(folder / "task.yaml"), "fedavg")


def test_samples_are_of_one_size_and_only_training_changes_them(root: Path, tmp_path: Path) -> None:
    plain, changed = (
        Task(job(tmp_path, augmentation=name)).open(root / "breast" / "NORTH", "NORTH") for name in ("none", "light")
    )
    index = np.arange(4)
    seeds = sample_seeds(0, torch.from_numpy(index))
    assert torch.equal(plain.images(index), changed.images(index)), "what is scored has no margin"
    x, y = plain.train_batch(index, seeds=seeds)
    moved, same = changed.train_batch(index, seeds=seeds)
    assert x.shape == moved.shape == (4, 2, 6, 16, 16) and torch.equal(y, same)
    assert not torch.equal(x, moved) and moved.std() > 0.5
    idle = Task(job(tmp_path, augmentation="light", augmentation_only=["mirror"], mirror=[])).open(
        root / "breast" / "NORTH", "NORTH"
    )
    assert torch.equal(idle.train_batch(index, seeds=seeds)[0], x), "mirrored along no axis"
    again, _ = changed.train_batch(index[2:3], seeds=seeds[2:3])
    assert torch.equal(again, moved[2:3]), "a sample depends on its own seed"
    assert len(set(plain.subjects_of(plain.members("all")).tolist())) == 10


def test_the_network_is_in_3d_and_learns_what_it_is_given(root: Path, tmp_path: Path) -> None:
    task = Task(job(tmp_path, sampling="balanced"))
    data, net = task.open(root / "breast" / "NORTH", "NORTH"), task.network()
    x, y = data.samples(np.arange(4), "train")
    assert task.spatial == (6, 16, 16) and net(x).shape == (4, 2)
    task.loss(net(x), y).backward()
    assert data.draw_weights is not None
    folds = [Task(job(tmp_path, fold=k)).open(root / "breast" / "NORTH", "NORTH").members("test") for k in range(1, 6)]
    assert sorted(np.concatenate(folds).tolist()) == list(range(20))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ({"multi_label": True}, "other-labels"),
        ({"sequences": ["pre", "late"]}, "sequence-unknown"),
        ({"sequences": []}, "sequence-unnamed"),
    ],
)
def test_a_site_that_does_not_fit_is_refused(data: dict[str, Any], code: str, root: Path, tmp_path: Path) -> None:
    with raises(code, naming="NORTH"):
        Task(job(tmp_path, **data)).open(root / "breast" / "NORTH", "NORTH")


def test_a_finding_that_no_site_knows_of_is_said_when_the_job_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_table(tmp_path / "raw", 6)
    lines = table.read_text(encoding="utf-8").replace(",label,", ",benign,").replace("Benign", "1")
    table.write_text(lines.replace("malignant", "0"), encoding="utf-8")
    options = {"classes": TASK["classes"], "findings": True, "wanted": ("pre", "post")}
    prepare_labelled(table, "NORTH", tmp_path, dataset="breast", **options)  # type: ignore[arg-type]
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path))
    (said,) = misfits(job(tmp_path, multi_label=True))
    assert "malignant" in said and "benign" not in said.split(":")[0]
