"""What is special about the bundle of a model that works on slices: its script, its configuration, its description."""

from __future__ import annotations

from typing import Any

from fedshift.data import arrays
from fedshift.inference import slicewise
from fedshift.inference.model import Model
from fedshift.tasks import precision

SCRIPT = "slicewise"
"""Name of the script's module."""
COPIED_FUNCTIONS = (
    arrays.radiological,
    arrays.to_uint8,
    arrays.resize_images,
    arrays.restore,
    arrays._square,
    arrays._resample,
    arrays.taps,
    arrays.summed,
    arrays.resize_axis,
    arrays.resize_weights,
    precision.uses_bf16,
    precision.autocast,
    slicewise.to_network,
    slicewise.to_scan,
    slicewise.batches,
    slicewise.probabilities,
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
    # Float32 as in training: by itself a GPU's convolutions take TF32.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
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


def inferer(model: Model) -> dict[str, Any]:
    """The inferer in MONAI's configuration."""
    data = model.data
    return {
        "_target_": "scripts.slicewise.SliceInferer",
        "matrix": data["matrix"],
        "context": data["context"],
        "scale": data["scale"],
        "clip_above_quantile": data["clip_above_quantile"],
        "precision": model.header.job.task.schedule.precision,
    }


DATALIST = "$sorted(glob.glob(os.path.join(@dataset_dir, '*.nii.gz')))"


def datalist(model: Model) -> str:
    """The expression for the list of scans."""
    return DATALIST


def described(model: Model) -> dict[str, Any]:
    """What the metadata say about images."""
    data = model.data
    return {
        "what": "in volumes, slice by slice",
        "image": f"{data['context']} neighbouring slices, intensity scaled to [0, {data['scale']:g}]",
        "channels": [
            f"slice {offset:+d}" if offset else "the slice"
            for offset in (channel - data["context"] // 2 for channel in range(data["context"]))
        ],
        "range": [0, data["scale"]],
        "patch": False,
        "needs": "",
        "input": "one axial volume as a NIfTI file",
        "steps": f"""\
The scan is reoriented to RAS. Intensities are clipped above the {data["clip_above_quantile"]:.0%} quantile of the
volume and scaled to integers 0 … 255. Slices are zero-padded to squares and resampled to {data["matrix"]} x
{data["matrix"]}. The network gets {data["context"]} neighbouring slices as channels, scaled to 0 … {data["scale"]:g}.
Probabilities are resampled to the scan's grid and thresholded at 0.5. The code is in `scripts/slicewise.py`.""",
    }
