"""A small model of bright balls, and scans of another hospital whose tones are on another curve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
import torch
from conftest import small_job
from scanfiles import volume

from fedshift.data.layouts.find import gather
from fedshift.federation.tensors import read_weights
from fedshift.inference import scoring
from fedshift.inference.adaptation import fine_tuning
from fedshift.inference.adaptation.fine_tuning import LabelledCases, Setting, fine_tune, open_cases
from fedshift.inference.model import open_model
from fedshift.inference.ready import Choice, ReadyModel, make_ready

from ..conftest import save_model

Curve = Callable[[np.ndarray], np.ndarray]


def as_they_are(x: np.ndarray) -> np.ndarray:
    return x


def washed_out(x: np.ndarray) -> np.ndarray:
    """From 0 to 1: the dark becomes nearly as bright as the bright."""
    return np.asarray(x**0.15)


def write_scans(folder: Path, n: int, curve: Curve = as_they_are, *, first: int = 0) -> Path:
    """``images`` and ``masks`` of balls in noise, of the same names; returns the folder."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(first, first + n):
        image, mask = volume(number, size=(32, 32, 8), spacing=(1.2, 1.2, 3.0), radius=7.5)
        voxels = sitk.GetArrayFromImage(image).astype(np.float32)
        low, high = voxels.min(), voxels.max()
        made = sitk.GetImageFromArray((1000 * curve((voxels - low) / (high - low))).astype(np.float32))
        made.CopyInformation(image)
        sitk.WriteImage(made, str(folder / "images" / f"case{number:02d}.nii.gz"))
        sitk.WriteImage(mask, str(folder / "masks" / f"case{number:02d}.nii.gz"))
    return folder


def keep_slices(mask: Path, kept: slice) -> None:
    """Empty all other slices of a mask."""
    image = sitk.ReadImage(str(mask))
    voxels = np.zeros_like(sitk.GetArrayViewFromImage(image))
    voxels[kept] = 1
    made = sitk.GetImageFromArray(voxels)
    made.CopyInformation(image)
    sitk.WriteImage(made, str(mask))


def opened(model: Path, folder: Path, root: Path) -> tuple[ReadyModel, LabelledCases]:
    """A model, and a folder's labelled cases for it; ``root`` is for their arrays."""
    made = open_model(model)
    sets = gather(images=folder / "images", masks=folder / "masks", source=None)
    cases = scoring.labelled_cases(made, sets, labels={"prostate": [1]}, annotated=None)
    given = open_cases(made, cases, scoring.subjects_of(sets), root, true_spacing=False)
    return make_ready(made, Choice(), device="cpu"), given


def mean_dice(model: Path, folder: Path, root: Path) -> float:
    ready, given = opened(model, folder, root)
    return float(np.mean(list(given.dice(ready, set(given.subjects)).values())))


@dataclass(frozen=True)
class Hospital:
    """``labelled`` has four cases, ``unlabelled`` eight; both are on the other curve."""

    model: Path
    labelled: Path
    unlabelled: Path
    curve: Curve = washed_out


@pytest.fixture(scope="session")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Hospital:
    """A model that was trained at a hospital whose scans are as they are, and scans that are washed out."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("hospital")
    source = write_scans(folder / "source", 4, first=50)
    job = small_job("fedavg", "data.matrix=32", "optimizer.lr=0.02", "schedule.batch_size=8")
    ready, given = opened(save_model(folder / "start.pt", job), source, folder / "prepared")
    samples = given.samples(set(given.subjects))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fine_tuning, "ANCHOR", 0.0)  # at random weights
        for _ in fine_tune(ready, given.task, samples, Setting("all", 0.02, 40), stops=[40], seed=0):
            model = save_model(folder / "model.pt", job, read_weights(ready.predictor.net))
    return Hospital(
        model,
        write_scans(folder / "labelled", 4, washed_out),
        write_scans(folder / "unlabelled", 8, washed_out, first=10),
    )
