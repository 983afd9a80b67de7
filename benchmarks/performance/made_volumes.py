"""Volumes that are made up, in the Decathlon's layout, and a model that was never trained: for measurements of time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import nibabel
import numpy as np

from data_prep.hippocampus import CLASSES, plan_volumes
from data_prep.volumes import write_volumes
from fedshift.federation.model_files import write_model_file
from fedshift.federation.tensors import read_weights
from fedshift.schema.job import JobSpec
from fedshift.tasks.kinds import build_task

SHAPE = (36, 50, 35)
"""Voxels along x, y, z of a volume of the hippocampus task, which differ by a few."""


def write_source(folder: Path, *, cases: int) -> Path:
    """Volumes of 1 mm voxels with two classes."""
    for name in ("imagesTr", "labelsTr"):
        (folder / name).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(cases):
        shape = tuple(int(side) for side in rng.integers(-3, 4, 3) + SHAPE)
        write_case(folder, f"hippocampus_{number:03d}", shape, rng)
    labels = {str(number): name for number, name in enumerate(CLASSES)}
    described = {"name": "Hippocampus", "modality": {"0": "MRI"}, "labels": labels}
    (folder / "dataset.json").write_text(json.dumps(described), encoding="utf-8")
    return folder


def write_case(folder: Path, case: str, shape: Sequence[int], rng: np.random.Generator) -> Path:
    """One volume (x, y, z) in ``imagesTr`` and its mask; returns the image."""
    grid = np.stack(np.meshgrid(*(np.linspace(-1, 1, side) for side in shape), indexing="ij"))
    labels = np.zeros(tuple(shape), np.uint8)
    for number, y in ((1, 0.35), (2, -0.35)):
        centre = np.array([0, y, 0]) + rng.uniform(-0.1, 0.1, 3)
        labels[(((grid.T - centre) / (0.35, 0.3, 0.35)) ** 2).sum(-1).T < 1] = number
    image = (100 + np.array([0, 40, 70])[labels] + rng.normal(0, 12, tuple(shape))).astype(np.float32)
    path = folder / "imagesTr" / f"{case}.nii.gz"
    for voxels, at in ((image, path), (labels, folder / "labelsTr" / f"{case}.nii.gz")):
        at.parent.mkdir(parents=True, exist_ok=True)
        nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), at)
    return path


AS_MEASURED = (
    "network.name=monai.BasicUNet",
    "network.options={features: [16, 16, 32, 64, 128, 16]}",
    "evaluation.mirror=false",
)
"""Options of the hippocampus task with which its figures were measured; the task has others today."""


def hippocampus_sites(root: Path, *, cases: int) -> Path:
    """The four simulated sites of so many volumes: the folder with a folder for each."""
    write_volumes(plan_volumes(write_source(root / "source", cases=cases), simulate=True), root / "prepared")
    return root / "prepared" / "hippocampus_simulated"


def untrained_model(path: Path, job: JobSpec) -> Path:
    """A model file with a job's initial weights."""
    write_model_file(
        path,
        job=job,
        round_=1,
        weights=read_weights(build_task(job).network()),
        methods={},
        personal=[],
        scores={},
        kind="phantom",
        sites=job.task.sites,
        lineage={},
        statistics=job.task.sites,
        initial_weights="from scratch",
    )
    return path
