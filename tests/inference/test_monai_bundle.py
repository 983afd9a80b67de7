"""A MONAI bundle of others gives the masks of ``monai.bundle run``, and none of its code is run."""

from __future__ import annotations

import csv
import json
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import highdicom as hd
import nibabel
import numpy as np
import pytest
import SimpleITK as sitk
import torch
from dicomstudies import write_slices
from errors import raises
from monai.data import MetaTensor
from scanfiles import rotation, volume

from fedshift.cli import main
from fedshift.inference.carried_bundle import pack_bundle
from fedshift.inference.monai_bundle import open_bundle
from fedshift.inference.monai_config import BundleConfig
from fedshift.schema.errors import ConfigError

from .conftest import BALL, write_ball

NETWORK = {
    **{"_target_": "UNet", "spatial_dims": 3, "in_channels": 1, "out_channels": 2},
    **{"channels": [4, 8], "strides": [2], "norm": "batch"},
}
INFERENCE: dict[str, Any] = {
    "imports": ["$import glob"],
    "image_key": "image",
    "output_dir": "eval",
    "pixdim": [1.5, 1.5, 3.0],
    "device": "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')",
    "network_def": NETWORK,
    "network": "$@network_def.to(@device)",
    "preprocessing": {
        "_target_": "Compose",
        "transforms": [
            {"_target_": "LoadImaged", "keys": "@image_key"},
            {"_target_": "EnsureChannelFirstd", "keys": "@image_key"},
            {"_target_": "Orientationd", "keys": "@image_key", "axcodes": "RAS"},
            {"_target_": "Spacingd", "keys": "@image_key", "pixdim": "$@pixdim", "mode": "bilinear"},
            {
                **{"_target_": "ScaleIntensityRanged", "keys": "@image_key", "a_min": 0, "a_max": 1000},
                **{"b_min": 0, "b_max": 1, "clip": True},
            },
            {"_target_": "CastToTyped", "keys": "@image_key", "dtype": "$torch.float32"},
            {"_target_": "EnsureTyped", "keys": "@image_key", "device": "@device"},
        ],
    },
    "inferer": {"_target_": "SlidingWindowInferer", "roi_size": [16, 16, 8], "sw_batch_size": 2, "overlap": 0.5},
    "postprocessing": {
        "_target_": "Compose",
        "transforms": [
            {"_target_": "Activationsd", "keys": "pred", "softmax": True},
            {
                **{"_target_": "Invertd", "keys": "pred", "transform": "@preprocessing", "orig_keys": "@image_key"},
                **{"nearest_interp": False, "to_tensor": True},
            },
            {"_target_": "AsDiscreted", "keys": "pred", "argmax": True},
            {"_target_": "SaveImaged", "keys": "pred", "output_dir": "@output_dir"},
        ],
    },
    "evaluator": {"_target_": "SupervisedEvaluator", "network": "@network"},
    "run": ["$@evaluator.run()"],
}
METADATA = {
    "name": "Ball",
    "version": "0.2.0",
    "network_data_format": {
        "inputs": {"image": {"format": "magnitude", "modality": "MR", "num_channels": 1}},
        "outputs": {"pred": {"channel_def": {"0": "background", "1": "prostate"}}},
    },
}
CODES = """codes:
  prostate: {category: [91723000, SCT, Anatomical Structure], type: [41216001, SCT, Prostate]}
"""
Change = Callable[[dict[str, Any]], None]


def write_bundle(folder: Path, *, change: Change = lambda config: None, weights: object | None = None) -> Path:
    """A bundle with random weights, laid out as those of the model zoo."""
    config = json.loads(json.dumps(INFERENCE))
    change(config)
    (folder / "configs").mkdir(parents=True)
    (folder / "models").mkdir()
    (folder / "configs" / "inference.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "configs" / "metadata.json").write_text(json.dumps(METADATA), encoding="utf-8")
    if weights is None:
        from monai.networks.nets import UNet

        with torch.random.fork_rng():
            torch.manual_seed(5)
            net = UNet(3, 1, 2, channels=(4, 8), strides=(2,), norm="batch")
        weights = net.state_dict()
    torch.save(weights, folder / "models" / "model.pt")
    return folder


def as_monai_does(bundle: Path, scan: Path) -> np.ndarray:
    """The masks by MONAI's own reading of the configuration, [channel, i, j, k]."""
    from monai.bundle import ConfigParser

    parser = ConfigParser(json.loads((bundle / "configs" / "inference.json").read_text(encoding="utf-8")))
    parser["device"] = "cpu"
    parser["postprocessing#transforms"] = parser["postprocessing#transforms"][:-1]  # without saving
    net = parser.get_parsed_content("network_def").eval()
    net.load_state_dict(torch.load(bundle / "models" / "model.pt", weights_only=True))
    data = parser.get_parsed_content("preprocessing")({"image": str(scan)})
    with torch.no_grad():
        data["pred"] = parser.get_parsed_content("inferer")(data["image"][None], net)[0]
    return np.asarray(parser.get_parsed_content("postprocessing")(data)["pred"]).astype(np.uint8)


def predict(*words: object) -> int:
    return main(["predict", *map(str, words)])


@pytest.mark.parametrize(
    "direction",
    [(1, 0, 0, 0, 1, 0, 0, 0, 1), rotation(9, 1), (0, 1, 0, 1, 0, 0, 0, 0, -1)],
    ids=["axial", "oblique", "turned"],
)
@pytest.mark.parametrize("oriented", [True, False])
def test_masks_are_those_of_monai_on_the_scans_own_grid(
    direction: tuple[float, ...], oriented: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without ``Orientationd`` the network sees the file's own axes."""

    def change(config: dict[str, Any]) -> None:
        if not oriented:
            del config["preprocessing"]["transforms"][2]

    bundle = write_bundle(tmp_path / "ball", change=change)
    scan = tmp_path / "scan.nii.gz"
    write_ball(scan, direction=direction)
    assert predict(bundle, scan, "--out", tmp_path / "out", "--device", "cpu") == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert "Ball 0.2.0, prostate" in printed and "medical device" in printed
    found = np.asarray(nibabel.load(tmp_path / "out" / "scan_mask.nii.gz").dataobj)
    (expected,) = as_monai_does(bundle, scan)
    assert 0 < expected.mean() < 1
    assert (found != expected).mean() < 1e-4, "headers hold single precision, so an edge may lie on either side"
    record = json.loads((tmp_path / "out" / "predictions.json").read_text(encoding="utf-8"))
    assert record["bundle"] == {"name": "Ball", "version": "0.2.0"}
    assert 0.5 <= record["images"][0]["classes"]["prostate"]["probability"] <= 1


def test_dicom_in_and_dicom_out_with_codes_that_are_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = write_bundle(tmp_path / "ball")
    series = write_slices(tmp_path / "t2", volume(**BALL)[0], reverse=True)
    assert predict(bundle, series, "--out", tmp_path / "plain", "--device", "cpu") == 0
    assert "masks only" in capsys.readouterr().out and not list((tmp_path / "plain").glob("*.dcm"))
    (tmp_path / "codes.yaml").write_text(CODES, encoding="utf-8")
    given = ("--codes", tmp_path / "codes.yaml")
    assert predict(bundle, series, "--out", tmp_path / "out", "--device", "cpu", *given) == 0, capsys.readouterr().err
    seg = hd.seg.segread(tmp_path / "out" / "t2_seg.dcm")
    mask = sitk.GetArrayFromImage(sitk.ReadImage(tmp_path / "out" / "t2_mask.nii.gz"))
    assert seg.NumberOfFrames == mask.any((1, 2)).sum() > 0
    assert seg.SegmentSequence[0].SegmentationAlgorithmIdentificationSequence[0].AlgorithmName == (
        "MONAI bundle 0.2.0 on Ball"
    )
    with (tmp_path / "out" / "predictions.csv").open(encoding="utf-8") as file:
        assert next(csv.DictReader(file))["statistics"] == "the bundle's own"


def overlap(config: dict[str, Any]) -> None:
    """Each output is a structure of its own, with a threshold."""
    steps = config["postprocessing"]["transforms"]
    steps[0] = {"_target_": "Activationsd", "keys": "pred", "sigmoid": True}
    steps[2] = {"_target_": "AsDiscreted", "keys": "pred", "threshold": 0.5}


def write_overlapping(folder: Path, *, change: Change = overlap, names: tuple[str, str] = ("tumour", "core")) -> Path:
    write_bundle(folder, change=change)
    described = json.loads(json.dumps(METADATA))
    described["network_data_format"]["outputs"]["pred"]["channel_def"] = dict(zip("01", names, strict=True))
    (folder / "configs" / "metadata.json").write_text(json.dumps(described), encoding="utf-8")
    return folder


def test_structures_that_overlap_are_those_of_monai_each_in_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the bundle would put them into one mask by an expression, as that of BraTS in the model zoo does."""

    def merged(config: dict[str, Any]) -> None:
        overlap(config)
        expression = {"_target_": "Lambdad", "keys": "pred", "func": f"${MARK}"}
        config["postprocessing"]["transforms"].insert(3, expression)

    bundle, scan = write_overlapping(tmp_path / "glioma", change=merged), tmp_path / "scan.nii.gz"
    write_ball(scan, direction=rotation(9, 1))
    assert predict(bundle, scan, "--out", tmp_path / "out", "--device", "cpu") == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert "tumour, core" in printed and "not run" in printed
    expected = as_monai_does(write_overlapping(tmp_path / "apart"), scan)
    assert (expected[0] & expected[1]).any() and (expected[0] != expected[1]).any()
    for name, inside in zip(("tumour", "core"), expected, strict=True):
        written = np.asarray(nibabel.load(tmp_path / "out" / f"scan_{name}_mask.nii.gz").dataobj)
        assert (written != inside).mean() < 1e-4
    record = json.loads((tmp_path / "out" / "predictions.json").read_text(encoding="utf-8"))
    classes = record["images"][0]["classes"]
    assert {name: each["voxels"] for name, each in classes.items()} == pytest.approx(
        dict(zip(("tumour", "core"), expected.sum((1, 2, 3)).tolist(), strict=True)), rel=1e-3
    )
    assert all(0.5 <= each["probability"] <= 1 for each in classes.values())
    with (tmp_path / "out" / "predictions.csv").open(encoding="utf-8") as file:
        total = int(next(csv.DictReader(file))["voxels"])
    assert total == pytest.approx(int(expected.any(0).sum()), rel=1e-3), "a voxel of both counts once"
    assert not (tmp_path / "out" / "scan_mask.nii.gz").exists(), "a voxel has one value there"


def test_structures_that_overlap_are_no_single_mask_and_not_scored_at_sites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = write_overlapping(tmp_path / "glioma")
    write_ball(tmp_path / "scan.nii.gz")
    assert predict(bundle, tmp_path / "scan.nii.gz", "--out", tmp_path / "out", "--format", "mask") == 2
    assert "--format regions" in capsys.readouterr().err and not (tmp_path / "out").exists()
    with raises("bundle-overlap", naming="tumour, core"):
        pack_bundle(bundle, tmp_path / "carried")
    with raises("bundle-config", naming="no argmax"):
        open_bundle(write_overlapping(tmp_path / "with_background", names=("background", "core")))


def test_a_network_is_of_volumes_where_that_is_its_default(tmp_path: Path) -> None:
    from monai.networks.nets import SegResNet

    options: dict[str, Any] = {"init_filters": 8, "out_channels": 2, "blocks_down": [1, 1], "blocks_up": [1]}
    change, weights = at("network_def", value={"_target_": "SegResNet", **options}), SegResNet(**options).state_dict()
    bundle = open_bundle(write_bundle(tmp_path / "ball", change=change, weights=weights), device="cpu")
    assert bundle.logits(torch.zeros(1, 1, 16, 16, 8)).shape == (1, 2, 16, 16, 8)


def test_segments_of_dicom_overlap_as_the_structures_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = write_overlapping(tmp_path / "glioma")
    series = write_slices(tmp_path / "t2", volume(**BALL)[0], reverse=True)
    category = "category: [49755003, SCT, Morphologically Altered Structure]"
    types = {"tumour": "[108369006, SCT, Neoplasm]", "core": "[6574001, SCT, Necrosis]"}
    codes = "".join(f"  {name}: {{{category}, type: {code}}}\n" for name, code in types.items())
    (tmp_path / "codes.yaml").write_text(f"codes:\n{codes}", encoding="utf-8")
    options = ("--out", tmp_path / "out", "--device", "cpu", "--codes", tmp_path / "codes.yaml")
    assert predict(bundle, series, *options) == 0, capsys.readouterr().err
    segments = hd.seg.segread(tmp_path / "out" / "t2_seg.dcm").get_volume(combine_segments=False).array
    for number, name in enumerate(("tumour", "core")):
        mask = sitk.GetArrayFromImage(sitk.ReadImage(tmp_path / "out" / f"t2_{name}_mask.nii.gz"))
        assert mask.sum() == segments[..., number].sum() > 0


def test_numbers_of_classes_are_not_interpolated_where_the_bundle_would(tmp_path: Path) -> None:
    def change(config: dict[str, Any]) -> None:
        steps = config["postprocessing"]["transforms"]
        steps[1], steps[2] = steps[2], steps[1]

    bundle = open_bundle(write_bundle(tmp_path / "ball", change=change), device="cpu")
    assert any("nearest voxel's class" in note for note in bundle.notes)
    write_ball(tmp_path / "scan.nii.gz", direction=rotation(9, 1))
    assert predict(bundle.path, tmp_path / "scan.nii.gz", "--out", tmp_path / "out", "--device", "cpu") == 0
    record = json.loads((tmp_path / "out" / "predictions.json").read_text(encoding="utf-8"))
    found = record["images"][0]["classes"]["prostate"]
    assert found["voxels"] > 0 and found["probability"] is None, "probabilities never lay on the scan's grid"


def at(*path: str | int, value: object) -> Change:
    def change(config: dict[str, Any]) -> None:
        node: Any = config
        for step in path[:-1]:
            node = node[step]
        node[path[-1]] = value

    return change


TRANSFORMS = ("preprocessing", "transforms")
AFTERWARDS = ("postprocessing", "transforms")
MARK = "open('ran', 'w').close()"
REFUSED = {
    "expression": (at(*TRANSFORMS, 4, "a_max", value=f"${MARK}"), "a_max is an expression"),
    "list by code": (at(*TRANSFORMS, value=f"${MARK} or @image_key"), "transforms"),
    "lambda": (at(*TRANSFORMS, 4, value={"_target_": "Lambdad", "keys": "image", "func": f"${MARK}"}), "is Lambdad"),
    "own script": (at("network_def", "_target_", value="scripts.net.Net"), "is 'scripts.net.Net'"),
    "any class": (at(*TRANSFORMS, 4, value={"_target_": "os.system", "command": "touch ran"}), "is os.system"),
    "a class within": (
        at("inferer", "mode", value={"_target_": "os.system", "command": "touch ran"}),
        "is a component",
    ),
    "code network": (at("network_def", value=f"${MARK}"), "network_def is an expression"),
    "requires": (at("inferer", "_requires_", value=f"${MARK}"), "has _requires_"),
    "macro": (at("pixdim", value="%other.json::pixdim"), "is a macro"),
    "circle": (at("pixdim", value="@pixdim"), "refers to itself"),
    "nowhere": (at("pixdim", value="@pix"), "refers to @pix, which is not there"),
    "download": (at("network_def", value={"_target_": "FlexibleUNet", "pretrained": True}), "no option 'pretrained'"),
    "other inferer": (at("inferer", "_target_", value="SliceInferer"), "is SliceInferer, which is not in the list"),
    "slices": (at("network_def", "spatial_dims", value=2), "is not for volumes"),
    "classes or none": (
        at(*AFTERWARDS, 2, value={"_target_": "AsDiscreted", "keys": "pred", "threshold": 0.5}),
        "no argmax",
    ),
    "no classes": (at(*AFTERWARDS, 2, "_disabled_", value=True), "has no AsDiscreted"),
    "no way back": (at(*AFTERWARDS, 1, "_disabled_", value=True), "has no Invertd"),
    "bad option": (at("inferer", "overlaps", value=0.5), "cannot be made by the installed MONAI"),
    "other network": (at("network_def", "channels", value=[4, 16]), "does not fit the network"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_code_and_what_is_not_listed_is_refused_by_name(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    change, reason = REFUSED[case]
    bundle = write_bundle(tmp_path / "ball", change=change)
    write_ball(tmp_path / "scan.nii.gz")
    assert predict(bundle, "scan.nii.gz", "--out", "out") == 2
    printed = capsys.readouterr().err
    assert reason in printed and "Traceback" not in printed
    assert not Path("ran").exists() and not Path("out").exists()


def test_a_step_that_needs_scikit_image_is_refused_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skimage", None)
    step = {"_target_": "RemoveSmallObjectsD", "keys": "pred"}
    bundle = write_bundle(tmp_path / "ball", change=at(*AFTERWARDS, 3, value=step))
    with raises("bundle-config", naming=("RemoveSmallObjectsD", "scikit-image")):
        open_bundle(bundle, device="cpu")


LARGEST = {"_target_": "KeepLargestConnectedComponentd", "keys": "pred"}


class Passes(torch.nn.Module):
    """A network that returns its window and no copy of it."""

    def forward(self, window: torch.Tensor) -> torch.Tensor:
        return window


def test_a_network_that_returns_a_view_of_its_window_leaves_the_scan_as_it_is(tmp_path: Path) -> None:
    """With one window at a time MONAI multiplies the scan by its weights, where windows overlap more than once."""

    def change(config: dict[str, Any]) -> None:
        config["inferer"] |= {"sw_batch_size": 1, "mode": "gaussian"}

    bundle = open_bundle(write_bundle(tmp_path / "ball", change=change), device="cpu")
    volume = torch.rand(1, 2, 20, 21, 12, generator=torch.Generator().manual_seed(0))
    before = volume.clone()
    found = replace(bundle, net=Passes()).logits(volume)
    assert torch.equal(volume, before)
    torch.testing.assert_close(found, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, {1: 16, 2: 2}),
        ({"applied_labels": [1]}, {1: 16, 2: 3}),
        ({"independent": False}, {1: 16, 2: 0}),
        ({"num_components": 2}, {1: 16, 2: 3}),
        ({"connectivity": 1}, {1: 16, 2: 3}),
    ],
    ids=str,
)
def test_of_parts_of_one_size_a_bundle_keeps_all_in_a_mirrored_scan_too(
    options: dict[str, Any], kept: dict[int, int], tmp_path: Path
) -> None:
    step = {**LARGEST, **options}
    bundle = open_bundle(write_bundle(tmp_path / "ball", change=at(*AFTERWARDS, 3, value=step)), device="cpu")
    classes = torch.zeros(1, 12, 12, 12)
    for first in (0, 6):
        classes[0, first : first + 2, first : first + 2, first : first + 2] = 1
    classes[0, 11, 0, 0] = 1
    classes[0, 0, 10, 10] = classes[0, 1, 11, 11] = classes[0, 5, 11, 0] = 2
    ((_, keep),) = [step for step in bundle.after if step[0] == LARGEST["_target_"]]
    for axes in ((), (1,), (2, 3), (1, 2, 3)):
        given = MetaTensor(classes.flip(axes))
        found = keep({"pred": given})["pred"].as_tensor().flip(axes)
        assert {label: int((found == label).sum()) for label in (1, 2)} == kept


def test_the_largest_component_of_probabilities_is_refused(tmp_path: Path) -> None:
    def change(config: dict[str, Any]) -> None:
        config["postprocessing"]["transforms"].insert(2, LARGEST)

    with raises("bundle-config", naming="AsDiscreted"):
        open_bundle(write_bundle(tmp_path / "ball", change=change), device="cpu")


@pytest.mark.parametrize(
    ("change", "step"),
    [
        (at(*TRANSFORMS, 5, value={"_target_": "Resized", "keys": "image", "spatial_size": [16, 16]}), "Resized"),
        (at("inferer", "roi_size", value=[16, 16]), "SlidingWindowInferer"),
        (
            at(*AFTERWARDS, 2, value={"_target_": "AsDiscreted", "keys": "pred", "argmax": True, "dim": 7}),
            "AsDiscreted",
        ),
    ],
    ids=["before", "network", "after"],
)
def test_a_step_that_fails_on_a_scan_is_named(
    change: Change, step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = write_bundle(tmp_path / "ball", change=change)
    write_ball(tmp_path / "scan.nii.gz")
    assert predict(bundle, tmp_path / "scan.nii.gz", "--out", tmp_path / "out", "--device", "cpu") == 1
    printed = capsys.readouterr().err
    assert all(name in printed for name in (f"{bundle}: {step} ", "50 x 45 x 13", "0.7 x 0.8 x 3 mm"))
    assert "applying transform" not in printed and not list((tmp_path / "out").iterdir())


class Runs:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, (MARK,))


def test_weights_are_tensors_only_and_scripts_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = write_bundle(tmp_path / "ball")
    (bundle / "scripts").mkdir()
    (bundle / "scripts" / "__init__.py").write_text(MARK, encoding="utf-8")
    assert any("scripts/ is not run" in note for note in open_bundle(bundle, device="cpu").notes)
    (bundle / "models" / "model.pt").write_bytes(pickle.dumps({"a": Runs()}))
    with pytest.raises(ConfigError, match=r"model\.pt"):
        open_bundle(bundle, device="cpu")
    (bundle / "models" / "model.pt").unlink()
    (bundle / "models" / "model.ts").write_bytes(b"code")
    with pytest.raises(ConfigError, match=r"models/model\.pt"):
        open_bundle(bundle, device="cpu")
    assert not Path("ran").exists()
    assert predict(write_bundle(tmp_path / "other"), "scan.nii.gz", "--out", "out", "--site", "HK") == 2
    assert "--site-state [no-effect]" in capsys.readouterr().err


def test_a_configuration_in_yaml_is_read_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "ball")
    config = bundle / "configs" / "inference.json"
    config.rename(config.with_suffix(".yaml"))  # JSON is YAML
    assert BundleConfig(bundle).component("inferer").name == "SlidingWindowInferer"
    config.with_suffix(".yaml").write_text("a: [1,", encoding="utf-8")
    with raises("file-unreadable", naming="inference.yaml"):
        BundleConfig(bundle)
    config.with_suffix(".yaml").unlink()
    with raises("no-model", naming=str(bundle)):
        BundleConfig(bundle)
