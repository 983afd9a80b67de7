"""Models that work on patches: a prediction is the evaluation's own, alone and as a bundle."""

from __future__ import annotations

import csv
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
import torch
from volumesites import make_volume_site, write_task

from fedshift.cli import main
from fedshift.data.case_check import known_spacing
from fedshift.data.prepared import image_files
from fedshift.data.scans import read_scan
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.inference import export
from fedshift.inference.model import open_model
from fedshift.inference.ready import Choice, make_ready
from fedshift.schema.manifest import read_manifest
from fedshift.schema.results import LAST, Results
from fedshift.tasks.evaluation.by_class import dice_by_class

SCHEDULE = "{rounds: 2, local_epochs: 3, batch_size: 2}"
SEQUENCES = ("T2", "ADC")
IN_3D = "{patch: [16, 16, 32], spacing: [1.5, 1.2, null], samples_per_case: 4, sequences: [T2, ADC]}"
IN_2D = (
    "{dims: 2, patch: [16, 16], context: 3, samples_per_case: 8, normalise: percentile, spacing: [null, 1.2, 1.2], "
    "matrix: 32}"
)


Trained = tuple[dict[str, Path], Path, Results]
"""The sites, the model file and the results of a short run."""
BOTH_WAYS = ("evaluation.mirror=true", "evaluation.largest_component=true")


def train(folder: Path, data: str, methods: str, *options: str) -> Trained:
    torch.set_num_threads(1)
    sequences = SEQUENCES if "ADC" in data else ()
    sites = {
        "A": make_volume_site(folder, "A", sequences=sequences),
        "B": make_volume_site(folder, "B", sequences=sequences, gain=3.0, offset=100.0, spacing=(1.5, 0.9, 1.1)),
    }
    task = write_task(folder / "task.yaml", data=data, schedule=SCHEDULE)
    job = resolve(str(task), methods, options=options, seed=1)
    return sites, folder / "run" / LAST, run_in_process(job, sites, folder / "run").results


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trained]:
    """Trains a model; each once."""
    return functools.cache(lambda *of: train(tmp_path_factory.mktemp("trained"), *of))


ON_LANDMARKS = (
    "{dims: 2, patch: [16, 16], context: 3, samples_per_case: 8, normalise: landmarks, bias_field: n4, "
    "spacing: [null, 1.2, 1.2]}",
    "landmarks",
)
IN_SPACE = (IN_3D, "fedrdn", "evaluation.largest_component=true")
IN_SLICES = (IN_2D, "fedavg", *BOTH_WAYS)


@pytest.mark.slow
@pytest.mark.parametrize("of", [IN_SLICES, IN_SPACE, ON_LANDMARKS], ids=["2D", "3D", "landmarks"])
def test_predictions_of_a_test_case_score_as_in_the_results(
    tmp_path: Path, of: tuple[str, ...], trained: Callable[..., Trained]
) -> None:
    sites, model, results = trained(*of)
    manifest = read_manifest(sites["B"])
    (case,) = manifest.by_split("test")
    files = [str(path) for path in image_files(sites["B"], manifest, case.id)]
    site = ["--site", "B"] if of == IN_SPACE else []
    assert main(["predict", str(model), *files, "--out", str(tmp_path / "out"), "--overlay", *site]) == 0
    mask = sitk.ReadImage(tmp_path / "out" / f"{case.id}_mask.nii.gz")
    reference = sitk.ReadImage(sites["B"] / "volumes" / f"{case.id}_mask.nii.gz")
    assert mask.GetSpacing() == pytest.approx(reference.GetSpacing()) and mask.GetSize() == reference.GetSize()
    found = dice_by_class(sitk.GetArrayFromImage(mask), sitk.GetArrayFromImage(reference), 3)
    told = results.final.last.sites["B"]["test"]
    assert found[0] == pytest.approx(told["dice left"]) and found[1] == pytest.approx(told["dice right"])
    assert found.max() > 0, "or there would be nothing to compare"
    with (tmp_path / "out" / "predictions.csv").open(newline="", encoding="utf-8") as table:
        (row,) = csv.DictReader(table)
    voxels = (sitk.GetArrayFromImage(mask) == 2).sum()
    assert float(row["volume_ml right"]) == pytest.approx(voxels * np.prod(mask.GetSpacing()) / 1000, abs=1e-3)


def test_statistics_of_the_given_scans_are_of_windows_of_them(
    tmp_path: Path, trained: Callable[..., Trained], capsys: pytest.CaptureFixture
) -> None:
    sites, model, _ = trained(*IN_SPACE)
    first = str(sites["A"] / "volumes" / "case00_0000.nii.gz")
    assert main(["predict", str(model), first, "--out", str(tmp_path / "out"), "--statistics", "own"]) == 0
    assert "own, of 2 patches" in capsys.readouterr().out


def test_a_case_that_lacks_a_sequence_is_refused(
    tmp_path: Path, trained: Callable[..., Trained], capsys: pytest.CaptureFixture
) -> None:
    sites, model, _ = trained(*IN_SPACE)
    first = Path(shutil.copy(sites["A"] / "volumes" / "case00_0000.nii.gz", tmp_path))
    words = ["--site", "A", "--out", str(tmp_path / "out")]
    assert main(["predict", str(model), str(first), *words]) == 2
    printed = capsys.readouterr().err
    assert "case00_0001.nii.gz" in printed and "_0000 is T2, _0001 is ADC [sequence-missing]" in printed
    assert main(["predict", str(model), str(first.with_name("case00.nii.gz")), *words]) == 2
    assert "[sequence-unknown]" in capsys.readouterr().err


def test_sequences_in_any_order_and_layout_give_the_same_mask(
    tmp_path: Path, trained: Callable[..., Trained], capsys: pytest.CaptureFixture
) -> None:
    sites, model, _ = trained(*IN_SPACE)
    t2, adc = image_files(sites["A"], read_manifest(sites["A"]), "case00")
    swapped, folders = tmp_path / "set" / "imagesTr", tmp_path / "cases" / "case00"
    for folder, names in ((swapped, ("case00_0001", "case00_0000")), (folders, ("case00_t2", "ADC"))):
        folder.mkdir(parents=True)
        for file, name in zip((t2, adc), names, strict=True):
            shutil.copy(file, folder / f"{name}.nii.gz")
    description = tmp_path / "set" / "dataset.json"
    description.write_text('{"channel_names": {"0": "ADC", "1": "T2"}}', encoding="utf-8")
    volumes = [sitk.ReadImage(str(file)) for file in (t2, adc)]
    for folder, order in ((tmp_path / "4d", volumes), (tmp_path / "set" / "imagesTs", volumes[::-1])):
        folder.mkdir()
        sitk.WriteImage(sitk.JoinSeries(order, 0.0, 2.5), str(folder / "case00.nii.gz"))
    masks = []
    for given, said in (
        (t2, "_0000 = T2, _0001 = ADC (the order of the model)"),
        (swapped, f"_0000 = ADC, _0001 = T2 ({description})"),
        (folders.parent, "T2, ADC, by the files' names in the case's folder"),
        (tmp_path / "4d", "of 4D files volume 1 = T2, volume 2 = ADC (the order of the model)"),
        (tmp_path / "set" / "imagesTs", f"of 4D files volume 1 = ADC, volume 2 = T2 ({description})"),
    ):
        out = tmp_path / f"out{len(masks)}"
        assert main(["predict", str(model), str(given), "--out", str(out), "--site", "A"]) == 0
        assert f"sequences: {said}\n" in capsys.readouterr().out
        masks.append(sitk.GetArrayFromImage(sitk.ReadImage(out / "case00_mask.nii.gz")))
    assert masks[0].any() and all(np.array_equal(masks[0], mask) for mask in masks[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "methods", "precision"),
    [(IN_3D, "fedavg", "fp32"), (IN_2D, "fedavg", "bf16"), (*ON_LANDMARKS, "fp32")],
    ids=["3D", "2D", "landmarks"],
)
def test_a_bundle_finds_the_same_classes_without_fedshift(
    tmp_path: Path, data: str, methods: str, precision: str, trained: Callable[..., Trained]
) -> None:
    sites, model, _ = trained(data, methods, f"schedule.precision={precision}", *BOTH_WAYS)
    bundle, scans = tmp_path / "bundle", tmp_path / "scans"
    scans.mkdir()
    manifest = read_manifest(sites["B"])
    files = [path for case in ("case00", "case03") for path in image_files(sites["B"], manifest, case)]
    for path in files:
        (scans / path.name).symlink_to(path)
    cases = ["case00", "case03"]
    if data == IN_2D:  # a placeholder is resampled to the task's matrix, and a rotated voxel of 1 mm by its spacing
        cases += _with_voxels_of_1_mm(files[0], scans)
        files += [scans / f"{name}.nii.gz" for name in cases[2:]]
    given = [str(scans / path.name) for path in files]
    assert main(["predict", str(model), *given, "--out", str(tmp_path / "ours"), "--device", "cpu"]) == 0
    assert main(["export", str(model), "--bundle", str(bundle), "--device", "cpu"]) == 0
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / "fedshift.py").write_text('raise ImportError("without fedshift")\n', encoding="utf-8")
    words = ["--config_file", "configs/inference.json", "--dataset_dir", str(scans), "--output_dir", "../theirs"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "block"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(
        [sys.executable, "-m", "monai.bundle", "run", *words],
        cwd=bundle,
        env=environ,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    told = [line.partition(": ")[0] for line in result.stdout.splitlines() if "add --true_spacing True" in line]
    assert [Path(name).name for name in told] == (["lost.nii.gz"] if data == IN_2D else [])
    ending = "_0000" if "ADC" in data else ""
    for case in cases:
        ours = sitk.ReadImage(tmp_path / "ours" / f"{case}_mask.nii.gz")
        theirs = sitk.ReadImage(tmp_path / "theirs" / f"{case}{ending}_mask.nii.gz")
        assert (sitk.GetArrayFromImage(ours) == sitk.GetArrayFromImage(theirs)).all()
        assert set(np.unique(sitk.GetArrayFromImage(ours))) > {0}


def _with_voxels_of_1_mm(path: Path, folder: Path) -> list[str]:
    """Copies of a scan whose headers are a placeholder, and as long but rotated; returns their names."""
    image = sitk.ReadImage(path)
    image.SetSpacing((1.0, 1.0, 1.0))
    for name, cosines in (("lost", (1, 0, 0, 1)), ("oblique", (0.8, -0.6, 0.6, 0.8))):
        (a, b, c, d) = map(float, cosines)
        image.SetDirection((a, b, 0.0, c, d, 0.0, 0.0, 0.0, 1.0))
        sitk.WriteImage(image, folder / f"{name}.nii.gz")
    lost, oblique = (known_spacing(read_scan(folder / f"{name}.nii.gz"), true=False) for name in ("lost", "oblique"))
    assert lost is None and oblique == pytest.approx((1, 1, 1))
    return ["lost", "oblique"]


@pytest.mark.slow
def test_a_network_that_runs_in_channels_last_is_exported_for_any_batch(
    tmp_path: Path, trained: Callable[..., Trained]
) -> None:
    _, file, _ = trained(IN_2D, "fedavg", "schedule.precision=bf16")
    model = open_model(file)
    ready = make_ready(model, Choice(), device="cpu")
    x = torch.rand(3, 3, 16, 16)
    assert export.write_torchscript(ready, tmp_path / "model.ts") < 1e-4
    assert export.write_torch_export(ready, tmp_path / "model.pt2") < 1e-4
    for loaded in (torch.jit.load(tmp_path / "model.ts"), torch.export.load(tmp_path / "model.pt2").module()):
        torch.testing.assert_close(loaded(x), ready.predictor(x), rtol=1e-4, atol=1e-4)
