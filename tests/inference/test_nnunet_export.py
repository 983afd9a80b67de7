"""Models for nnU-Net: the real package predicts the same masks, and what it would do otherwise is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK as sitk
import torch
from errors import raises
from volumesites import make_volume_site

from fedshift.cli import main
from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.resolve import resolve
from fedshift.inference.model import open_model
from fedshift.inference.nnunet_export import write_results_folder
from fedshift.inference.ready import Choice, make_ready
from fedshift.schema.results import LAST
from fedshift.tasks import pretrained
from inference.conftest import save_model

pytest.importorskip("dynamic_network_architectures", reason="pip install 'fedshift[nnunet]'")

TASK = """
name: blobs
kind: segmentation
dataset: blobs
sites: [A, B]
classes: [background, left, right]
data: {patch: [8, 24, 24], spacing: [2.5, 1.2, 1.0], samples_per_case: 4, convention: nnunet}
network: {name: nnunet.PlainConvUNet, options: {features_per_stage: [4, 8, 8]}}
loss: ce_dice
optimizer: {name: adam, lr: 0.01}
schedule: {rounds: 2, local_epochs: 4, batch_size: 2, precision: fp32}
evaluation: {mirror: true}
"""
VOLUMES = "patch: [8, 24, 24], spacing: [2.5, 1.2, 1.0], samples_per_case: 4, convention: nnunet"
REGIONS = TASK + "regions: {both: [left, right], left: [left]}\n"
ORDERED_REGIONS = REGIONS + "regions_class_order: [right, left]\n"
PROGRAM = Path(__file__).with_name("nnunet_program.py")
MOST_DIFFERENT = 1e-4
"""Part of the voxels that rounding to half precision may give another class."""


def nnunet_python() -> str:
    """A Python that has nnU-Net."""
    default = Path(sys.prefix) / "nnunet" / "bin" / "python"
    found = Path(os.environ.get("FEDSHIFT_NNUNET", default))
    if not found.is_file():
        pytest.skip("nnU-Net is not installed: make nnunet, or name a Python that has it in FEDSHIFT_NNUNET")
    return str(found)


def run_nnunet(*words: str | Path) -> None:
    outside = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([nnunet_python(), str(PROGRAM), *map(str, words)], check=True, env=outside, capture_output=True)


def job(folder: Path, *options: str, methods: str = "fedavg", task: str = TASK) -> Any:
    (folder / "task.yaml").write_text(task, encoding="utf-8")
    return resolve(str(folder / "task.yaml"), methods, options=options, seed=1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("trained")
    sites = {
        "A": make_volume_site(folder, "A", shape=(16, 32, 32)),
        "B": make_volume_site(folder, "B", shape=(14, 36, 28), gain=3.0, offset=100.0, spacing=(3.0, 0.9, 1.1)),
    }
    run_in_process(job(folder), sites, folder / "run")
    return folder / "run" / LAST


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Two scans that lie otherwise in their files, with 0 around them, of other voxels than the network's."""
    folder = tmp_path / "scans"
    folder.mkdir()
    site = make_volume_site(tmp_path, "C", cases=4, shape=(20, 64, 72), spacing=(4.0, 0.6, 0.5), seed=3)
    for number, orientation in enumerate(("LPS", "ASL")):
        scan = sitk.ReadImage(site / "volumes" / f"case{number:02d}.nii.gz")
        voxels = sitk.GetArrayFromImage(scan)
        voxels[:2], voxels[:, :6], voxels[..., -9:] = 0, 0, 0
        dark = sitk.GetImageFromArray(voxels)
        dark.CopyInformation(scan)
        sitk.WriteImage(sitk.DICOMOrient(dark, orientation), folder / f"P{number}_0000.nii.gz")
    return folder


@pytest.mark.slow
def test_nnunet_predicts_the_same_masks(trained: Path, scans: Path, tmp_path: Path) -> None:
    _predicts_the_same(trained, scans, tmp_path)


@pytest.mark.slow
def test_nnunet_predicts_the_same_regions_of_a_certain_model(scans: Path, tmp_path: Path) -> None:
    """Its logits are larger than those of which single precision has probabilities."""
    torch.set_num_threads(1)
    made = job(tmp_path, "data.mirror=[1]", "schedule.rounds=3", task=ORDERED_REGIONS)
    sites = {name: make_volume_site(tmp_path, name, shape=(16, 32, 32), spacing=(2.5, 1.0, 1.0)) for name in "AB"}
    run_in_process(made, sites, tmp_path / "run")
    weights = read_model_file(tmp_path / "run" / LAST)["weights"]
    certain = {key: (30 if "seg_layers" in key else 1) * value.numpy() for key, value in weights.items()}
    _predicts_the_same(save_model(tmp_path / "certain.pt", made, certain), scans, tmp_path)


@pytest.mark.slow
def test_nnunet_predicts_the_same_masks_of_a_model_of_slices(scans: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    flat = "dims: 2, patch: [24, 24], spacing: [null, 1.2, 1.0], samples_per_case: 24, convention: nnunet"
    sites = {name: make_volume_site(tmp_path, name, shape=(16, 32, 32), spacing=(2.5, 1.0, 1.0)) for name in "AB"}
    run_in_process(job(tmp_path, task=TASK.replace(VOLUMES, flat)), sites, tmp_path / "run")
    _predicts_the_same(tmp_path / "run" / LAST, scans, tmp_path, configuration="2d")


def _predicts_the_same(model: Path, scans: Path, folder: Path, *, configuration: str = "3d_fullres") -> None:
    assert main(["export", str(model), "--nnunet", str(folder / "results"), "--dataset", "Dataset012_Blobs"]) == 0
    results = folder / "results" / "Dataset012_Blobs" / f"nnUNetTrainer__nnUNetPlans__{configuration}"
    run_nnunet("predict", results, scans, folder / "theirs")
    files = [str(file) for file in sorted(scans.iterdir())]
    assert main(["predict", str(model), *files, "--out", str(folder / "ours")]) == 0
    total = different = found = 0
    for number in range(2):
        theirs = sitk.ReadImage(folder / "theirs" / f"P{number}.nii.gz")
        ours = sitk.ReadImage(folder / "ours" / f"P{number}_0000_mask.nii.gz")
        assert ours.GetDirection() == pytest.approx(theirs.GetDirection(), abs=1e-6)
        first, other = (sitk.GetArrayFromImage(image) for image in (theirs, ours))
        total, different, found = total + first.size, different + (first != other).sum(), found + (first > 0).sum()
    assert found > 0.01 * total, "or there would be nothing to compare"
    assert different <= MOST_DIFFERENT * total


@pytest.mark.slow
def test_volumes_that_nnunet_has_prepared_are_a_sites_arrays(trained: Path, tmp_path: Path) -> None:
    from fedshift.data.resampled import open_volumes
    from fedshift.tasks.segmentation.patches import DataSpec

    raw = tmp_path / "raw" / "Dataset012_Blobs"
    site = make_volume_site(tmp_path, "C", cases=4, shape=(20, 40, 36), spacing=(4.0, 0.9, 0.8), seed=3)
    for kind in ("imagesTr", "labelsTr"):
        (raw / kind).mkdir(parents=True)
    for file in (site / "volumes").iterdir():
        case, _, mask = file.name.removesuffix(".nii.gz").partition("_")
        to = raw / "labelsTr" / f"{case}.nii.gz" if mask else raw / "imagesTr" / f"{case}_0000.nii.gz"
        sitk.WriteImage(sitk.DICOMOrient(sitk.ReadImage(file), "LAS"), to)
    described = {"channel_names": {"0": "MR"}, "labels": {"background": 0, "left": 1, "right": 2}}
    described |= {"numTraining": 4, "file_ending": ".nii.gz"}
    (raw / "dataset.json").write_text(json.dumps(described))
    plans = _plans(trained, tmp_path / "model")
    plans |= {"image_reader_writer": "SimpleITKIO", "dataset_name": raw.name}
    prepared = tmp_path / "prepared" / raw.name
    prepared.mkdir(parents=True)
    (prepared / "nnUNetPlans.json").write_text(json.dumps(plans))
    run_nnunet("prepare", raw, prepared, prepared / "nnUNetPlans.json")
    words = ["data", "prepare", "nnunet", "--source", str(tmp_path / "raw"), "--out", str(tmp_path / "out")]
    assert main([*words, "--preprocessed", str(prepared.parent), "--site", "theirs"]) == 0
    assert main([*words, "--site", "ours"]) == 0
    data = DataSpec.parse(
        {"patch": [8, 24, 24], "spacing": [2.5, 1.2, 1.0], "convention": "nnunet", "sequences": ["MR"]}, where="test"
    )
    theirs, ours = (open_volumes(tmp_path / "out" / "blobs" / name, data.preparation) for name in ("theirs", "ours"))
    assert len(theirs.manifest.arrays) == 1 and not ours.manifest.arrays
    for number in range(4):
        assert np.abs(theirs.images(number).astype(float) - ours.images(number)).max() < 0.01
        assert np.mean(theirs.labels(number) != ours.labels(number)) < 0.01


def _plans(model: Path, folder: Path) -> dict[str, Any]:
    written = write_results_folder(make_ready(open_model(model), Choice()), folder)
    plans: dict[str, Any] = json.loads((written.folder / "plans.json").read_text())
    return plans


@pytest.mark.slow
def test_the_folder_is_what_nnunet_makes_itself(trained: Path, tmp_path: Path) -> None:
    plans = _plans(trained, tmp_path)
    (configuration,) = plans["configurations"].values()
    assert configuration["spacing"] == [2.5, 1.2, 1.0] and configuration["patch_size"] == [8, 24, 24]
    assert configuration["architecture"]["network_class_name"].endswith("unet.PlainConvUNet")
    (checkpoint,) = tmp_path.rglob("checkpoint_final.pth")
    content = torch.load(checkpoint, weights_only=True)
    assert content["inference_allowed_mirroring_axes"] == (0, 1, 2)
    assert any(key.startswith("decoder.encoder.") for key in content["network_weights"])
    assert json.loads((checkpoint.parents[1] / "dataset.json").read_text())["labels"]["right"] == 2


WITHOUT = "data.convention=fedshift"


@pytest.mark.parametrize(
    ("methods", "options", "task", "naming"),
    [
        ("fedavg", [WITHOUT], TASK, "convention"),
        ("fedavg", [], TASK.replace(VOLUMES, "pictures: true, dims: 2, patch: [16, 16]"), "pictures"),
        ("fedavg", ["network.name=monai.UNet", "network.options={channels: [4, 8], strides: [2]}"], TASK, "monai.UNet"),
        ("fedavg", ["evaluation.largest_component=true"], TASK, "largest"),
        ("fedwon", [], TASK, "fedwon"),
        ("fedavg", [], REGIONS, "regions"),
        ("fedavg", [], TASK.replace("background, left", "rest, background"), "background"),
    ],
)
def test_what_nnunet_would_do_otherwise_is_refused(
    tmp_path: Path, methods: str, options: list[str], task: str, naming: str
) -> None:
    model = save_model(tmp_path / "model.pt", job(tmp_path, *options, methods=methods, task=task))
    ready = make_ready(open_model(model), Choice())
    with raises("not-nnunet", naming=naming):
        write_results_folder(ready, tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_job_may_start_from_what_was_exported(tmp_path: Path) -> None:
    task = TASK.replace("[4, 8, 8]", "[4, 8, 8], norm_op: batch")
    ready = make_ready(open_model(save_model(tmp_path / "model.pt", job(tmp_path, task=task))), Choice())
    file = pretrained.file_of(write_results_folder(ready, tmp_path / "results").folder)
    loaded = pretrained.take(ready.predictor.net, pretrained.read(file), where=file.name)
    assert not loaded.new and pretrained.from_nnunet(file) is not None
    assert all(torch.equal(value, loaded.arrays[key]) for key, value in ready.predictor.net.state_dict().items())


def test_an_existing_folder_or_another_name_is_refused(trained: Path, tmp_path: Path) -> None:
    ready = make_ready(open_model(trained), Choice())
    write_results_folder(ready, tmp_path)
    with raises("output-exists", naming="Dataset900_blobs"):
        write_results_folder(ready, tmp_path)
    with raises("dataset-name", naming="Blobs"):
        write_results_folder(ready, tmp_path, dataset="Blobs")


@pytest.mark.parametrize(
    ("option", "naming"),
    [
        ("data.spacing=[2.0, null, 1.0]", "spacing"),
        ("data.normalise=percentile", "percentile"),
        ("data.bias_field=n4", "bias_field"),
        ("data.matrix=64", "matrix"),
    ],
)
def test_settings_that_nnunet_does_not_have_are_refused(tmp_path: Path, option: str, naming: str) -> None:
    with raises("invalid-value", naming=naming):
        job(tmp_path, option)
