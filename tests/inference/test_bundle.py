"""A bundle runs without fedshift, and finds what ``fedshift predict`` finds; other formats give the model's logits."""

from __future__ import annotations

import ast
import builtins
import errno
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK as sitk
import torch
from conftest import make_image_site, small_image_job, small_job
from errors import raises
from scanfiles import rotation
from tasks.test_monai_networks import SMALL

import fedshift
from fedshift.cli import main
from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.inference import export
from fedshift.inference.model import open_model
from fedshift.inference.ready import Choice, make_ready
from fedshift.runtime import monai_run
from fedshift.runtime.segmentation import SliceSpec
from fedshift.schema.results import LAST
from fedshift.tasks import networks

from .conftest import Run, save_model, write_ball

METHODS = ["fedavg", *(pytest.param(methods, marks=pytest.mark.slow) for methods in ("fedfa+fedrdn", "harmofl"))]
RUNTIME = sorted(Path(monai_run.__file__).parent.glob("*.py"))
NO_FEDSHIFT = 'raise ImportError("a bundle must do without fedshift")\n'


SMALLEST_PATCH = {"monai.SwinUNETR": 64, "monai.HighResNet": 8, "monai.VNet": 16}
"""Voxels along an edge that a network can take, where it is not 32."""
RUN_EACH = """
import os, sys
from monai.bundle import run
scans, *bundles = sys.argv[1:]
for bundle in bundles:
    child = os.fork()
    if not child:
        os.chdir(bundle)
        run(config_file="configs/inference.json", dataset_dir=scans, output_dir="../out")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, bundle
"""
"""``monai.bundle run`` in several folders, with MONAI imported once: that takes longer than all the runs."""


@pytest.mark.slow
def test_a_bundle_finds_the_same_masks_without_fedshift(trained: Run, tmp_path: Path) -> None:
    scans, precisions = tmp_path / "scans", ("bf16", "auto")
    write_ball(scans / "a.nii.gz", direction=rotation(9, 0))
    write_ball(scans / "b.nii.gz", direction=(0, 1, 0, 1, 0, 0, 0, 0, -1), size=(41, 52, 12))
    write_ball(scans / "c.nii.gz", size=(32, 32, 40), spacing=(0.9, 0.9, 0.7), direction=(-1, 0, 0, 0, -1, 0, 0, 0, 1))
    files = [str(path) for path in sorted(scans.iterdir())]
    for precision in precisions:
        model, _ = trained("fedfa+fedrdn", "optimizer.lr=0.01", f"schedule.precision={precision}")
        place, words = tmp_path / precision, ("--site", "HK", "--device", "cpu")
        assert main(["export", str(model), "--bundle", str(place / "bundle"), *words]) == 0
        assert main(["predict", str(model), *files, "--out", str(place / "ours"), *words]) == 0
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / "fedshift.py").write_text(NO_FEDSHIFT, encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "block"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", RUN_EACH, str(scans), *(str(tmp_path / name / "bundle") for name in precisions)]
    result = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, encoding="utf-8", check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    for precision in precisions:
        found = set()
        for name in "abc":
            masks = (tmp_path / precision / place / f"{name}_mask.nii.gz" for place in ("ours", "out"))
            ours, theirs = map(sitk.ReadImage, masks)
            for what in ("GetSize", "GetSpacing", "GetOrigin", "GetDirection"):
                assert np.allclose(getattr(ours, what)(), getattr(theirs, what)(), atol=1e-4), what
            assert np.array_equal(sitk.GetArrayFromImage(ours), sitk.GetArrayFromImage(theirs)), precision
            found.add(int(sitk.GetArrayFromImage(ours).sum()))
        assert found != {0}, "or there would be nothing to compare"


def test_a_bundle_says_what_it_is_and_names_no_site(trained: Run, tmp_path: Path) -> None:
    model, _ = trained("fedfa+fedrdn")
    bundle = tmp_path / "bundle"
    assert main(["export", str(model), "--bundle", str(bundle), "--site", "HK"]) == 0
    inside = {str(path.relative_to(bundle)) for path in bundle.rglob("*") if path.is_file()}
    texts = {"LICENSE", "docs/README.md", "configs/inference.json", "configs/metadata.json"}
    assert inside == texts | {"models/model.ts"} | {f"scripts/{file.name}" for file in RUNTIME}
    for file in RUNTIME:
        assert (bundle / "scripts" / file.name).read_bytes() == file.read_bytes(), "as fedshift itself runs them"
    everything = b"".join((bundle / name).read_bytes() for name in inside)
    for site in ("BIDMC", "UCL", "HK"):
        assert f"'{site}'".encode() not in everything and f" {site}".encode() not in everything
    assert str(tmp_path).encode() not in everything
    card = (bundle / "docs" / "README.md").read_text(encoding="utf-8")
    for words in ("not a medical device", "Simulated data", "| sites | 3 ", "fedrdn", "val_dice", "one training site"):
        assert words in card, words
    assert "never left" not in card, "which the file does not say"
    metadata = json.loads((bundle / "configs" / "metadata.json").read_text(encoding="utf-8"))
    formats = metadata["network_data_format"]
    assert formats["inputs"]["image"]["spatial_shape"] == [32, 32] and "medical device" in metadata["intended_use"]
    needed = {"version", "monai_version", "pytorch_version", "numpy_version", "task", "description", "authors"}
    assert needed <= metadata.keys()
    assert main(["export", str(model), "--bundle", str(bundle), "--site", "HK"]) == 2, "the folder exists"


def expressions(content: Any) -> list[str]:
    """Texts that MONAI would execute."""
    if isinstance(content, dict | list):
        return [
            text for part in (content.values() if isinstance(content, dict) else content) for text in expressions(part)
        ]
    return [content] if isinstance(content, str) and content.startswith("$") else []


def test_nothing_from_a_model_file_is_executed_or_is_markup(tmp_path: Path) -> None:
    """MONAI executes every text of a bundle's configuration that begins with ``$``."""
    hostile = "$__import__('os').system('id') | <script>alert(1)</script>"
    paths = {"hostile": hostile, "plain": "from scratch"}
    written = {}
    for name, initial in paths.items():
        file = save_model(tmp_path / f"{name}.pt", small_job("fedavg"), initial_weights=initial)
        assert main(["export", str(file), "--bundle", str(tmp_path / name), "--device", "cpu"]) == 0
        texts = {
            p.name: p.read_text(encoding="utf-8") for p in (tmp_path / name).rglob("*") if p.suffix in (".json", ".md")
        }
        written[name] = texts
        assert expressions(json.loads(texts["metadata.json"])) == []
    assert written["hostile"]["inference.json"] == written["plain"]["inference.json"]
    card = written["hostile"]["README.md"]
    assert "<script>" not in card and "| <" not in card and r"\| \<script\>" in card


def test_a_class_named_like_code_is_not_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = save_model(tmp_path / "model.pt", small_job("fedavg"))
    content = read_model_file(file)
    content["job"]["task"]["classes"] = ["background", "$__import__('os').system('id')"]
    torch.save(content, file)
    assert main(["export", str(file), "--bundle", str(tmp_path / "bundle"), "--device", "cpu"]) == 2
    printed = capsys.readouterr().err
    assert "$__import__" in printed and not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("methods", METHODS)
@pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated")
def test_a_bundles_network_holds_on_to_no_device(methods: str, trained: Run, tmp_path: Path) -> None:
    model = open_model(trained(methods)[0])
    ready = make_ready(model, Choice(site="HK"), device="cpu")
    assert export.write_torchscript(ready, tmp_path / "model.ts") < 1e-6
    loaded = torch.jit.load(str(tmp_path / "model.ts"))  # type: ignore[no-untyped-call]
    assert "Device" not in str(loaded.inlined_graph), "it would stay there when the rest moves to a GPU"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SMALL))
def test_no_networks_graph_holds_on_to_a_device(name: str) -> None:
    if name in ("monai.SwinUNETR", "monai.UNETR"):
        pytest.importorskip("einops")
    patch = (SMALLEST_PATCH.get(name, 32),) * 3
    net = networks.build(name, SMALL[name], in_channels=1, n_classes=2, seed=0, spatial_dims=3, patch=patch).eval()
    with torch.no_grad():
        traced = export.trace(net, torch.rand(1, 1, *patch))
        x = torch.rand(1, 1, *patch)
        torch.testing.assert_close(traced(x), net(x))
    assert "Device" not in str(traced.inlined_graph)


@pytest.mark.slow
@pytest.mark.parametrize("methods", METHODS)
def test_other_formats_give_the_models_logits(methods: str, trained: Run, tmp_path: Path) -> None:
    _same_logits(trained(methods)[0], "HK", torch.rand(5, 3, 32, 32), (5, 2, 32, 32), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("methods", METHODS[:2])
def test_other_formats_give_a_classifiers_logits(methods: str, tmp_path: Path) -> None:
    sites = {site: make_image_site(tmp_path / "data", site) for site in "ABC"}
    run_in_process(small_image_job(methods, "schedule.rounds=1"), sites, tmp_path / "run")
    _same_logits(tmp_path / "run" / LAST, "A", torch.rand(5, 3, 16, 16), (5, 3), tmp_path)


def _same_logits(file: Path, site: str, x: torch.Tensor, shape: tuple[int, ...], tmp_path: Path) -> None:
    """Of a batch of another size than the export was made with."""
    ready = make_ready(open_model(file), Choice(site=site), device="cpu")
    assert ready.predictor(x).shape == shape
    assert export.write_torch_export(ready, tmp_path / "model.pt2") < 1e-5
    program = torch.export.load(tmp_path / "model.pt2").module()
    torch.testing.assert_close(program(x), ready.predictor(x), rtol=1e-4, atol=1e-4)
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'fedshift[export]'")
    assert export.write_onnx(ready, tmp_path / "model.onnx") < 1e-4
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {export.INPUT: x.numpy()})
    np.testing.assert_allclose(logits, ready.predictor(x).detach().numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_no_export_holds_a_place_of_this_machine(trained: Run, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="pip install 'fedshift[export]'")
    model = open_model(trained("fedfa+fedrdn")[0])
    ready = make_ready(model, Choice(site="HK"), device="cpu")
    files = [tmp_path / name for name in ("model.ts", "model.pt2", "model.onnx")]
    for path, write in zip(
        files, (export.write_torchscript, export.write_torch_export, export.write_onnx), strict=True
    ):
        write(ready, path)
        parts = [path.read_bytes()]
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as members:
                parts = [members.read(name) for name in members.namelist()]
        for place in (str(Path(fedshift.__file__).parent), sys.prefix, "site-packages", str(tmp_path), "BIDMC"):
            assert not any(place.encode() in part for part in parts), (path.name, place)


@pytest.mark.parametrize(
    ("volume", "words"),
    [
        (torch.zeros(1, 2, 8, 8, 4), r"\(1, 2, 8, 8, 4\)"),
        (torch.zeros(1, 8, 8, 4), r"\(1, 8, 8, 4\)"),
        (torch.full((1, 1, 8, 8, 4), torch.nan), "NaN"),
    ],
    ids=["channels", "dimensions", "NaN"],
)
def test_a_bundles_inferer_refuses_what_predict_refuses(volume: torch.Tensor, words: str) -> None:
    inferer = monai_run.ScanInferer(spec=SliceSpec(matrix=32, context=3, scale=1.0), precision="fp32")
    with pytest.raises(ValueError, match=words):
        inferer(volume, None, lambda x: x[:, :2], torch.device("cpu"))


@pytest.mark.slow
def test_an_export_that_differs_does_not_stay(trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_model(trained("fedavg")[0])
    monkeypatch.setattr(export, "MAX_LOGIT_DIFFERENCE", -1.0)
    with raises("export-differs", naming="model.pt2"):
        export.write_torch_export(make_ready(model, Choice(), device="cpu"), tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("what", ["--bundle", "--torch-export", "--onnx"])
def test_a_full_disk_is_named_and_nothing_stays(
    what: str, trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where torch writes the file itself, a full disk aborts the process."""
    if what == "--onnx":
        pytest.importorskip("onnxruntime", reason="pip install 'fedshift[export]'")
    place, model = tmp_path / "out" / "it", trained("fedavg")[0]
    place.parent.mkdir()
    opened = builtins.open

    def full(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        made = opened(file, mode, *args, **kwargs)
        if "w" in mode and str(file).startswith(str(place.parent)):
            made.close()
            raise OSError(errno.ENOSPC, "No space left on device")
        return made

    monkeypatch.setattr(builtins, "open", full)
    monkeypatch.setattr(io, "open", full)  # pathlib's
    assert main(["export", str(model), what, str(place), "--device", "cpu"]) == 2
    printed = capsys.readouterr().err
    assert str(place) in printed and "No space" in printed and "[file-unwritable]" in printed
    assert not list(place.parent.iterdir())


def test_what_an_export_cannot_do_is_said(trained: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    personal, pictures = trained("fedrdn")[0], save_model(tmp_path / "pictures.pt", small_image_job("fedavg"))
    (tmp_path / "mine.pt2").touch()
    bundle, mine, site = ("--bundle", tmp_path / "b"), ("--torch-export", tmp_path / "mine.pt2"), ("--site", "HK")
    for code, naming, words in (
        ("option-missing", "--bundle", (personal,)),
        ("statistics-choice", "--site", (personal, *bundle)),
        ("option-missing", "--images", (personal, *bundle, "--statistics", "own")),
        ("no-effect", "--images", (personal, *bundle, "--images", "x")),
        ("wrong-task", "pictures.pt", (pictures, *bundle)),
        ("output-exists", "mine.pt2", (personal, *site, *mine)),
        ("folder-missing", "folder.pt2", (personal, *site, "--torch-export", tmp_path / "no" / "folder.pt2")),
    ):
        assert main(["export", *map(str, words)]) == 2
        printed = capsys.readouterr().err
        assert f"[{code}]" in printed and naming in printed
    assert not (tmp_path / "b").exists()


def test_nothing_is_written_where_one_of_several_outputs_is_refused(
    trained: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.pt2").touch()
    bundle = tmp_path / "b"
    for code, naming, words in (
        ("output-exists", "mine.pt2", ("--torch-export", tmp_path / "mine.pt2")),
        ("folder-missing", "folder.pt2", ("--torch-export", tmp_path / "no" / "folder.pt2")),
        ("wrong-task", "nnU-Net", ("--nnunet", tmp_path / "results")),
        ("options-clash", str(bundle), ("--torch-export", bundle)),
    ):
        assert main(["export", str(trained("fedavg")[0]), "--bundle", str(bundle), *map(str, words)]) == 2
        refusal = capsys.readouterr().err
        assert f"[{code}]" in refusal and naming in refusal
        assert not bundle.exists()


@pytest.mark.slow
def test_statistics_of_given_scans_become_part_of_an_export(trained: Run, tmp_path: Path) -> None:
    write_ball(tmp_path / "scan.nii.gz")
    words = ["--statistics", "own", "--images", str(tmp_path / "scan.nii.gz")]
    assert main(["export", str(trained("fedbn")[0]), "--torch-export", str(tmp_path / "m.pt2"), *words]) == 0
    assert (tmp_path / "m.pt2").is_file()


def test_a_bundles_scripts_import_no_other_package_than_it_says() -> None:
    nodes = [node for file in RUNTIME for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    absolute = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level and node.module]
    absolute += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    packages = {name.partition(".")[0] for name in absolute} - sys.stdlib_module_names
    # Pillow where pictures are segmented, and SimpleITK where a bias field is corrected, which say so.
    assert packages == {"numpy", "torch", "scipy", "PIL", "SimpleITK"}


def test_jobs_of_other_tasks_and_scales_keep_their_scale(tmp_path: Path) -> None:
    model = open_model(save_model(tmp_path / "model.pt", small_job("fedavg", "data.scale=255")))
    assert export.example(model, batch=2).max() > 200
