"""Starting from nnU-Net's checkpoints: plans to a network, weights one to one, and what is not loaded."""

from __future__ import annotations

import copy
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from errors import raises
from torch import Tensor, nn

from fedshift.cli import main
from fedshift.schema.job import read_job
from fedshift.schema.task import WeightsSpec
from fedshift.tasks import networks, nnunet_checkpoint, nnunet_networks, pretrained
from fedshift.tasks.nnunet_checkpoint import Described, check_fits
from fedshift.tasks.starting import starting_network

pytest.importorskip("dynamic_network_architectures", reason="pip install 'fedshift[nnunet]'")

ARGUMENTS: dict[str, Any] = {
    "n_stages": 3,
    "features_per_stage": [4, 8, 8],
    "conv_op": "torch.nn.modules.conv.Conv3d",
    "kernel_sizes": [[1, 3, 3], [3, 3, 3], [3, 3, 3]],
    "strides": [[1, 1, 1], [1, 2, 2], [2, 2, 2]],
    "n_conv_per_stage": [2, 2, 2],
    "n_conv_per_stage_decoder": [2, 2],
    "conv_bias": True,
    "norm_op": "torch.nn.modules.instancenorm.InstanceNorm3d",
    "norm_op_kwargs": {"eps": 1e-05, "affine": True},
    "dropout_op": None,
    "dropout_op_kwargs": None,
    "nonlin": "torch.nn.LeakyReLU",
    "nonlin_kwargs": {"inplace": True},
}
PLANS: dict[str, Any] = {
    "dataset_name": "Dataset900_Small",
    "plans_name": "nnUNetPlans",
    "transpose_forward": [0, 1, 2],
    "transpose_backward": [0, 1, 2],
    "image_reader_writer": "SimpleITKIO",
    "label_manager": "LabelManager",
    "foreground_intensity_properties_per_channel": {},
    "configurations": {
        "3d_fullres": {
            "data_identifier": "small",
            "preprocessor_name": "DefaultPreprocessor",
            "batch_size": 2,
            "patch_size": [16, 16, 16],
            "spacing": [1.0, 1.0, 1.0],
            "normalization_schemes": ["ZScoreNormalization"],
            "use_mask_for_norm": [False],
            "batch_dice": False,
            "architecture": {
                "network_class_name": "dynamic_network_architectures.architectures.unet.PlainConvUNet",
                "arch_kwargs": ARGUMENTS,
                "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
            },
        }
    },
}
DATASET: dict[str, Any] = {
    "channel_names": {"0": "MRI"},
    "labels": {"background": 0, "anterior": 1, "posterior": 2},
    "numTraining": 1,
    "file_ending": ".nii.gz",
}
THEIRS = """
import copy, json, sys
import numpy as np, torch
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

plans, dataset, file = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
plans["continue_training"] = False
torch.manual_seed(0)
trainer = nnUNetTrainer(plans, "3d_fullres", 0, dataset, device=torch.device("cpu"))
trainer.initialize()
x = torch.randn(2, 1, 16, 16, 16)
trainer.network(x)[0].square().mean().backward()
trainer.optimizer.step()
trainer._best_ema = np.float64(0.5)
trainer.save_checkpoint(file)
trainer.set_deep_supervision_enabled(False)
with torch.no_grad():
    torch.save({"x": x, "y": trainer.network.eval()(x)}, file + ".io")
"""


def options_of(found: Described) -> nn.Module:
    return networks.build(
        found.name,
        found.options,
        in_channels=found.channels,
        n_classes=len(found.named),
        seed=1,
        spatial_dims=found.dims,
    )


def options(**changes: Any) -> dict[str, Any]:
    """Of the network that `ARGUMENTS` describe, as a job has them."""
    words = {key: value for key, value in ARGUMENTS.items() if key not in ("conv_op", "norm_op", "nonlin")}
    return words | changes


def save(path: Path, *, channels: Mapping[str, str] = DATASET["channel_names"], **changes: Any) -> Path:
    """A checkpoint as nnU-Net's trainer saves it, of a network with random weights."""
    torch.manual_seed(0)
    net = networks.build(
        "nnunet.PlainConvUNet", options(), in_channels=len(channels), n_classes=3, seed=5, spatial_dims=3
    )
    described = {**DATASET, "channel_names": channels}
    arguments = {"plans": PLANS, "configuration": "3d_fullres", "fold": 0, "dataset_json": described}
    content = {
        "network_weights": nnunet_networks.with_second_names(net, net.state_dict()),
        "trainer_name": "nnUNetTrainer",
        "logging": {"ema_fg_dice": [np.float32(0.25), np.float64(0.5), np.int64(3), np.bool_(True)]},
        "init_args": {**arguments, "device": torch.device("cpu")},
        **changes,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)
    return path


@pytest.mark.skipif(find_spec("nnunetv2") is None, reason="pip install nnunetv2, to compare with nnU-Net itself")
def test_a_checkpoint_of_nnunets_trainer_predicts_the_same_bits(tmp_path: Path) -> None:
    file, prepared = tmp_path / "checkpoint_final.pth", tmp_path / "preprocessed" / "Dataset900_Small" / "small"
    prepared.mkdir(parents=True)
    (prepared / "case.b2nd").touch()  # from which its trainer infers how arrays are stored
    folders = {f"nnUNet_{key}": str(tmp_path / key) for key in ("raw", "preprocessed", "results")}
    command = [sys.executable, "-c", THEIRS, json.dumps(PLANS), json.dumps(DATASET), str(file)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **folders}, timeout=300)
    weights = pretrained.from_nnunet(file)
    assert weights is not None
    net = options_of(weights)
    net.load_state_dict(pretrained.take(net, pretrained.read(file), where=file.name).arrays)
    pair = torch.load(Path(f"{file}.io"), weights_only=True)
    with torch.no_grad():
        assert torch.equal(net.eval()(pair["x"]), pair["y"])


def test_the_network_is_that_of_the_plans_and_all_weights_are_taken(tmp_path: Path) -> None:
    file = save(tmp_path / "checkpoint_final.pth")
    weights = pretrained.from_nnunet(file)
    assert weights is not None
    assert (weights.dims, weights.channels, len(weights.named)) == (3, 1, 3)
    assert weights.options["strides"] == ARGUMENTS["strides"] and weights.options["norm_op"] == "instance"
    net = options_of(weights)
    loaded = pretrained.take(net, pretrained.read(file), where=file.name)
    assert not loaded.new and not loaded.unused and loaded.arrays.keys() == net.state_dict().keys()


def test_plans_beside_the_checkpoint_or_above_its_fold_are_read(tmp_path: Path) -> None:
    results = tmp_path / "nnUNetTrainer__nnUNetPlans__3d_fullres"
    save(results / "fold_0" / "checkpoint_final.pth", init_args={})
    for name, content in (("plans.json", PLANS), ("dataset.json", DATASET)):
        (results / name).write_text(json.dumps(content), encoding="utf-8")
    file = pretrained.file_of(results)
    assert pretrained.file_of(tmp_path) == file, "the only one of the data set"
    weights = pretrained.from_nnunet(file)
    assert weights is not None and weights.options["features_per_stage"] == [4, 8, 8]
    save(results / "fold_1" / "checkpoint_final.pth")
    with raises("weights-missing", naming=("fold_0", "fold_1")):
        pretrained.file_of(results)
    with raises("weights-missing", naming=f"{results.name}/fold_1"):
        pretrained.file_of(tmp_path)
    (tmp_path / "empty").mkdir()
    with raises("weights-missing", naming="checkpoint_final.pth"):
        pretrained.file_of(tmp_path / "empty")


def test_plans_of_the_first_versions_describe_the_same_network(tmp_path: Path) -> None:
    plans = copy.deepcopy(PLANS)
    configuration = plans["configurations"].pop("3d_fullres")
    del configuration["architecture"]
    plans["configurations"] = {
        "base": {
            **configuration,
            "UNet_class_name": "PlainConvUNet",
            "UNet_base_num_features": 4,
            "unet_max_num_features": 8,
            "conv_kernel_sizes": ARGUMENTS["kernel_sizes"],
            "pool_op_kernel_sizes": ARGUMENTS["strides"],
            "n_conv_per_stage_encoder": [2, 2, 2],
            "n_conv_per_stage_decoder": [2, 2],
        },
        "3d_fullres": {"inherits_from": "base"},
    }
    arguments = {"plans": plans, "configuration": "3d_fullres", "dataset_json": DATASET}
    weights = pretrained.from_nnunet(save(tmp_path / "a.pth", init_args=arguments))
    assert weights is not None
    net = options_of(weights)
    assert len(pretrained.take(net, pretrained.read(tmp_path / "a.pth"), where="a.pth").arrays) == len(net.state_dict())


def other_network(plans: dict[str, Any]) -> None:
    plans["configurations"]["3d_fullres"]["architecture"]["network_class_name"] = "their.networks.PlainConvUNett"


def cascade(plans: dict[str, Any]) -> None:
    plans["configurations"]["3d_fullres"]["previous_stage"] = "3d_lowres"


def other_layer(plans: dict[str, Any]) -> None:
    plans["configurations"]["3d_fullres"]["architecture"]["arch_kwargs"]["norm_op"] = "os.system"


def no_axes(plans: dict[str, Any]) -> None:
    plans["transpose_forward"] = [2, 0, 0]


def no_patch(plans: dict[str, Any]) -> None:
    del plans["configurations"]["3d_fullres"]["patch_size"]


@pytest.mark.parametrize(
    ("change", "code", "names"),
    [
        (other_network, "network-unlisted", "PlainConvUNet"),
        (cascade, "network-unlisted", "3d_lowres"),
        (other_layer, "network-unlisted", "norm_op"),
        (no_patch, "plans-form", "patch_size"),
        (no_axes, "plans-form", "transpose_forward"),
    ],
)
def test_plans_that_are_refused(
    change: Callable[[dict[str, Any]], None], code: str, names: str, tmp_path: Path
) -> None:
    plans = copy.deepcopy(PLANS)
    change(plans)
    arguments = {"plans": plans, "configuration": "3d_fullres", "dataset_json": DATASET}
    with raises(code, naming=names):
        pretrained.from_nnunet(save(tmp_path / "checkpoint_final.pth", init_args=arguments))


def test_a_checkpoint_without_plans_is_refused(tmp_path: Path) -> None:
    with raises("plans-missing", naming=("plans.json", "dataset.json")):
        pretrained.from_nnunet(save(tmp_path / "a" / "b" / "checkpoint_final.pth", init_args={}))


class Calls:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.getpid, ()


def test_nothing_but_arrays_and_numbers_is_loaded(tmp_path: Path) -> None:
    with raises("weights-format"):
        pretrained.from_nnunet(save(tmp_path / "a.pth", logging={"x": Calls()}))
    with raises("weights-format"):
        pretrained.from_nnunet(save(tmp_path / "b.pth", logging={"x": np.str_("abc")}))


def test_a_job_starts_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDSHIFT_WEIGHTS", str(tmp_path / "weights"))
    file = save(tmp_path / "checkpoint_final.pth")
    base = ["job", "fedavg", "hippocampus", "--init", str(file), "--out", str(tmp_path / "jobs"), "--name", "warm"]
    assert main([*base, "--set", "data.patch=[16,16,16]"]) == 0
    assert "patch 16 x 16 x 16" in capsys.readouterr().out
    job = read_job(next((tmp_path / "jobs" / "warm").rglob("fedshift.yaml")))
    weights = job.task.network.weights
    assert job.task.network.name == "nnunet.PlainConvUNet" and isinstance(weights, WeightsSpec) and not weights.partial
    net, _ = starting_network(job)
    first: Tensor = net.state_dict()["encoder.stages.0.0.convs.0.conv.weight"]
    assert torch.equal(first, pretrained.read(file)["encoder.stages.0.0.convs.0.conv.weight"])
    assert main([*base, "--set", "network.options.n_stages=4"]) == 2
    assert "network.options.n_stages=4" in capsys.readouterr().err
    one_class = {**DATASET, "labels": {"background": 0, "anterior": 1}}
    arguments = {"plans": PLANS, "configuration": "3d_fullres", "dataset_json": one_class}
    save(file, init_args=arguments)
    assert main([*base, "--force", "--set", "data.patch=[16,16,16]"]) == 2
    assert "2 classes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("labels", "ends", "says"),
    [
        ({"background": 0, "posterior": 1, "anterior": 2}, 2, "background, posterior, anterior"),
        ({"posterior": 2, "background": 0, "anterior": [1]}, 0, ""),
        ({"background": 0, "whole": [1, 2], "core": [2], "edge": [1]}, 2, "regions"),
        ({"background": 0, "liver": 1, "tumour": 2}, 0, "background, liver, tumour"),
    ],
)
def test_outputs_of_other_classes_are_not_taken_for_the_tasks(
    labels: dict[str, Any],
    ends: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same classes in another order, and regions, are refused; other ones are named."""
    monkeypatch.setenv("FEDSHIFT_WEIGHTS", str(tmp_path / "weights"))
    arguments = {"plans": PLANS, "configuration": "3d_fullres", "dataset_json": {**DATASET, "labels": labels}}
    file = save(tmp_path / "checkpoint_final.pth", init_args=arguments)
    words = ["job", "fedavg", "hippocampus", "--init", str(file), "--out", str(tmp_path / "jobs")]
    assert main([*words, "--set", "data.patch=[16,16,16]"]) == ends
    printed = capsys.readouterr()
    assert says in (printed.err if ends else printed.out)
    assert ("its outputs are" in printed.out) == (not ends and bool(says))


@pytest.mark.parametrize(
    ("channels", "sequences", "ends", "says"),
    [
        ({"0": "T1", "1": "T2"}, "[T1, T2]", 0, ""),
        ({"1": "T2", "0": "T1"}, "[t1, t2]", 0, ""),
        ({"0": "T1", "1": "T2"}, "[T2, T1]", 2, "the channels T1, T2, and the task the same in the order T2, T1"),
        ({"0": "zscore", "1": "zscore"}, "[T1, T2]", 0, "its channels are zscore, zscore"),
    ],
)
def test_channels_in_another_order_are_not_taken_for_the_tasks(
    channels: dict[str, str],
    sequences: str,
    ends: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """nnU-Net has them in the order of their numbers; other names are named."""
    monkeypatch.setenv("FEDSHIFT_WEIGHTS", str(tmp_path / "weights"))
    file = save(tmp_path / "checkpoint_final.pth", channels=channels)
    words = ["job", "fedavg", "hippocampus", "--init", str(file), "--out", str(tmp_path / "jobs")]
    assert main([*words, "--set", "data.patch=[16,16,16]", f"data.sequences={sequences}"]) == ends
    printed = capsys.readouterr()
    assert says in (printed.err if ends else printed.out)
    assert ("its channels are" in printed.out) == (not ends and bool(says))


def test_channels_are_not_taken_for_neighbouring_slices(tmp_path: Path) -> None:
    file = save(tmp_path / "checkpoint_final.pth", channels={"0": "T1", "1": "T2", "2": "PD"})
    weights = pretrained.from_nnunet(file)
    assert weights is not None and weights.images == ("T1", "T2", "PD")
    with raises("weights-unfit", naming=("T1, T2, PD", "data.context=1")):
        check_fits(weights, channels=3, sequences=("T1",), named=weights.named, regions=False, dims=3, path=file)


SAID = "nnU-Net mirrored"


@pytest.mark.parametrize(
    ("learnt", "mirror", "mirrored", "augmentation", "says"),
    [
        ((0, 1, 2), "null", "false", "none", "the axes 0, 1, 2 of patches{} evaluation.mirror=true"),
        ((0, 1, 2), "null", "true", "strong", ""),
        ((0, 1, 2), "[]", "false", "none", ""),
        ((1, 0), "null", "false", "none", "the axes 0, 1 of patches{} data.mirror=[0,1] evaluation.mirror=true"),
        ((0, 1), "null", "true", "none", "the axes 0, 1 of patches{} data.mirror=[0,1]"),
        ((0, 1), "[0,1]", "true", "strong", ""),
        (None, "null", "false", "none", ""),
        (None, "null", "false", "strong", "no axis of patches{} data.mirror=[]"),
        (None, "null", "true", "none", "no axis of patches{} data.mirror=[] evaluation.mirror=false"),
    ],
)
def test_mirroring_of_a_checkpoint_that_the_task_does_otherwise_is_said(
    learnt: tuple[int, ...] | None,
    mirror: str,
    mirrored: str,
    augmentation: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FEDSHIFT_WEIGHTS", str(tmp_path / "weights"))
    file = save(tmp_path / "checkpoint_final.pth", inference_allowed_mirroring_axes=learnt)
    words = ["job", "fedavg", "hippocampus", "--init", str(file), "--out", str(tmp_path / "jobs")]
    options = [f"data.mirror={mirror}", f"evaluation.mirror={mirrored}", f"data.augmentation={augmentation}"]
    assert main([*words, "--set", "data.patch=[16,16,16]", *options]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(SAID)]
    expected = says.format(" in training and in prediction: for the same here, --set")
    assert lines == ([f"{SAID} {expected}"] if says else [])


@pytest.mark.parametrize(
    ("reader", "spacing", "uneven", "ends", "says"),
    [
        ("SimpleITKIOWithReorient", [1.0, 1.0, 1.0], True, 0, ""),
        ("SimpleITKIO", [1.0, 1.0, 1.0], True, 0, "as they lie in their files"),
        ("SimpleITKIO", [1.0, 4.0, 1.0], True, 2, "voxels of 1 x 4 x 1 mm, and the task's are of 3 x 1 x 1"),
        ("SimpleITKIO", [1.0, 4.0, 1.0], False, 0, "longest along another axis"),
        ("SimpleITKIO", [4.0, 1.0, 1.0], True, 0, "as they lie in their files"),
    ],
)
def test_scans_that_lay_otherwise_in_their_files_are_refused_or_warned_of(
    reader: str,
    spacing: list[float],
    uneven: bool,
    ends: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FEDSHIFT_WEIGHTS", str(tmp_path / "weights"))
    plans = copy.deepcopy(PLANS) | {"image_reader_writer": reader}
    plans["configurations"]["3d_fullres"]["spacing"] = spacing
    changed = {} if uneven else even(plans)
    arguments = {"plans": plans, "configuration": "3d_fullres", "dataset_json": DATASET}
    file = save(tmp_path / "checkpoint_final.pth", init_args=arguments, **changed)
    words = ["job", "fedavg", "hippocampus", "--init", str(file), "--out", str(tmp_path / "jobs")]
    assert main([*words, "--set", "data.patch=[16,16,16]", "data.spacing=[3,1,1]"]) == ends
    printed = capsys.readouterr()
    assert says in (printed.err if ends else printed.out)
    assert ends or ("until it has trained" in printed.out) == bool(says)


def even(plans: dict[str, Any]) -> dict[str, Any]:
    """Make the plans' network treat all axes alike; returns its weights as `save` takes them."""
    arguments = plans["configurations"]["3d_fullres"]["architecture"]["arch_kwargs"]
    changed = {"kernel_sizes": [[3, 3, 3]] * 3, "strides": [[1, 1, 1], [2, 2, 2], [2, 2, 2]]}
    arguments |= changed
    net = networks.build("nnunet.PlainConvUNet", options(**changed), in_channels=1, n_classes=3, seed=5, spatial_dims=3)
    return {"network_weights": nnunet_networks.with_second_names(net, net.state_dict())}


def turned(forward: Sequence[int], **changes: Any) -> dict[str, Any]:
    """``init_args`` with plans that turn the axes of files."""
    plans = copy.deepcopy(PLANS) | {"transpose_forward": [*forward]}
    plans["configurations"]["3d_fullres"] |= changes
    return {"plans": plans, "configuration": "3d_fullres", "dataset_json": DATASET}


@pytest.mark.parametrize("forward", [(0, 1, 2), (1, 0, 2), (2, 0, 1), (1, 2, 0)])
def test_a_network_of_turned_axes_says_the_same_of_volumes_as_they_lie(
    forward: tuple[int, ...], tmp_path: Path
) -> None:
    given = turned(forward, patch_size=[8, 16, 24], spacing=[4.0, 1.0, 0.5])
    file = save(tmp_path / "checkpoint_final.pth", init_args=given, inference_allowed_mirroring_axes=(0, 2))
    weights = pretrained.from_nnunet(file)
    assert weights is not None
    assert [weights.patch[axis] for axis in forward] == [8, 16, 24]
    assert [weights.spacing[axis] for axis in forward] == [4.0, 1.0, 0.5]
    assert weights.mirror == tuple(sorted((forward[0], forward[2])))
    theirs = options_of(replace(weights, options=options()))
    theirs.load_state_dict(nnunet_networks.without_second_names(nnunet_checkpoint.load(file)["network_weights"]))
    ours = options_of(weights)
    ours.load_state_dict(pretrained.take(ours, pretrained.read(file), where=file.name).arrays)
    volume = torch.randn(1, 1, *weights.patch)
    back = [forward.index(axis) for axis in range(3)]
    with torch.no_grad():
        logits = theirs.eval()(volume.permute(0, 1, *(2 + axis for axis in forward)))
        expected = logits.permute(0, 1, *(2 + axis for axis in back))
        torch.testing.assert_close(ours.eval()(volume), expected, rtol=1e-4, atol=1e-5)


def test_a_job_may_start_from_thick_coronal_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSHIFT_WEIGHTS", str(tmp_path / "weights"))
    file = save(tmp_path / "checkpoint_final.pth", init_args=turned((1, 0, 2), spacing=[4.0, 1.0, 1.0]))
    words = ["job", "fedavg", "hippocampus", "--init", str(file), "--out", str(tmp_path / "jobs"), "--name", "coronal"]
    assert main([*words, "--set", "data.patch=[16,16,16]", "data.spacing=[1,4,1]"]) == 0
    net, _ = starting_network(read_job(next((tmp_path / "jobs" / "coronal").rglob("fedshift.yaml"))))
    assert net.state_dict()["encoder.stages.0.0.convs.0.conv.weight"].shape[2:] == (3, 1, 3)
    assert main([*words, "--force", "--set", "data.patch=[16,16,16]", "data.spacing=[4,1,1]"]) == 2


def test_plans_beside_a_checkpoint_turn_no_axes(tmp_path: Path) -> None:
    """A site reads the checkpoint alone, and would take its kernels for those of other axes."""
    file = save(tmp_path / "checkpoint_final.pth", init_args={"configuration": "3d_fullres"})
    for name, content in (("plans.json", turned((1, 0, 2))["plans"]), ("dataset.json", DATASET)):
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    with raises("weights-unfit", naming=str(file)):
        pretrained.from_nnunet(file)


def test_slices_across_another_axis_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDSHIFT_WEIGHTS", str(tmp_path / "weights"))
    flat = {"kernel_sizes": [[3, 3]] * 3, "strides": [[1, 1], [2, 2], [2, 2]]}
    arguments = {**ARGUMENTS, **flat, "norm_op": "torch.nn.modules.instancenorm.InstanceNorm2d"}
    net = networks.build("nnunet.PlainConvUNet", options(**flat), in_channels=1, n_classes=3, seed=5, spatial_dims=2)
    checkpoint = turned((2, 0, 1), patch_size=[16, 16], spacing=[1.0, 1.0])
    checkpoint["plans"]["configurations"]["3d_fullres"]["architecture"]["arch_kwargs"] = arguments
    file = save(
        tmp_path / "checkpoint_final.pth",
        init_args=checkpoint,
        network_weights=nnunet_networks.with_second_names(net, net.state_dict()),
    )
    words = ["job", "fedavg", "hippocampus", "--init", str(file), "--out", str(tmp_path / "jobs")]
    assert main([*words, "--set", "data.dims=2", "data.patch=[16,16]", "data.mirror=null"]) == 0
    assert "its slices lie across another axis" in capsys.readouterr().out


def test_names_of_compiled_and_of_parallel_networks_are_known(tmp_path: Path) -> None:
    plain = pretrained.read(save(tmp_path / "plain.pth"))
    for prefix in ("_orig_mod.", "module.", "module._orig_mod."):
        weights = {f"{prefix}{key}": value.bfloat16() for key, value in plain.items()}
        file = save(tmp_path / "checkpoint_final.pth", network_weights=weights)
        found = pretrained.from_nnunet(file)
        assert found is not None
        loaded = pretrained.take(options_of(found), pretrained.read(file), where=file.name)
        assert not loaded.new and not loaded.unused


def test_an_interrupted_training_names_what_it_has_left(tmp_path: Path) -> None:
    results = tmp_path / "nnUNetTrainer__nnUNetPlans__3d_fullres"
    best = save(results / "fold_0" / "checkpoint_best.pth")
    for folder in (tmp_path, results, best.parent):
        with raises("weights-missing", naming=str(best.relative_to(folder))):
            pretrained.file_of(folder)
    final = save(results / "fold_all" / "checkpoint_final.pth")
    assert pretrained.file_of(results) == final


def test_a_trainer_with_another_network_than_its_plans_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDSHIFT_WEIGHTS", str(tmp_path / "weights"))
    net = networks.build(
        "nnunet.PlainConvUNet", options(norm_op="batch"), in_channels=1, n_classes=3, seed=5, spatial_dims=3
    )
    weights = nnunet_networks.with_second_names(net, net.state_dict())
    file = save(tmp_path / "checkpoint_final.pth", trainer_name="nnUNetTrainerBN", network_weights=weights)
    words = ["job", "fedavg", "hippocampus", "--init", str(file), "--out", str(tmp_path / "jobs")]
    assert main([*words, "--set", "data.patch=[16,16,16]"]) == 2
    refusal = capsys.readouterr().err
    assert str(file) in refusal and "nnUNetTrainerBN" in refusal


CT = {"percentile_00_5": -100.0, "percentile_99_5": 200.0, "mean": 50.0, "std": 20.0}
CT_HERE = "data.fixed={low: -100, high: 201, mean: 50, std: 20}"


@pytest.mark.parametrize(
    ("changes", "here", "wanted"),
    [
        ({}, [], "data.convention=nnunet"),
        ({}, ["data.convention=nnunet"], ""),
        ({"spacing": [2.0, 2.0, 2.0]}, ["data.convention=nnunet"], "'data.spacing=[2.0,2.0,2.0]'"),
        ({"use_mask_for_norm": [True]}, ["data.convention=nnunet"], "data.nonzero=true"),
        (
            {"normalization_schemes": ["CTNormalization"]},
            ["data.convention=nnunet"],
            "data.normalise=fixed 'data.fixed={low: -100.0,high: 200.0,mean: 50.0,std: 20.0}'",
        ),
        (
            {"normalization_schemes": ["CTNormalization"]},
            ["data.convention=nnunet", "data.normalise=fixed", CT_HERE],
            "",
        ),
        ({}, ["data.convention=nnunet", "data.normalise=fixed", CT_HERE], "data.normalise=volume data.fixed=null"),
    ],
)
def test_preparation_of_images_that_the_task_does_otherwise_is_said(
    changes: dict[str, Any],
    here: list[str],
    wanted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With settings that make it the same, if they are given as they are printed."""
    monkeypatch.setenv("FEDSHIFT_WEIGHTS", str(tmp_path / "weights"))
    checkpoint = turned((0, 1, 2), **changes)
    checkpoint["plans"]["foreground_intensity_properties_per_channel"] = {"0": CT}
    file = save(tmp_path / "checkpoint_final.pth", init_args=checkpoint)
    words = ["job", "fedavg", "hippocampus", "--init", str(file), "--out", str(tmp_path / "jobs")]
    options = ["data.patch=[16,16,16]", "data.spacing=[1,1,1]", *here]
    assert main([*words, "--set", *options]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("nnU-Net prepared")]
    assert [line.partition("--set ")[2] for line in lines] == ([wanted] if wanted else [])
    if wanted:
        same = {text.partition("=")[0]: text for text in [*options, *shlex.split(wanted)]}
        assert main([*words, "--force", "--set", *same.values()]) == 0
        assert "nnU-Net prepared" not in capsys.readouterr().out
