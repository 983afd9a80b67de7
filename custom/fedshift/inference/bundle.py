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
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedshift
from fedshift.data import arrays
from fedshift.federation.model_files import Header
from fedshift.inference import slicewise
from fedshift.inference.export import write_torchscript
from fedshift.inference.model import Model, ReadyModel
from fedshift.inference.plausible import EXPECTED
from fedshift.schema.errors import ConfigError
from fedshift.tasks import precision

SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
COPIED_FUNCTIONS = (
    arrays.radiological,
    arrays.to_uint8,
    arrays.resize_images,
    arrays.restore,
    arrays._square,
    arrays._resample,
    arrays.resize_weights,
    precision.uses_bf16,
    precision.autocast,
    precision.arrange,
    slicewise.to_network,
    slicewise.to_scan,
    slicewise.batches,
    slicewise.segment,
)
"""Functions copied into the bundle's script. They may call only each other, numpy and torch."""
COPIED_CONSTANTS = {"CLIP_ABOVE_QUANTILE": arrays.CLIP_ABOVE_QUANTILE, "BATCH_SIZE": slicewise.BATCH_SIZE}
SCRIPT_HEADER = '''"""Convert scans to network slices and back. fedshift {version}; Apache License 2.0, see LICENSE."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Precision = Literal["fp32", "bf16", "auto"]
'''
SCRIPT_INFERER = '''
class SliceInferer:
    """A MONAI inferer: maps a volume (1, 1, X, Y, Z) in RAS orientation to a mask of the same shape."""

    def __init__(
        self, *, matrix: int, context: int, scale: float, clip_above_quantile: float, precision: Precision
    ) -> None:
        self._options: dict[str, Any] = {
            "matrix": matrix,
            "context": context,
            "scale": scale,
            "clip_above_quantile": clip_above_quantile,
            "precision": precision,
        }

    def __call__(self, inputs: Tensor, network: Callable[[Tensor], Tensor], device: torch.device) -> Tensor:
        if inputs.dim() != 5 or inputs.shape[:2] != (1, 1):
            raise ValueError(f"expected one 3D volume (1, 1, X, Y, Z), got {tuple(inputs.shape)}")
        if not torch.isfinite(inputs).all():
            raise ValueError("the scan contains NaN or infinite voxels")
        volume = inputs[0, 0].cpu().numpy().transpose(2, 1, 0)
        mask = segment(volume, network, device=device, **self._options)
        return torch.from_numpy(np.ascontiguousarray(mask.transpose(2, 1, 0)).astype(np.float32))[None, None]


def segment_files(
    files: list[str],
    preprocessing: Callable[[Any], Any],
    network: Callable[[Tensor], Tensor],
    inferer: SliceInferer,
    postprocessing: Callable[[Any], Any],
    device: torch.device,
) -> None:
    """Segment the scans one by one and save the masks."""
    if not files:
        raise ValueError("no scans found: set dataset_dir to a folder of .nii.gz files, or datalist to a list of files")
    for file in files:
        data = preprocessing({"image": file})
        mask = inferer(torch.as_tensor(data["image"])[None], network, device)[0]
        data["pred"] = data["image"].clone()
        data["pred"][:] = mask
        postprocessing(data)
        print(f"{file}: {int(mask.sum())} voxels")
'''


def write_bundle(model: Model, ready: ReadyModel, folder: Path) -> None:
    """Write the bundle to ``folder``. If anything fails, nothing is written.

    Raises:
        ConfigError: the model is not a segmentation model, the folder exists, or the network cannot be traced.
    """
    if not model.is_segmentation:
        raise ConfigError(f"{model.path} is an image classifier: export it with --onnx or --torch-export")
    if folder.exists():
        raise ConfigError(f"{folder} already exists: name a new folder")
    staging = folder.with_name(f".{folder.name}.partial-{uuid.uuid4().hex[:8]}")
    try:
        for part in ("configs", "docs", "models", "scripts"):
            (staging / part).mkdir(parents=True)
        write_torchscript(model, ready, staging / "models" / "model.ts")
        texts = {
            "configs/metadata.json": _json(_plain(_metadata(model, ready), model.path)),
            "configs/inference.json": _json(_inference(model)),
            "docs/README.md": model_card(model, ready),
            "scripts/__init__.py": '"""Functions that the configuration calls."""\n',
            "scripts/slicewise.py": script(),
            "LICENSE": _licence_text(),
        }
        for name, text in texts.items():
            (staging / name).write_text(text, encoding="utf-8")
        staging.rename(folder)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written ({error.strerror}): name another folder") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def script() -> str:
    """The source of ``scripts/slicewise.py``."""
    constants = "".join(f"{name} = {value!r}\n" for name, value in COPIED_CONSTANTS.items())
    functions = "\n\n".join(inspect.getsource(function) for function in COPIED_FUNCTIONS)
    return f"{SCRIPT_HEADER.format(version=fedshift.__version__)}\n{constants}\n\n{functions}\n{SCRIPT_INFERER}"


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


def _inference(model: Model) -> dict[str, Any]:
    data = model.data
    return {
        "imports": [
            "$import glob",
            "$import os",
            "$import numpy",
            "$import torch",
            "$from scripts.slicewise import segment_files",
        ],
        "bundle_root": ".",
        "dataset_dir": "input",
        "output_dir": "$@bundle_root + '/eval'",
        "datalist": "$sorted(glob.glob(os.path.join(@dataset_dir, '*.nii.gz')))",
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
        "inferer": {
            "_target_": "scripts.slicewise.SliceInferer",
            "matrix": data["matrix"],
            "context": data["context"],
            "scale": data["scale"],
            "clip_above_quantile": data["clip_above_quantile"],
            "precision": model.header.job.task.schedule.precision,
        },
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
            "$segment_files(@datalist, @preprocessing, @network, @inferer, @postprocessing, @device)",
        ],
    }


def _metadata(model: Model, ready: ReadyModel) -> dict[str, Any]:
    header, data, job = model.header, model.data, model.header.job
    background, target = job.task.classes
    shape = [data["matrix"], data["matrix"]]
    slice_offsets = [channel - data["context"] // 2 for channel in range(data["context"])]
    modality = EXPECTED[target].modality if target in EXPECTED else "n/a"
    return {
        "schema": SCHEMA,
        "version": "0.1.0",
        "changelog": {"0.1.0": f"exported by fedshift {fedshift.__version__}"},
        "monai_version": packages.version("monai"),
        "pytorch_version": torch.__version__.partition("+")[0],
        "numpy_version": np.__version__,
        "required_packages_version": {"nibabel": packages.version("nibabel")},
        "name": f"Segmentation of the {target}, {'+'.join(job.methods)}",
        "task": f"Segmentation of the {target} in volumes, slice by slice",
        "description": f"{_training_sentence(header)} {_ORIGIN} {_statistics_sentence(ready)}",
        "authors": "the federation that trained the model; exported by fedshift",
        "copyright": "the weights: the federation that trained them; the scripts: Apache License 2.0",
        "data_source": _DATA_DESCRIPTIONS[header.kind],
        "data_type": "nibabel",
        "image_classes": f"{data['context']} neighbouring slices, intensity scaled to [0, {data['scale']:g}]",
        "label_classes": f"single channel data, 1 is {target}, 0 is everything else",
        "pred_classes": f"single channel data, 1 is {target}, 0 is everything else",
        "eval_metrics": header.scores,
        "intended_use": "Research only. Not a medical device; not for diagnosis or treatment.",
        "references": [],
        "network_data_format": {
            "inputs": {
                "image": {
                    "type": "image",
                    "format": "magnitude",
                    "modality": modality,
                    "num_channels": data["context"],
                    "spatial_shape": shape,
                    "dtype": "float32",
                    "value_range": [0, data["scale"]],
                    "is_patch_data": False,
                    "channel_def": {
                        str(channel): f"slice {offset:+d}" if offset else "the slice"
                        for channel, offset in enumerate(slice_offsets)
                    },
                }
            },
            "outputs": {
                "pred": {
                    "type": "image",
                    "format": "segmentation",
                    "num_channels": 2,
                    "spatial_shape": shape,
                    "dtype": "float32",
                    "value_range": [],
                    "is_patch_data": False,
                    "channel_def": {"0": f"logit of {background}", "1": f"logit of {target}"},
                }
            },
        },
    }


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
    header, data, job = model.header, model.data, model.header.job
    target = job.task.classes[1]
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
Research on federated learning and on segmentation of the {target}, by people who look at every mask. Input: one
axial volume as a NIfTI file. Output: a mask on the scan's own grid, 1 inside the predicted {target}.

```
cd THIS_FOLDER
python -m monai.bundle run --config_file configs/inference.json --dataset_dir SCANS --output_dir MASKS
```

needs `monai`, `torch`, `nibabel` and `fire`. The masks are the same as those of `fedshift predict`.

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
The scan is reoriented to RAS. Intensities are clipped above the {data["clip_above_quantile"]:.0%} quantile of the
volume and scaled to integers 0 … 255. Slices are zero-padded to squares and resampled to {data["matrix"]} x
{data["matrix"]}. The network gets {data["context"]} neighbouring slices as channels, scaled to 0 … {data["scale"]:g}.
Probabilities are resampled to the scan's grid and thresholded at 0.5. The code is in `scripts/slicewise.py`.

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
