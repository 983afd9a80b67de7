"""Export a segmentation model as a results folder of nnU-Net, which ``nnUNetv2_predict`` runs without fedshift.

Written are the three files that it reads: ``plans.json`` (how a scan becomes the network's input, and the network),
``dataset.json`` (channels and labels) and ``fold_0/checkpoint_final.pth`` (weights under all names that nnU-Net's
network has for them, and the axes to mirror). A model fits if it trained in nnU-Net's convention on one of its
networks; whatever nnU-Net would do otherwise is refused.

nnU-Net assembles logits in half precision, and fedshift in single precision: of a voxel whose two best classes differ
by less than that rounding, either may be said.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedshift.inference.export import check_logits
from fedshift.inference.ready import ReadyModel
from fedshift.runtime.nnunet import LEAST_DEVIATION, step_of
from fedshift.runtime.segmentation import PatchSpec, uses_bf16
from fedshift.schema.errors import ConfigError
from fedshift.schema.files import written_whole
from fedshift.schema.task import TaskSpec
from fedshift.tasks import nnunet_networks

TRAINER, PLANS, CHECKPOINT = "nnUNetTrainer", "nnUNetPlans", "checkpoint_final.pth"
CONFIGURATIONS = {2: "2d", 3: "3d_fullres"}
FOLD = "fold_0"
DATASET = re.compile(r"Dataset\d{3}_[A-Za-z0-9_-]+")
NUMBER = 900
"""Of a data set without a name of nnU-Net's kind; published ones have smaller numbers."""
READER = "SimpleITKIOWithReorient"
"""nnU-Net's reader that turns scans to the orientation in which fedshift sees them."""
OLDEST = "2.6.3"
"""The first nnU-Net that has it."""
BACKGROUND, IGNORE = "background", "ignore"
USUAL_STEP = 0.5
"""From one window to the next, as a part of a window, unless ``-step_size`` says otherwise."""
SCHEMES = {"volume": "ZScoreNormalization", "fixed": "CTNormalization", "none": "NoNormalization"}
RESAMPLING = {"order": 3, "order_z": 0, "force_separate_z": None}


@dataclass(frozen=True)
class ResultsFolder:
    """What was written: the ``folder`` of plans and folds, options of nnU-Net's prediction, and remarks for users."""

    folder: Path
    options: str
    notes: tuple[str, ...]


def write_results_folder(ready: ReadyModel, root: Path, *, dataset: str | None = None) -> ResultsFolder:
    """Write ``root/Dataset…/nnUNetTrainer__nnUNetPlans__3d_fullres`` (or ``2d``); if anything fails, nothing.

    Args:
        ready: the model.
        root: such as what ``nnUNet_results`` names; made if it is not there.
        dataset: nnU-Net's name of the data set, as ``Dataset004_Hippocampus``; default one made of the task's.

    Raises:
        ConfigError: nnU-Net would predict otherwise, or the folder exists.
    """
    folder = results_folder(ready, root, dataset=dataset)
    spec = _expressible(ready)
    configuration = CONFIGURATIONS[spec.dims]
    plans, described = _plans(ready, spec, folder.parent.name), _dataset(ready)
    weights = {
        key: value.detach().to("cpu", torch.float32 if value.is_floating_point() else value.dtype, copy=True)
        for key, value in nnunet_networks.with_second_names(
            ready.predictor.net, ready.predictor.net.state_dict()
        ).items()
    }
    checkpoint = {
        "network_weights": weights,
        "trainer_name": TRAINER,
        "init_args": {"plans": plans, "configuration": configuration, "fold": 0, "dataset_json": described},
        "inference_allowed_mirroring_axes": tuple(spec.mirror) or None,
    }
    _compare(ready, plans["configurations"][configuration]["architecture"], weights, folder)
    with written_whole(folder) as staging:
        (staging / FOLD).mkdir()
        for name, content in (("plans.json", plans), ("dataset.json", described)):
            (staging / name).write_text(json.dumps(content, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")
        torch.save(checkpoint, staging / FOLD / CHECKPOINT)
    step = step_of(spec.overlap)
    options = "-f 0" if step == USUAL_STEP else f"-f 0 -step_size {step:g}"
    return ResultsFolder(folder, options, tuple(_notes(ready)))


def results_folder(ready: ReadyModel, root: Path, *, dataset: str | None = None) -> Path:
    """The folder that `write_results_folder` makes, once it is known that it can; errors as there."""
    spec = _expressible(ready)
    dataset = dataset or f"Dataset{NUMBER}_{re.sub(r'[^A-Za-z0-9_-]', '_', ready.model.header.job.task.name)}"
    if not DATASET.fullmatch(dataset):
        raise ConfigError("dataset-name", f"nnU-Net has no data set {dataset!r}: name it as Dataset004_Hippocampus")
    folder = root / dataset / f"{TRAINER}__{PLANS}__{CONFIGURATIONS[spec.dims]}"
    if folder.exists():
        raise ConfigError("output-exists", f"{folder} already exists: name another folder or data set")
    return folder


def _expressible(ready: ReadyModel) -> PatchSpec:
    """How the model segments, if nnU-Net can do the same."""
    model, job = ready.model, ready.model.header.job
    if not isinstance(model.spec, PatchSpec):
        message = f"{model.path} segments no patches of volumes, and nnU-Net does nothing else: use another export"
        raise ConfigError("wrong-task", message)
    spec, network = model.spec, job.task.network.name
    if ready.of_pictures:
        raise _refused(ready, "it segments pictures, and volumes alone are prepared likewise", "use --onnx")
    if spec.convention != "nnunet":
        raise _refused(
            ready,
            "scans are not prepared as nnU-Net prepares them (cropped, resampled with splines, logits resampled back)",
            "train with data.convention=nnunet",
        )
    if network not in nnunet_networks.names():
        raise _refused(
            ready,
            f"its network is {network}, and nnU-Net makes its own alone",
            f"train with network.name={' or '.join(nnunet_networks.names())}",
        )
    if acting := ready.predictor.chain.changing_predictions:
        raise _refused(
            ready, f"method {' and '.join(acting)} acts when a scan is predicted", "train without it, or use --bundle"
        )
    if spec.largest_component:
        raise _refused(
            ready,
            "only the largest part of each class is kept, which nnU-Net's prediction does not do",
            f"write one without, by 'fedshift postprocess {ready.model.path} --largest-component none'",
        )
    if job.task.regions and not job.task.regions_class_order:
        raise _refused(
            ready,
            "its regions have no class as which each is written, in an order",
            "train with task.regions_class_order, or use --bundle",
        )
    if job.task.regions and all(len(members) == 1 for members in job.task.regions.values()):
        raise _refused(ready, "each of its regions is one class, which nnU-Net takes for classes", "use --bundle")
    for name, what in ((IGNORE, "voxels to ignore"), (BACKGROUND, "what is of no class")):
        if name in job.task.structures:
            raise _refused(ready, f"its class {name!r} is what nnU-Net calls {what}", "give it another name")
    return spec


def _refused(ready: ReadyModel, because: str, instead: str) -> ConfigError:
    return ConfigError("not-nnunet", f"{ready.model.path} would predict otherwise in nnU-Net: {because}: {instead}")


def _plans(ready: ReadyModel, spec: PatchSpec, dataset: str) -> dict[str, Any]:
    """What nnU-Net's planner would have written; keys and words are nnU-Net's."""
    task = ready.model.header.job.task
    channels = max(len(ready.sequences), 1)
    spacing = [float(length) for length in spec.spacing or () if length is not None]
    resampling = {"is_seg": False, **RESAMPLING}
    resample = "resample_data_or_seg_to_shape"
    configuration = {
        "data_identifier": f"{PLANS}_{CONFIGURATIONS[spec.dims]}",
        "preprocessor_name": "DefaultPreprocessor",
        "batch_size": task.schedule.batch_size,
        "patch_size": [*spec.patch],
        "median_image_size_in_voxels": [float(side) for side in spec.patch],
        "spacing": spacing,
        "normalization_schemes": [SCHEMES[spec.normalise]] * channels,
        "use_mask_for_norm": [spec.nonzero] * channels,
        "resampling_fn_data": resample,
        "resampling_fn_seg": resample,
        "resampling_fn_data_kwargs": resampling,
        "resampling_fn_seg_kwargs": {**resampling, "is_seg": True, "order": 1},
        "resampling_fn_probabilities": resample,
        "resampling_fn_probabilities_kwargs": {**resampling, "order": 1},
        "architecture": _architecture(task, spec.dims),
        "batch_dice": False,
    }
    return {
        "dataset_name": dataset,
        "plans_name": PLANS,
        "original_median_spacing_after_transp": [1.0] * (3 - len(spacing)) + spacing,
        "original_median_shape_after_transp": [1] * (3 - spec.dims) + [*spec.patch],
        "image_reader_writer": READER,
        "transpose_forward": [0, 1, 2],
        "transpose_backward": [0, 1, 2],
        "configurations": {CONFIGURATIONS[spec.dims]: configuration},
        "experiment_planner_used": "ExperimentPlanner",
        "label_manager": "LabelManager",
        "foreground_intensity_properties_per_channel": {str(number): _range(spec) for number in range(channels)},
    }


def _range(spec: PatchSpec) -> dict[str, float]:
    """Intensities of a channel, which only CT is normalised by."""
    if spec.fixed is None:
        return {}
    low, high, mean, std = spec.fixed
    return {"percentile_00_5": low, "percentile_99_5": high, "mean": mean, "std": max(std, LEAST_DEVIATION)}


def _architecture(task: TaskSpec, dims: int) -> dict[str, Any]:
    short = task.network.name.removeprefix(nnunet_networks.PREFIX)
    chosen = nnunet_networks.complete(short, task.network.options, dims=dims)
    del chosen["deep_supervision"]  # of training alone
    norm, dropout = chosen["norm_op"], chosen["dropout_op"]
    norms = {"instance": "torch.nn.modules.instancenorm.InstanceNorm", "batch": "torch.nn.modules.batchnorm.BatchNorm"}
    classes = {
        "conv_op": f"torch.nn.modules.conv.Conv{dims}d",
        "norm_op": None if norm is None else f"{norms[norm]}{dims}d",
        "dropout_op": None if dropout is None else f"torch.nn.modules.dropout.Dropout{dims}d",
        "nonlin": f"torch.nn.{chosen['nonlin']}",
    }
    return {
        "network_class_name": f"{nnunet_networks.MODULE}.{short}",
        "arch_kwargs": {**chosen, **classes},
        "_kw_requires_import": [*classes],
    }


def _dataset(ready: ReadyModel) -> dict[str, Any]:
    header = ready.model.header
    task = header.job.task
    named = (BACKGROUND, *task.classes[1:])
    labels: dict[str, int | list[int]] = {name: number for number, name in enumerate(named)}
    order: dict[str, list[int]] = {}
    if task.regions:
        members = {name: [task.classes.index(each) for each in parts] for name, parts in task.regions.items()}
        labels = {BACKGROUND: 0, **members}
        order = {"regions_class_order": [task.classes.index(name) for name in task.regions_class_order]}
    return {
        "channel_names": {str(number): name for number, name in enumerate(ready.sequences or ("image",))},
        "labels": labels,
        **order,
        "numTraining": 0,
        "file_ending": ".nii.gz",
        "name": task.name,
        "description": (
            f"{'+'.join(header.job.methods)} at {len(header.sites)} sites, round {header.round}, exported by fedshift "
            f"{header.fedshift}; research use only, not a medical device"
        ),
    }


def _compare(ready: ReadyModel, architecture: Mapping[str, Any], weights: Mapping[str, Tensor], folder: Path) -> None:
    """Make the network as nnU-Net does, and compare its logits with the model's."""
    network = nnunet_network(architecture, max(len(ready.sequences), 1), ready.model.header.job.task.outputs)
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise _refused(
            ready,
            f"its layers are not those of nnU-Net's network ({(str(error).splitlines() or [''])[-1].strip():.120})",
            "train without the method that changes them",
        ) from None
    predictor = ready.predictor.to("cpu")
    try:
        with torch.no_grad():
            check_logits(ready.model, predictor, network.eval(), folder)
    finally:
        ready.predictor.to(ready.device)


def nnunet_network(architecture: Mapping[str, Any], channels: int, outputs: int) -> nn.Module:
    """The network that an ``architecture`` of `_plans` describes, without deep supervision."""
    module, _, short = str(architecture["network_class_name"]).rpartition(".")
    arguments = dict(architecture["arch_kwargs"])
    for key in architecture["_kw_requires_import"]:
        if arguments[key] is not None:
            arguments[key] = getattr(nn, arguments[key].rpartition(".")[2])
    cls = getattr(importlib.import_module(module), short)
    network: nn.Module = cls(input_channels=channels, num_classes=outputs, deep_supervision=False, **arguments)
    return network


def _notes(ready: ReadyModel) -> list[str]:
    notes = [
        f"nnU-Net {OLDEST} or a newer one runs it: older ones lack its reader of images, {READER}",
        "nnU-Net assembles logits in half precision: a few voxels in 100,000 on the edges of structures may be another "
        "class than with fedshift predict, and of a model that has hardly trained a few in 1,000",
    ]
    precision = ready.model.header.job.task.schedule.precision
    if uses_bf16(precision, ready.device):
        notes.append(
            "fedshift predict computes this model in bf16 here, and nnU-Net in fp32 on a processor and fp16 on a GPU: "
            "more voxels on edges differ"
        )
    return notes
