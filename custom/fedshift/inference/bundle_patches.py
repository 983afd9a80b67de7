"""What is special about the bundle of a model that works on patches: its script, its configuration, its description."""

from __future__ import annotations

from typing import Any

from fedshift.data import arrays, voxels
from fedshift.inference.model import Model
from fedshift.schema.manifest import DIRECTION_TOLERANCE, SPACING_TOLERANCE, TRUE_SPACING, is_dummy_geometry
from fedshift.tasks import precision
from fedshift.tasks.evaluation import components
from fedshift.tasks.segmentation import volumes, windows

SCRIPT = "patchwise"
"""Name of the script's module."""
COPIED_FUNCTIONS = (
    arrays.resize_weights,
    arrays.taps,
    arrays.summed,
    arrays.resize_axis,
    voxels.normalised,
    voxels.shape_at,
    voxels.resized,
    voxels.network_volume,
    is_dummy_geometry,
    windows.mirrors,
    windows.mirrored,
    windows.sliding,
    windows.sliding_by_slices,
    components.largest_parts,
    components.largest_components,
    volumes.as_images,
    volumes.neighbours,
    volumes.as_volume,
    volumes.softmax_in_place,
    volumes.choose,
    volumes.resliced,
    volumes.probabilities_of,
    volumes.segment,
    precision.uses_bf16,
    precision.autocast,
)
"""Functions copied into the bundle's script. They may call only each other, numpy, torch, MONAI and SciPy."""
COPIED_CONSTANTS = {
    "QUANTILES": voxels.QUANTILES,
    "MOST_DEVIATIONS": voxels.MOST_DEVIATIONS,
    "MOST_PLAIN": voxels.MOST_PLAIN,
    "SPACING_TOLERANCE": SPACING_TOLERANCE,
    "DIRECTION_TOLERANCE": DIRECTION_TOLERANCE,
    "AT_ONCE": windows.AT_ONCE,
    "WITHOUT_SPACING": (
        "voxels of 1 x 1 x 1 mm and no rotation are taken for a lost header, and the scan is resampled by its matrix "
        f"and not by 1 mm; if they are real, add --{TRUE_SPACING} True"
    ),
}
SCRIPT_HEADER = '''"""Segment scans by patches. fedshift {version}; Apache License 2.0, see LICENSE."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import combinations, product
from typing import Any, Literal

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor
from torch.nn.functional import pad

Precision = Literal["fp32", "bf16", "auto"]
Normalise = Literal["volume", "percentile", "fixed", "none"]
EVERY_NEIGHBOUR = np.ones((3, 3, 3), bool)
'''
SCRIPT_INFERER = '''
class PatchInferer:
    """A MONAI inferer: maps the sequences of a scan (1, S, X, Y, Z) in RAS orientation to classes (1, 1, X, Y, Z)."""

    def __init__(self, *, precision: Precision, sequences: int, **options: Any) -> None:
        self._precision, self._sequences, self._options = precision, sequences, options
        self.resamples_by_matrix = None not in (options["wanted"], options["matrix"])

    def __call__(
        self,
        inputs: Tensor,
        spacing: Sequence[float] | None,
        network: Callable[[Tensor], Tensor],
        device: torch.device,
    ) -> Tensor:
        if inputs.dim() != 5 or inputs.shape[:2] != (1, self._sequences):
            raise ValueError(f"expected one scan (1, {self._sequences}, X, Y, Z), got {tuple(inputs.shape)}")
        if not torch.isfinite(inputs).all():
            raise ValueError("the scan contains NaN or infinite voxels")

        def forward(x: Tensor) -> Tensor:
            with autocast(self._precision, device):
                return network(x.to(device))

        volume = inputs[0].cpu().numpy().transpose(0, 3, 2, 1)
        classes = segment(volume, None if spacing is None else tuple(spacing)[::-1], forward, **self._options)
        return torch.from_numpy(np.ascontiguousarray(classes.transpose(2, 1, 0)).astype(np.float32))[None, None]


def segment_files(
    files: list[str] | list[list[str]],
    preprocessing: Callable[[Any], Any],
    network: Callable[[Tensor], Tensor],
    inferer: PatchInferer,
    postprocessing: Callable[[Any], Any],
    device: torch.device,
    true_spacing: bool,
) -> None:
    """Segment the scans one by one and save the masks.

    ``true_spacing``: whether voxels of 1 x 1 x 1 mm are real, not a header's placeholder.
    """
    # Float32 as in training: by itself a GPU's convolutions take TF32.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    if not isinstance(true_spacing, bool):
        raise ValueError(f"true_spacing must be True or False, not {true_spacing!r}")
    if not files:
        raise ValueError("no scans found: set dataset_dir to a folder of .nii.gz files, or datalist to a list of files")
    for file in files:
        data = preprocessing({"image": file})
        image = data["image"]
        spacing = [float(length) for length in image.pixdim]
        direction = (image.affine[:3, :3].cpu().numpy() / spacing).ravel().tolist()
        known = None if is_dummy_geometry(spacing, direction) and not true_spacing else spacing
        if known is None and inferer.resamples_by_matrix:
            print(f"{file}: {WITHOUT_SPACING}")
        classes = inferer(torch.as_tensor(image)[None], known, network, device)[0]
        data["image"] = image[:1]
        data["pred"] = data["image"].clone()
        data["pred"][:] = classes
        postprocessing(data)
        print(f"{file}: {int((classes > 0).sum())} voxels")
'''


def inferer(model: Model) -> dict[str, Any]:
    """The inferer in MONAI's configuration."""
    assert model.patches is not None
    options = {
        key: list(value) if isinstance(value, tuple) else value for key, value in model.patches.inference().items()
    }
    return {
        "_target_": "scripts.patchwise.PatchInferer",
        "precision": model.header.job.task.schedule.precision,
        "sequences": max(len(model.sequences), 1),
        **options,
    }


def datalist(model: Model) -> str:
    """The expression for the list of scans; with several sequences a list of files for each."""
    if len(model.sequences) < 2:
        return "$sorted(glob.glob(os.path.join(@dataset_dir, '*.nii.gz')))"
    return (
        "$[[first[:-12] + f'_{number:04d}.nii.gz' for number in range(" + str(len(model.sequences)) + ")] "
        "for first in sorted(glob.glob(os.path.join(@dataset_dir, '*_0000.nii.gz')))]"
    )


def described(model: Model) -> dict[str, Any]:
    """What the metadata say about images."""
    assert model.patches is not None
    data, sequences = model.data, model.sequences or ("the image",)
    size = " x ".join(map(str, data["patch"]))
    context = data["context"]
    channels = [
        name if context == 1 else f"{name}, slice {offset - context // 2:+d}"
        for name in sequences
        for offset in range(context)
    ]
    files = "one volume as a NIfTI file"
    if len(sequences) > 1:
        named = ", ".join(f"`_{number:04d}` for {name}" for number, name in enumerate(sequences))
        files = f"the NIfTI files of a case on one grid, whose names end in {named}"
    return {
        "what": f"in patches of {size} voxels",
        "image": f"{', '.join(sequences)}, normalised ({data['normalise']})",
        "channels": channels,
        "range": list(model.task.intensities),
        "patch": True,
        "needs": ", `scipy`",
        "input": files,
        "steps": f"""\
The scan is reoriented to RAS, each sequence normalised (`{data["normalise"]}`) and resampled to {_spacing(data)}.
MONAI's sliding window of {size} voxels with Gaussian weights gives probabilities, which are resampled to the scan's
grid, where the most probable class is taken. The code is in `scripts/patchwise.py`.{_option(model)}""",
    }


def _option(model: Model) -> str:
    """What a reader may have to say of the scans."""
    if not model.resamples_by_matrix:
        return ""
    return f"""

Voxels of 1 x 1 x 1 mm without a rotation are taken for a header that has lost its voxel size. If they are real, add
`--{TRUE_SPACING} True` to the command, or set `{TRUE_SPACING}` in `configs/inference.json`."""


def _spacing(data: dict[str, Any]) -> str:
    matrix = None if data["matrix"] is None else f"{data['matrix']} voxels along the longer side of a slice"
    if data["spacing"] is None:
        return matrix or "its own voxels"
    lengths = " x ".join("own" if length is None else f"{length:g}" for length in data["spacing"])
    said = f"voxels of {lengths} mm (along z, y, x)"
    return said if matrix is None else f"{said}; if it has no voxel size (1 x 1 x 1 mm), to {matrix}"
