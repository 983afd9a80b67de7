"""Export a segmentation model as a MONAI bundle, which runs with MONAI and torch but without fedshift.

MONAI's transforms read, orient and save the scans. The steps between (resampling to the network's grid, prediction,
resampling back) are the source code of fedshift's own functions, copied into the bundle's ``scripts/``. The masks are
therefore the same as those of ``fedshift predict``.
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
import uuid
from collections.abc import Sequence
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedshift
from fedshift.federation.model_files import Header
from fedshift.inference import bundle_patches, bundle_slices
from fedshift.inference.export import write_torchscript
from fedshift.inference.model import Model, ReadyModel
from fedshift.inference.plausible import expected_of
from fedshift.schema.errors import ConfigError
from fedshift.schema.manifest import TRUE_SPACING

SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"


def write_bundle(model: Model, ready: ReadyModel, folder: Path, *, true_spacing: bool = False) -> None:
    """Write the bundle to ``folder``. If anything fails, nothing is written.

    Args:
        model: whose network it gets.
        ready: the network.
        folder: must not exist yet.
        true_spacing: what the bundle's option of this name is, of a model that works on patches: whether voxels of
            1 x 1 x 1 mm are no placeholder.

    Raises:
        ConfigError: the model is not a segmentation model, the folder exists, or the network cannot be traced.
    """
    if not model.is_segmentation:
        raise ConfigError(f"{model.path} is an image classifier: export it with --onnx or --torch-export")
    if folder.exists():
        raise ConfigError(f"{folder} already exists: name a new folder")
    parts = parts_of(model)
    staging = folder.with_name(f".{folder.name}.partial-{uuid.uuid4().hex[:8]}")
    try:
        for part in ("configs", "docs", "models", "scripts"):
            (staging / part).mkdir(parents=True)
        write_torchscript(model, ready, staging / "models" / "model.ts", named=folder)
        texts = {
            "configs/metadata.json": _json(_plain(_metadata(model, ready), model.path)),
            "configs/inference.json": _json(_inference(model, true_spacing=true_spacing)),
            "docs/README.md": model_card(model, ready),
            "scripts/__init__.py": '"""Functions that the configuration calls."""\n',
            f"scripts/{parts.SCRIPT}.py": script(parts),
            "LICENSE": _licence_text(),
        }
        for name, text in texts.items():
            (staging / name).write_text(text, encoding="utf-8")
        staging.rename(folder)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written ({error.strerror}): free disk space or name another place"
        ) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def parts_of(model: Model) -> Any:
    """The module with what is special about the model's kind of images."""
    return bundle_slices if model.patches is None else bundle_patches


def script(parts: Any) -> str:
    """The source of the bundle's script: constants and functions of fedshift, and the inferer that calls them."""
    constants = "".join(f"{name} = {value!r}\n" for name, value in parts.COPIED_CONSTANTS.items())
    functions = "\n\n".join(inspect.getsource(function) for function in parts.COPIED_FUNCTIONS)
    header = parts.SCRIPT_HEADER.format(version=fedshift.__version__)
    return f"{header}\n{constants}\n\n{functions}\n{parts.SCRIPT_INFERER}"


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _plain(content: Any, path: Path) -> Any:
    """Refuse metadata that MONAI would execute or resolve: it takes texts that begin with $, @ or % for more than text.

    Raises:
        ConfigError: the model file has such a text.
    """
    for value in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        _plain(value, path)
    if isinstance(content, str) and content.lstrip().startswith(("$", "@", "%")):
        raise ConfigError(f"{path} names something {content[:40]!r}, which MONAI would execute: it is not exported")
    return content


def _inference(model: Model, *, true_spacing: bool) -> dict[str, Any]:
    parts = parts_of(model)
    options = {} if model.patches is None else {TRUE_SPACING: true_spacing}
    given = "".join(f", @{name}" for name in options)
    return {
        "imports": [
            "$import glob",
            "$import os",
            "$import numpy",
            "$import torch",
            f"$from scripts.{parts.SCRIPT} import segment_files",
        ],
        "bundle_root": ".",
        "dataset_dir": "input",
        "output_dir": "$@bundle_root + '/eval'",
        "datalist": parts.datalist(model),
        **options,
        "device": "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')",
        "network_def": "$torch.jit.load(@bundle_root + '/models/model.ts', map_location=@device)",
        "network": "$@network_def.eval()",
        "preprocessing": {
            "_target_": "Compose",
            "transforms": [
                {"_target_": "LoadImaged", "keys": "image", "reader": "NibabelReader", "dtype": "$numpy.float64"},
                {"_target_": "EnsureChannelFirstd", "keys": "image"},
                {
                    "_target_": "Orientationd",
                    "keys": "image",
                    "axcodes": "RAS",
                    "labels": [["L", "R"], ["P", "A"], ["I", "S"]],
                },
            ],
        },
        "inferer": parts.inferer(model),
        "postprocessing": {
            "_target_": "Compose",
            "transforms": [
                {
                    "_target_": "Invertd",
                    "keys": "pred",
                    "orig_keys": "image",
                    "transform": "@preprocessing",
                    "nearest_interp": True,
                    "to_tensor": True,
                },
                {
                    "_target_": "SaveImaged",
                    "keys": "pred",
                    "output_dir": "@output_dir",
                    "output_postfix": "mask",
                    "output_dtype": "$numpy.uint8",
                    "resample": False,
                    "separate_folder": False,
                    "print_log": False,
                },
            ],
        },
        "run": [
            f"$segment_files(@datalist, @preprocessing, @network, @inferer, @postprocessing, @device{given})",
        ],
    }


def _metadata(model: Model, ready: ReadyModel) -> dict[str, Any]:
    header, job = model.header, model.header.job
    target, about, shape = _targets(job.task.classes), parts_of(model).described(model), list(model.task.spatial)
    expected = expected_of(job.task.classes[1])
    modality = "n/a" if expected is None else expected.modality
    labels = ", ".join(f"{number} is {name}" for number, name in enumerate(job.task.classes[1:], start=1))
    labels = f"single channel data, {labels}, 0 is everything else"
    return {
        "schema": SCHEMA,
        "version": "0.1.0",
        "changelog": {"0.1.0": f"exported by fedshift {fedshift.__version__}"},
        "monai_version": packages.version("monai"),
        "pytorch_version": torch.__version__.partition("+")[0],
        "numpy_version": np.__version__,
        "required_packages_version": {"nibabel": packages.version("nibabel")},
        "name": f"Segmentation of the {target}, {'+'.join(job.methods)}",
        "task": f"Segmentation of the {target} {about['what']}",
        "description": f"{_training_sentence(header)} {_ORIGIN} {_statistics_sentence(ready)}",
        "authors": "the federation that trained the model; exported by fedshift",
        "copyright": "the weights: the federation that trained them; the scripts: Apache License 2.0",
        "data_source": _DATA_DESCRIPTIONS[header.kind],
        "data_type": "nibabel",
        "image_classes": about["image"],
        "label_classes": labels,
        "pred_classes": labels,
        "eval_metrics": header.scores,
        "intended_use": "Research only. Not a medical device; not for diagnosis or treatment.",
        "references": [],
        "network_data_format": {
            "inputs": {
                "image": {
                    "type": "image",
                    "format": "magnitude",
                    "modality": modality,
                    "num_channels": len(about["channels"]),
                    "spatial_shape": shape,
                    "dtype": "float32",
                    "value_range": about["range"],
                    "is_patch_data": about["patch"],
                    "channel_def": {str(number): name for number, name in enumerate(about["channels"])},
                }
            },
            "outputs": {
                "pred": {
                    "type": "image",
                    "format": "segmentation",
                    "num_channels": len(job.task.classes),
                    "spatial_shape": shape,
                    "dtype": "float32",
                    "value_range": [],
                    "is_patch_data": about["patch"],
                    "channel_def": {str(number): f"logit of {name}" for number, name in enumerate(job.task.classes)},
                }
            },
        },
    }


def _targets(classes: Sequence[str]) -> str:
    """The foreground classes as words of a sentence."""
    *others, last = classes[1:]
    return f"{', '.join(others)} and {last}" if others else last


_DATA_DESCRIPTIONS = {
    "phantom": "simulated scans (phantom), no patients",
    "patients": "scans of patients",
    "images": "images",
}
_ORIGIN = "This file does not record whether the sites were hospitals or a simulation on one machine."
_PRECISION_DESCRIPTIONS = {
    "fp32": "fp32",
    "bf16": "bf16",
    "auto": "auto: bf16 where the hardware supports it, else fp32; the same rule applies at inference",
}


def _training_sentence(header: Header) -> str:
    names = "+".join(header.job.methods)
    return (
        f"Trained by federated learning ({names}) at {len(header.sites)} sites on "
        f"{_DATA_DESCRIPTIONS[header.kind]}; model of round {header.round} of {header.job.task.schedule.rounds}."
    )


def _statistics_sentence(ready: ReadyModel) -> str:
    """Say where the exported statistics come from. Sites stay unnamed: they may not want to be known."""
    if ready.used.site is not None:
        return "Images are normalised with the statistics of one training site, which are part of the network."
    if ready.used.state is not None:
        return "The personal layers, which each site keeps for itself, are those of one training site."
    if ready.used.own:
        return "Normalisation statistics were estimated from scans at export and are part of the network."
    return "The network is the same for every site."


def model_card(model: Model, ready: ReadyModel) -> str:
    """The text of the bundle's ``docs/README.md``."""
    header, job = model.header, model.header.job
    target, about = _targets(job.task.classes), parts_of(model).described(model)
    inside = "1 inside the predicted " + target
    if len(job.task.classes) > 2:
        inside = ", ".join(f"{number} inside the {name}" for number, name in enumerate(job.task.classes[1:], start=1))
    scores = "".join(f"| {_text(name)} | {value:.4f} |\n" for name, value in header.scores.items()) or "| unknown | |\n"
    warning = (
        "> **Simulated data.** This model was trained on a phantom, not on patients, to show that the software works.\n"
        "> Do not use it on real scans.\n\n"
        if header.kind == "phantom"
        else ""
    )
    options = "".join(f"- {_text(name)}: {_options(given)}\n" for name, given in job.methods.items())
    notes = "".join(f"- {_text(note[0].upper() + note[1:])}.\n" for note in ready.notes)
    return f"""# Segmentation of the {target}: {"+".join(job.methods)}

{warning}**Research use only. This is not a medical device; do not use it for diagnosis or treatment.**

{_training_sentence(header)} {_ORIGIN} {_statistics_sentence(ready)}

## Intended use
Research on federated learning and on segmentation of the {target}, by people who look at every mask.
Input: {about["input"]}. Output: a mask on the scan's own
grid, {inside}.

```
cd THIS_FOLDER
python -m monai.bundle run --config_file configs/inference.json --dataset_dir SCANS --output_dir MASKS
```

needs `monai`, `torch`, `nibabel`{about["needs"]} and `fire`. The masks are the same as those of `fedshift predict`.

## Training
| | |
|---|---|
| sites | {len(header.sites)} (their names are not part of this bundle) |
| data | {_DATA_DESCRIPTIONS[header.kind]} |
| network | {_text(job.task.network.name)}, {_options(job.task.network.options)} |
| initial weights | {_text(header.initial_weights)} |
| round | {header.round} of {job.task.schedule.rounds} |
| precision | {_PRECISION_DESCRIPTIONS[job.task.schedule.precision]} |
| seed | {job.seed} |
| fedshift | {_text(header.fedshift)} |

Methods, with their options:

{options}{notes}
## Preprocessing and postprocessing
{about["steps"]}

## Metrics
Mean over the training sites' validation cases, for the selected round:

| metric | value |
|---|---|
{scores}
## Limits
- Scans unlike those of the training sites (other sequence, coil, field strength, plane, body part) may give wrong
  masks without a warning. The training methods reduce the effect of feature shift but do not remove it.
- The validation scores above are those of the training sites. A new site must measure its own.
- A model can reveal information about its training data. The sites decide who may have it.

## Licence
Configuration and scripts: Apache License 2.0 (`LICENSE`). Weights: as permitted by the federation that trained them
and by the licences of its data.
"""


def _options(given: dict[str, Any]) -> str:
    return ", ".join(f"{_text(key)} = {_text(str(value))}" for key, value in given.items()) or "no options"


def _text(text: str) -> str:
    """A text of the model file for a Markdown table: one line, in which nothing is markup."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", " ".join(text.split()))


def _licence_text() -> str:
    """The text of fedshift's licence, from the checkout or the installed package."""
    checkout = Path(fedshift.__file__).parents[2] / "LICENSE"
    if checkout.is_file():
        return checkout.read_text(encoding="utf-8")
    installed = [file for file in packages.files("fedshift") or () if file.name == "LICENSE"]
    return (
        installed[0].read_text(encoding="utf-8")
        if installed
        else "Apache License 2.0: https://www.apache.org/licenses/LICENSE-2.0\n"
    )
